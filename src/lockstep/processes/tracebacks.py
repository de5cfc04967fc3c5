"""Removes the frames of libraries from tracebacks, so that the user's program remains. Pure.

Consecutive frames of jax, other installed packages, Python and the launcher become one line.
``--full-tracebacks`` or JAX_TRACEBACK_FILTERING=off keep them.
"""

from __future__ import annotations

import itertools
import re
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

from lockstep._jax_compat import texts

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+), in ')
CRASHED = "Current thread "
"""How faulthandler's stack of the thread that crashed begins."""
_FRAME_OF_CRASH = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_SYNTAX = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+)$')
"""The line of a SyntaxError, which runs no function."""
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(?P<package>[^/]+?)(?:\.py)?(?:/|$)")
_OWN_NAME = "lockstep"
_OURS = f"{Path(__file__).parents[1]}/"
_PYTHONS_OWN = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_HINT = " (shown with --full-tracebacks)"
_ENGINE = re.compile(texts.ENGINES, re.MULTILINE)
_CHAINED = re.compile(r"^(?:During handling of the above|The above) exception", re.MULTILINE)


def jax_shows_all(environ: Mapping[str, str]) -> bool:
    """Whether the user's setting of JAX requests all frames."""
    return environ.get("JAX_TRACEBACK_FILTERING", "").lower() == "off"


def folded(text: str, full: bool = False) -> str:
    """``text`` with the frames of libraries folded; unchanged if ``full``."""
    if full:
        return text
    text = texts.NOTE_OF_FRAMES.sub("", text)
    frames = [frame for line in text.split("\n") if (frame := _FRAME.match(line))]
    if all(_package(frame["file"]) is not None for frame in frames):
        return text  # the program itself is an installed package: show its lines
    found: list[str] = []
    hidden: list[str] = []
    skips, hinted = False, False

    def fold() -> None:
        nonlocal hinted
        if hidden:
            # A hook of ours between frames of jax is of no interest to the user.
            kept = [name for name in hidden if name != _OWN_NAME or "jax" not in hidden]
            names = ", ".join(dict.fromkeys(kept))
            count = f"{len(hidden)} frame{'s' * (len(hidden) > 1)}"
            found.append(f"  ... {count} of {names}{'' if hinted else _HINT}")
            hidden.clear()
            hinted = True

    for line in text.split("\n"):
        if frame := _FRAME.match(line):
            package = _package(frame["file"])
            skips = package is not None
            if package is not None:
                hidden.append(package)
                continue
        elif skips and line.startswith("    "):
            continue
        skips = False
        fold()
        found.append(line)
    fold()
    return "\n".join(found)


def _package(file: str) -> str | None:
    """The library of a source file; None: it is the user's."""
    if file.startswith(_OURS):
        return _OWN_NAME
    if installed := _INSTALLED.match(file):
        return installed["package"]
    if file.startswith("<frozen ") or file.startswith(_PYTHONS_OWN):
        return "Python"
    return None


def place(text: str) -> str:
    """``train.py:14 in step``, the innermost line of the user's program in a traceback.

    Empty: there is none, as in a program that is an installed package.
    """
    found = ""
    for line in text.split("\n"):
        frame = _FRAME.match(line)
        if frame and _package(frame["file"]) is None:
            found = _shown(frame["file"], frame["line"], line[frame.end() :])
        elif not frame and (wrong := _SYNTAX.match(line)) and _package(wrong["file"]) is None:
            found = f"{Path(wrong['file']).name}:{wrong['line']}"
    return found


def place_of_crash(lines: Iterable[str]) -> str:
    """The same in the stacks that faulthandler writes, for the thread that crashed."""
    stack = itertools.dropwhile(lambda line: not line.startswith(CRASHED), lines)
    stack = itertools.takewhile(str.strip, stack)  # another thread's may follow
    frames = filter(None, map(_FRAME_OF_CRASH.match, stack))
    own = (_shown(*frame.groups()) for frame in frames if _package(frame["file"]) is None)
    return next(own, "")


def _shown(file: str, line: str, function: str) -> str:
    within = "" if function == "<module>" else f" in {function}"
    return f"{Path(file).name}:{line}{within}"


def parts(text: str) -> tuple[str, str] | None:
    """The stack and the message of an engine's error; None if there are other errors too."""
    text = texts.NOTE_OF_FRAMES.sub("", text)
    found = None if _CHAINED.search(text) else _ENGINE.search(text)
    return (text[: found.start()], text[found.end() :]) if found else None
