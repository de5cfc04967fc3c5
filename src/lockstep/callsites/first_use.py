"""Where in the user's program each compiled program was first used.

What the compiler puts in to move an argument has no line in the program's text: nothing in the
user's function makes it. But JAX compiles a function, or takes it from its compilation cache, when
it is needed first, on the thread and below the line that needs it. That line is noted then, once a
program; an execution costs nothing. Later calls from other lines run the same compiled program and
are not seen.

Programs with one text have one fingerprint, as ``jax.jit(lambda x: x, out_shardings=s)`` has on
two lines: then each was a first use, and which of them it is cannot be told.
"""

from __future__ import annotations

from lockstep.flight_recorder.model import Caller


class Uses:
    """The lines by fingerprint. `note` may be called on any thread, also while others ask."""

    def __init__(self) -> None:
        # Dictionaries, as sets that keep their order and are changed in one step.
        self._lines: dict[bytes, dict[Caller | None, None]] = {}
        self._fresh: set[bytes] = set()
        self._threads: dict[bytes, str] = {}

    def note(self, fingerprint: bytes, line: Caller | None, thread: str = "") -> None:
        """``line`` is None on a thread that has none; ``thread`` "": it does not call yet."""
        if self._threads.setdefault(fingerprint, thread) != thread:
            self._threads[fingerprint] = ""
        known = self._lines.setdefault(fingerprint, {})
        if known and line not in known:
            self._fresh.add(fingerprint)
        known.setdefault(line)

    def of(self, fingerprint: bytes) -> tuple[Caller, ...]:
        """The first first; none where that is not known, for no later one is."""
        lines = tuple(self._lines.get(fingerprint, ()))
        return tuple(line for line in lines if line) if lines and lines[0] else ()

    def thread(self, fingerprint: bytes) -> str:
        """The name of the thread that first called the program; "" where that may be several."""
        return self._threads.get(fingerprint, "")

    def fresh(self) -> set[bytes]:
        """The programs that have had another line since this was asked last. For one thread."""
        found = set()
        while self._fresh:
            found.add(self._fresh.pop())
        return found
