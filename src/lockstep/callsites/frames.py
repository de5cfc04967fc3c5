"""Which lines of the user's program, and which calls on them, make a collective.

This is what ``--strict`` compares.

With one device per process, XLA runs a collective on the user's thread, and its lines are on the
stack. With several, it runs on threads of XLA's, where there is nothing of the program to be seen.
Then (`note_executions`) the lines are noted on the user's thread, when it executes a program, and
every execution is waited for: while one runs, the thread that asked for it is inside it. So a
collective on a thread without lines belongs to the one execution there is. Where several threads
execute programs at a time, from different lines, the site is not known, and agrees with all.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from lockstep import _jax_compat
from lockstep.flight_recorder.model import Caller

UNKNOWN = 0
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_PYTHONS_OWN = f"{Path(os.__file__).parent}{os.sep}"
_SCRIPTS = f"{sysconfig.get_path('scripts')}{os.sep}"
"""Of installed programs: no more than a call."""
_AHEAD_OF_TIME = f"jax{os.sep}_src{os.sep}stages.py"
_PACKAGES = ("/site-packages/", "/dist-packages/")

_executing: dict[int, int] = {}
"""Threads that are executing a program now, and the site of each."""
_known: dict[int, tuple[Caller, ...]] = {}
_path = ""
_columns_of: dict[tuple[int, int], tuple[str, CodeType]] = {}
"""Of each instruction that was met; the code is kept, so that its id stays its own."""


@functools.cache
def note_executions() -> None:
    """From now on the lines of every execution are noted, and it is waited for.

    This closes JAX's shortcut to a program that ran before, and so costs more than all the rest.
    """
    _jax_compat.install(
        "executions of programs",
        "--strict compares no lines where a process has several devices.",
        lambda: _jax_compat.around_executions(_note),
    )


def keep_in(path: str) -> None:
    """From now on the lines of each site are written to a file, for the other processes."""
    global _path
    _path = path
    for site, callers in list(_known.items()):
        _write(site, callers)


def known() -> dict[int, tuple[Caller, ...]]:
    """The lines of each site that was met, the innermost first."""
    return dict(_known)


def of_this_collective() -> int:
    """A hash of the places in the user's program that make this call; `UNKNOWN` where unclear.

    The engine asks, on the thread that runs the collective.
    """
    own = _site(sys._getframe(1))
    if own != UNKNOWN:
        return own
    sites = set(_executing.values())
    return sites.pop() if len(sites) == 1 else UNKNOWN


def innermost() -> Caller | None:
    """The line of the user's program that led here, on this thread; None where there is none.

    Where the program is installed as libraries are, the line of what called JAX.
    """
    library, frame = None, sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_on_the_way(file):
            here = Caller(file, frame.f_lineno or 0, frame.f_code.co_name)
            if not is_library(file):
                return here
            library = library or here
        frame = frame.f_back
    return library


def dispatching_thread() -> str:
    """The name of this thread, if it calls the program that is being compiled; else "".

    ``jitted.lower(x).compile()`` calls nothing yet: another thread may do so later.
    """
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile" and code.co_filename.endswith(_AHEAD_OF_TIME):
            return ""
        frame = frame.f_back
    return threading.current_thread().name


def _note(execute: Callable[[], Any]) -> Any:
    thread = threading.get_ident()
    # A host callback may execute programs while the program that calls it runs.
    outer = _executing.get(thread)
    _executing[thread] = _site(sys._getframe(1))
    try:
        return execute()
    finally:
        if outer is None:
            del _executing[thread]
        else:
            _executing[thread] = outer


def _site(frame: FrameType | None) -> int:
    places = []
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename):
            columns = _columns(code, frame.f_lasti)
            places.append((code.co_filename, frame.f_lineno, code.co_name, columns))
        frame = frame.f_back
    if not places:
        return UNKNOWN
    # The processes may have the program in different folders.
    same = [(os.path.basename(file), *rest) for file, *rest in places]
    digest = hashlib.blake2b(repr(same).encode(), digest_size=4).digest()
    site = int.from_bytes(digest, "little") | 1
    if site not in _known:
        _known[site] = tuple(Caller(*place) for place in places)
        _write(site, _known[site])
    return site


def _write(site: int, callers: tuple[Caller, ...]) -> None:
    """Before the collective begins, so that whoever sees its record finds its lines."""
    places = [[c.file, c.line, c.function, c.columns] for c in callers]
    line = json.dumps({"site": site, "callers": places})
    # The job goes on without the lines where they cannot be written.
    with contextlib.suppress(OSError):
        if _path:
            with open(_path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")


def _columns(code: CodeType, instruction: int) -> str:
    """Where on its lines the call is that the frame is in; "" where Python does not know."""
    key = id(code), instruction
    if key not in _columns_of:
        positions = itertools.islice(code.co_positions(), max(0, instruction) // 2, None)
        first, last, begin, end = next(positions)
        text = ""
        if begin is not None and end is not None:
            text = f"{begin + 1}-{end}" if first == last else f"{begin + 1}-{last}:{end}"
        _columns_of[key] = text, code
    return _columns_of[key][0]


@functools.cache
def is_library(file: str) -> bool:
    """Whether the file is of an installed package, or Lockstep's."""
    return any(part in file for part in (*_PACKAGES, _PACKAGE, "<frozen"))


@functools.cache
def is_on_the_way(file: str) -> bool:
    """Whether it is Lockstep's, JAX's or Python's: what lies between the user and a compiler."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in ("jax", "jaxlib"))
    folders = (f"{Path(file).parent}{os.sep}" for file in files if file)
    if file.startswith((_PACKAGE, _SCRIPTS, "<frozen", *folders)):
        return True
    # Libraries may be installed below what is Python's own.
    return file.startswith(_PYTHONS_OWN) and not any(part in file for part in _PACKAGES)
