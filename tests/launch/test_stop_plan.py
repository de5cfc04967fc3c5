"""The signals that end a job, by what has ended it."""

from __future__ import annotations

import signal

import pytest

from lockstep.processes.stop_plan import FAILURE, GROW, StopPlan

INT, TERM, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL


@pytest.mark.parametrize(
    ("cause", "steps"),
    [
        (FAILURE, [(105.0, INT), (109.0, KILL)]),
        (signal.SIGINT, [(100.0, INT), (110.0, KILL)]),
        (signal.SIGPIPE, [(100.0, INT), (110.0, KILL)]),
        (signal.SIGTERM, [(100.0, TERM), (105.0, INT), (110.0, KILL)]),
        (signal.SIGHUP, [(100.0, TERM), (105.0, INT), (110.0, KILL)]),
    ],
)
def test_signals_and_their_times(cause: int, steps: list[tuple[float, signal.Signals]]) -> None:
    plan = StopPlan()
    assert plan.next_at == float("inf")
    plan.begin(cause, 10.0, now=100.0)
    for at, number in steps:
        assert plan.next_at == at
        assert plan.take(at - 0.1) is None
        assert plan.take(at) == number
    assert plan.take(1e9) is None


def test_a_program_that_is_asked_to_end_has_time_of_its_own() -> None:
    plan = StopPlan()
    plan.begin(GROW, 10.0, now=100.0, asked=30.0)
    for at, number in ((100.0, TERM), (130.0, INT), (140.0, KILL)):
        assert plan.next_at == at
        assert plan.take(at) == number


def test_what_is_dropped_is_not_sent() -> None:
    plan = StopPlan()
    plan.begin(FAILURE, 1.0, now=0.0)
    plan.drop()
    assert plan.next_at == float("inf")
    assert plan.take(1e9) is None
