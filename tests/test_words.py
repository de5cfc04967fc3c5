"""Numbers and lists of processes as people read them."""

from __future__ import annotations

import pytest

from lockstep import _words


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([1], "process 1"),
        ([0, 1], "processes 0-1"),
        ([0, 1, 2, 5, 7, 8], "processes 0-2, 5, 7-8"),
        (range(64), "processes 0-63"),
        (range(0, 40, 2), "processes 0, 2, 4, 6, 8, 10, ... (20 in all)"),
    ],
)
def test_processes_are_listed_in_ranges(indices: list[int], text: str) -> None:
    assert _words.processes(indices) == text
