"""A loop in which nothing is to happen but what a test expects."""

from __future__ import annotations

import selectors

from lockstep.processes.console import Console


class Loop:
    """What the processes of a job need of a supervisor, without signals."""

    is_stopping = False
    stopping_at = float("inf")

    def __init__(self, may_fail: bool = False) -> None:
        self._may_fail = may_fail
        self.selector = selectors.PollSelector()
        self.console = Console(self.selector)

    def turn(self, longest: float = 1.0) -> None:
        for key, _ in self.selector.select(longest):
            key.data()

    def failed(self) -> None:
        assert self._may_fail, "no process has failed"

    def asked_to_stop(self) -> None:
        raise AssertionError("no signal was sent")

    def grow(self) -> bool:
        raise AssertionError("no host returns")

    def could_not_start(self, process_id: int, why: str) -> None:
        raise AssertionError(why)
