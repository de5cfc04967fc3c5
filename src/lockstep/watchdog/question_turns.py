"""Which of many waiting processes ask all others for their states. Pure.

One of them is enough: the lowest that waits judges the answers. But each begins to wait at about
the same time, and a question has every process publish its state at the coordination service, which
runs in process 0. If each of 1,024 processes asked, that would be a million states. So a process
notes that it waits, and asks if few lower ones do.

A process that was killed has left its note. So from time to time, as the wait goes on, twice as
many of the lowest may ask; and none asks where a lower one, which lives, has asked meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

AT_ONCE = 8
"""The lowest processes that may always ask. So in a small job each process asks at once."""


class Turns:
    """The turns of one process."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._rounds = 0
        self._asked: dict[int, int] = {}

    def restart(self, asked: Mapping[int, int]) -> None:
        """Another wait begins; ``asked``: how many questions each process has asked by now."""
        self._rounds, self._asked = 0, dict(asked)

    def is_mine(self, waiting: Collection[int], asked: Mapping[int, int]) -> bool:
        """Whether this process asks now; ``waiting``: the processes that have noted a wait."""
        lower = sum(other < self._process for other in waiting)
        has_asked = any(
            number > self._asked.get(other, 0)
            for other, number in asked.items()
            if other < self._process
        )
        most = AT_ONCE << self._rounds
        self._rounds, self._asked = self._rounds + 1, dict(asked)
        return lower < AT_ONCE or (lower < most and not has_asked)
