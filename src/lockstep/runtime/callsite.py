"""Which lines of the user's program make a collective: what ``--strict`` compares.

With one device per process, XLA runs a collective on the user's thread, and its lines are on the
stack. With several, it runs on threads of XLA's, where there is nothing of the program to be seen.
Then (`note_executions`) the lines are noted on the user's thread, when it executes a program, and
every execution is waited for: while one runs, the thread that asked for it is inside it. So a
collective on a thread without lines belongs to the one execution there is. Where several threads
execute programs at a time, from different lines, the site is not known, and agrees with all.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from lockstep import _jax_compat

UNKNOWN = 0
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"

_executing: dict[int, int] = {}
"""Threads that are executing a program now, and the site of each."""


@functools.cache
def note_executions() -> None:
    """From now on the lines of every execution are noted, and it is waited for.

    This closes JAX's shortcut to a program that ran before, and so costs more than all the rest.
    """
    _jax_compat.around_executions(_note)


def of_this_collective() -> int:
    """A hash of the lines of the user's program that make this call; `UNKNOWN` where unclear.

    The engine asks, on the thread that runs the collective.
    """
    own = _site(sys._getframe(1))
    if own != UNKNOWN:
        return own
    sites = set(_executing.values())
    return sites.pop() if len(sites) == 1 else UNKNOWN


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
        if not _is_library(code.co_filename):
            places.append((os.path.basename(code.co_filename), code.co_name, frame.f_lineno))
        frame = frame.f_back
    if not places:
        return UNKNOWN
    digest = hashlib.blake2b(repr(places).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1


@functools.cache
def _is_library(file: str) -> bool:
    return any(part in file for part in ("/site-packages/", _PACKAGE, "<frozen"))
