"""What keeps a process from collectives, as it writes it down for the others: barriers it waits in,
a program that it compiles, exceptions of callbacks that a compiled program has called and of
threads, and ``sys.exit()``.

One small file in JSON, which is written anew at each change. A reader may find half of it; then it
knows nothing of them, and proves nothing with them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_USES = 64
"""A process writes down this many of the barriers that it has come to, the latest."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier, or a check of equal values, in which a process waits."""

    key: str
    """Its name; the same on all processes."""
    use: int
    """How often the process has come to it, this time included."""
    words: str
    """The call, ``barrier('epoch')``."""
    file: str = ""
    line: int = 0
    """The line of the program that made the call; "" and 0: not known."""
    has_timeout: bool = False
    """Whether the call has a timeout of its own, so that the program may go on after it."""


@dataclass(frozen=True, slots=True)
class Waits:
    """What a process waits for outside of collectives."""

    barriers: tuple[Barrier, ...] = ()
    uses: Mapping[str, int] = field(default_factory=dict)
    """How often the process has come to each barrier, the latest last."""
    rest: tuple[int, int] | None = None
    """The state of its collectives (`History.progress`) when it could not go on by itself: only
    another process could release it. None: that is not known."""
    callback: str = ""
    """The last exception of a callback, ``ValueError: no such file, train.py:7 in log``."""
    thread: str = ""
    """The last exception that ended a thread, ``thread load raised OSError: ..., train.py:7``."""
    left: str = ""
    """The call that ended the program early or at its end, ``sys.exit() at train.py:7``."""
    unanswered: str = ""
    """Hosts that have not answered its packets for some seconds, ``host b (process 1)``."""
    compiles: str = ""
    """The program over devices of several processes that it compiles, ``step (train.py:34)``."""
    compiles_since: float = 0.0
    """``time.monotonic()`` of its host when that began."""
    compiled_for: float = 0.0
    """Seconds since then; 0: not known, as of a process that has ended."""

    @property
    def compilation(self) -> str:
        """``has been compiling step (train.py:34) for 40 s``; "": it compiles no such program."""
        if self.compiles and self.compiled_for >= 1:
            return f"has been compiling {self.compiles} for {self.compiled_for:.0f} s"
        return f"compiles {self.compiles}" if self.compiles else ""

    def at(self, now: float) -> Waits:
        """With the seconds since then. ``now``: ``time.monotonic()`` of its host."""
        if not self.compiles:
            return self
        return dataclasses.replace(self, compiled_for=max(0.0, now - self.compiles_since))

    def has_come_to(self, barrier: Barrier) -> bool:
        """Whether the process has come to this use of a barrier, or may have."""
        is_forgotten = barrier.key not in self.uses and len(self.uses) >= MAX_USES
        return is_forgotten or self.uses.get(barrier.key, 0) >= barrier.use

    def values(self) -> dict[str, Any]:
        """For JSON: `waits_of` reads it."""
        return {
            "barriers": [dataclasses.astuple(barrier) for barrier in self.barriers],
            "uses": dict(self.uses),
            "rest": self.rest,
            "callback": self.callback,
            "thread": self.thread,
            "left": self.left,
            "unanswered": self.unanswered,
            "compiles": [self.compiles, self.compiles_since, self.compiled_for],
        }


def waits_of(values: Mapping[str, Any]) -> Waits:
    """Raises ValueError, KeyError or TypeError for what `Waits.values` has not made."""
    rest = values["rest"]
    barriers = [
        Barrier(str(key), int(use), str(words), str(file), int(line), bool(has_timeout))
        for key, use, words, file, line, has_timeout in values["barriers"]
    ]
    uses = {str(key): int(use) for key, use in dict(values["uses"]).items()}
    known = rest and (int(rest[0]), int(rest[1]))
    compiles, since, seconds = values["compiles"]
    return Waits(
        tuple(barriers),
        uses,
        known,
        str(values["callback"]),
        str(values["thread"]),
        str(values["left"]),
        str(values["unanswered"]),
        str(compiles),
        float(since),
        float(seconds),
    )


def read_waits(path: Path | str) -> Waits:
    """What a process has written; empty where it has written nothing, or the file has no sense."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        return waits_of(json.loads(Path(path).read_text("utf-8")))
    return Waits()
