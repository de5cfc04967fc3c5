"""How long the main thread stands still, at looks whose times are given."""

from __future__ import annotations

import pytest

from lockstep.watchdog.still_thread import StillThread


@pytest.fixture
def thread() -> StillThread:
    thread = StillThread(0.0)
    thread.look(0.0, "")
    return thread


def test_it_stands_still_until_something_is_done(thread: StillThread) -> None:
    assert thread.still(10.0) == 10.0
    thread.look(10.0, "a launch")
    assert thread.still(10.0) == 0.0


def test_seconds_that_are_left_out_are_no_wait(thread: StillThread) -> None:
    thread.leave_out(600.0)
    assert (thread.still(601.0), thread.waited(601.0)) == (1.0, 1.0)
