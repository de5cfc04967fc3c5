"""What this process is compiling now, and how it differs from what the others compile.

On GPUs XLA compiles a program of several processes on all of them together: they share the work of
tuning. Where they compile different programs, or one does not compile, the others wait inside of
the compiler, and NCCL knows nothing of it.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from lockstep import _jax_compat
from lockstep._words import counted, processes
from lockstep.callsites import frames

_MOST = 1 << 16
"""Bytes of a compressed program that are published; of a longer one only its hash is."""
_MAX_TEXT = 1 << 26
_SHOWN = 120
"""Characters of a line that are shown."""


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A program that a process is compiling."""

    name: str
    """``jit_step``."""
    digest: str
    """The same for the same program, wherever its lines are."""
    text: str
    """Without locations; "": too long to be published."""
    at: str
    """``train.py:34``; "": not known."""

    def to_json(self) -> dict[str, str]:
        packed = zlib.compress(self.text.encode())
        text = base64.b64encode(packed).decode() if len(packed) <= _MOST else ""
        return {"name": self.name, "digest": self.digest, "text": text, "at": self.at}

    @classmethod
    def from_json(cls, found: Any) -> Compilation:
        """Raises ValueError, TypeError, KeyError or zlib.error for what `to_json` does not make."""
        name, digest, packed, at = (str(found[k]) for k in ("name", "digest", "text", "at"))
        data = base64.b64decode(packed)
        text = zlib.decompressobj().decompress(data, _MAX_TEXT).decode() if data else ""
        return cls(name, digest, text, at)


_running: dict[int, tuple[float, Compilation]] = {}
"""What each thread is compiling, and since when."""


def note() -> None:
    """From now on notes the programs of several devices while they are compiled."""
    _jax_compat.install(
        "compilations",
        "a job in which processes compile different programs is not explained.",
        lambda: _jax_compat.around_compilations(_note),
    )


def _note(module: Any, devices: int, run: Callable[[], Any]) -> Any:
    if devices < 2:
        return run()
    thread = threading.get_ident()
    _running[thread] = (time.monotonic(), _described(module))
    try:
        return run()
    finally:
        del _running[thread]


def _described(module: Any) -> Compilation:
    name, text = _jax_compat.text_of_module(module)
    line = frames.innermost()
    at = f"{line.file.rpartition('/')[2]}:{line.line}" if line else ""
    return Compilation(name, hashlib.sha256(text.encode()).hexdigest()[:12], text, at)


def current() -> Compilation | None:
    """The program that has been compiled for longest; None: none is being compiled."""
    first = min(list(_running.values()), key=lambda one: one[0], default=None)
    return first[1] if first else None


def difference(found: Mapping[int, Compilation]) -> str:
    """How the programs differ that processes compile, in words; "": they are the same."""
    groups: dict[str, list[int]] = {}
    for process, one in sorted(found.items()):
        groups.setdefault(one.digest, []).append(process)
    if len(groups) < 2:
        return ""
    members = list(groups.values())
    first, second, *rest = (found[some[0]] for some in members)
    verb = "compiles" if len(members[0]) == 1 else "compile"
    named = "another program of that name" if second.name == first.name else second.name
    more = f", and {counted(len(rest), 'program')} more are compiled" if rest else ""
    text = (
        f"{processes(members[0])} {verb} {first.name}{_at(first)}, {processes(members[1])} "
        f"{named}{_at(second)}{more}. On GPUs XLA waits until all processes compile one program."
    )
    if first.text and second.text and (pair := _first_difference(first.text, second.text)):
        lines = [f"  {processes(some)}: {line}" for some, line in zip(members, pair, strict=False)]
        text = "\n".join([text, "The first line in which the two differ:", *lines])
    return text


def _at(one: Compilation) -> str:
    return f" ({one.at})" if one.at else ""


def _first_difference(first: str, second: str) -> tuple[str, str] | None:
    ours, theirs = first.splitlines(), second.splitlines()
    pairs = list(zip(ours, theirs, strict=False))
    # The first line of a module is its name, which has been told.
    for one, other in pairs[1:]:
        if one != other:
            return _shortened(one), _shortened(other)
    return None


def _shortened(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 4]} ..."
