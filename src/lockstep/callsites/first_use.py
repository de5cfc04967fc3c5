"""The line of the user's program that first used each compiled program.

A collective that the compiler inserts to move an argument has no line of its own, because nothing
in the user's function makes it. But JAX compiles a function, or loads it from its compilation
cache, at the first call, on the thread and below the line of that call. This line is recorded then,
once for each program, so that an execution costs nothing. Later calls from other lines run the same
compiled program and are not recorded.

Programs with the same text have the same fingerprint, such as
``jax.jit(lambda x: x, out_shardings=s)`` on two lines. Then each line was a first use, and all of
them are kept.
"""

from __future__ import annotations

from lockstep.flight_recorder.run_records import Caller


class Uses:
    """The lines by fingerprint. `note` may be called on any thread, concurrently with the rest."""

    def __init__(self) -> None:
        # Dictionaries, as sets that keep their order and are changed in one step.
        self._lines: dict[bytes, dict[Caller | None, None]] = {}
        self._fresh: set[bytes] = set()
        self._threads: dict[bytes, str] = {}

    def note(self, fingerprint: bytes, line: Caller | None, thread: str = "") -> None:
        """Records a use. ``line``: None on a thread without one; ``thread`` "": no call yet."""
        if self._threads.setdefault(fingerprint, thread) != thread:
            self._threads[fingerprint] = ""
        known = self._lines.setdefault(fingerprint, {})
        if known and line not in known:
            self._fresh.add(fingerprint)
        known.setdefault(line)

    def of(self, fingerprint: bytes) -> tuple[Caller, ...]:
        """The lines, the first use first; empty if the first use is not known."""
        lines = tuple(self._lines.get(fingerprint, ()))
        return tuple(line for line in lines if line) if lines and lines[0] else ()

    def thread(self, fingerprint: bytes) -> str:
        """The name of the thread that first called the program; "": it may be several."""
        return self._threads.get(fingerprint, "")

    def fresh(self) -> set[bytes]:
        """The programs with a new line since the last call. To be called on one thread only."""
        found = set()
        while self._fresh:
            found.add(self._fresh.pop())
        return found
