"""How long the main thread of this process has stood still, by looks about once a second."""

from __future__ import annotations

import contextlib
import enum
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.watchdog import main_thread

_SHARE = 0.2
"""Processor time below this share of one core is none: NCCL's threads, JAX's client and the watch
take a few percent while a process waits."""
_READY_SHARE = 0.5
"""A thread that is ready to run for longer works, though a busy machine may let it run little."""


class Limit(enum.Enum):
    """What the thread has reached where it stands."""

    WARNING = enum.auto()
    """``--stall-warning``."""
    TIMEOUT = enum.auto()
    """``--collective-timeout``, by the clock."""
    WAIT = enum.auto()
    """``--collective-timeout``, all of it without processor time."""


def ready_ns() -> dict[str, int]:
    """How long each other thread has run or was ready to; empty: Linux does not say."""
    found = {}
    for thread in {*os.listdir("/proc/self/task")} - {str(threading.get_native_id())}:
        with contextlib.suppress(OSError, ValueError):  # it has ended
            path = f"/proc/self/task/{thread}/schedstat"
            ran, waited, _ = Path(path).read_text().split()
            found[thread] = int(ran) + int(waited)
    return found


class StillThread:
    """Stands still means: the same Python instruction, and nothing that the process has done."""

    def __init__(self, now: float) -> None:
        self._position: Any = None
        self._since = self._looked = self._busy = now
        self._used = time.process_time()
        self._ready: dict[str, int] = {}
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
        used, elapsed = time.process_time(), now - self._looked
        is_ready = self._is_ready(elapsed)
        if used - self._used > _SHARE * elapsed or is_ready:
            self._busy = now
        self._looked, self._used = now, used

    def _is_ready(self, elapsed: float) -> bool:
        """Whether a thread of this process has run, or was ready to, since the last look."""
        before, self._ready = self._ready, ready_ns() if self.inside else {}
        grown = (self._ready[one] - before[one] for one in self._ready.keys() & before.keys())
        return max(grown, default=0) > _READY_SHARE * elapsed * 1e9

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
