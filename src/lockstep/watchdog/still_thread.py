"""How long the main thread of this process has stood still, by looks about once a second."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from typing import Any

from lockstep.watchdog import main_thread

_SHARE = 0.2
"""Processor time below this share of one core is none: NCCL's threads, JAX's client and the watch
take a few percent while a process waits."""


class Limit(enum.Enum):
    """What the thread has reached where it stands."""

    WARNING = enum.auto()
    """``--stall-warning``."""
    TIMEOUT = enum.auto()
    """``--collective-timeout``, by the clock."""
    WAIT = enum.auto()
    """``--collective-timeout``, all of it without processor time."""


class StillThread:
    """Stands still means: the same Python instruction, and nothing that the process has done."""

    def __init__(self, now: float) -> None:
        self._position: Any = None
        self._since = self._looked = self._busy = now
        self._used = time.process_time()
        self._told: set[Limit] = set()
        self.inside = ""
        """The function of JAX in which it stood at the last look; "": in none."""

    def look(self, now: float, done: Any) -> None:
        """``done`` is what the process has done: a new frame may have the address of an old one."""
        frame = main_thread.frame()
        self.inside = main_thread.inside(frame)
        position = (id(frame), frame.f_lasti if frame else 0, done)
        if position != self._position:
            self._position, self._since, self._told = position, now, set()
        used = time.process_time()
        if used - self._used > _SHARE * (now - self._looked):
            self._busy = now
        self._looked, self._used = now, used

    def leave_out(self, seconds: float) -> None:
        """Does not count so many seconds, which the process was stopped."""
        self._since += seconds
        self._looked += seconds
        self._busy += seconds

    def still(self, now: float) -> float:
        """For how many seconds it has been there."""
        return now - self._since

    def waited(self, now: float) -> float:
        """For how many seconds it has been there and the process has used next to no processor
        time: it waits, and does not compile."""
        return now - max(self._since, self._busy)

    def reached(self, now: float, warning: float, timeout: float) -> Iterator[Limit]:
        """The limits that are reached now, each once in a place."""
        seconds = {
            Limit.WARNING: (self.still(now), warning),
            Limit.TIMEOUT: (self.still(now), timeout),
            Limit.WAIT: (self.waited(now), timeout),
        }
        for limit, (reached, given) in seconds.items():
            if given and reached >= given and limit not in self._told and self.inside:
                self._told.add(limit)
                yield limit
