"""How often the records are read while one wait goes on."""

from __future__ import annotations

import pytest

from lockstep.watchdog.scanner import rest_after


def test_the_first_scans_of_a_wait_follow_soon() -> None:
    assert [rest_after(scans, 0.01) for scans in range(1, 7)] == [0.0] * 6


@pytest.mark.parametrize("used", [0.001, 0.01, 0.02])
def test_later_ones_take_less_than_half_a_percent_of_a_core(used: float) -> None:
    assert used / (used + rest_after(7, used)) < 0.005


def test_what_happens_late_is_found_after_some_seconds() -> None:
    assert rest_after(1000, 10.0) == 5.0
