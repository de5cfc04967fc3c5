"""The job that this process is in, and what each module remembers of it.

A process may join several jobs, one after the other: `jax.distributed.shutdown()`, then
`initialize()` again. What one module remembers of a job is a *part*: an object of a class of that
module, which is made at its first use and closed when the job ends. So a second job inherits
nothing from the first.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, TypeVar


class Part:
    """What one module remembers of a job."""

    def close(self) -> None:
        """Ends what runs for the job; called once, when this process leaves it."""


P = TypeVar("P", bound=Part)


class Job:
    """One job: made before the process joins it, ended when the process joins another one."""

    def __init__(self) -> None:
        self._parts: dict[type[Part], Any] = {}
        self._lock = threading.RLock()

    def part(self, kind: type[P]) -> P:
        """This job's only object of the class ``kind``, which is called without arguments."""
        # An object that exists takes no lock: a forked child calls this, and it may be held.
        if kind not in self._parts:
            with self._lock:
                if kind not in self._parts:
                    self._parts[kind] = kind()
        return self._parts[kind]

    def end(self) -> None:
        """Closes the parts, the latest first."""
        with contextlib.ExitStack() as parts:
            for part in self._parts.values():
                parts.callback(part.close)


_current = Job()


def part(kind: type[P]) -> P:
    """The current job's only object of the class ``kind``."""
    return _current.part(kind)


def end() -> None:
    """Leaves the current job. The next one begins, without any parts."""
    global _current
    ended, _current = _current, Job()
    ended.end()
