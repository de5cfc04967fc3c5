"""Ends a process whose collective will not end: by an exception where it runs Python."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from lockstep import _config, _run_files
from lockstep.callsites import frames

_END_SECONDS = 3.0
"""Seconds for the main thread to get the exception, before the process is ended without it."""
_EXIT_SECONDS = 5.0
"""Seconds for a program that has got the exception to end."""


def end_with(text: str, folder: Path | None) -> NoReturn:
    """Raises ``text`` in the main thread, and ends the process if that stays in native code.

    A kernel of NCCL that waits cannot be interrupted. ``folder`` is where the launcher looks for
    the error.
    """
    error, raised = _raise_in_main_thread(text)
    if raised.wait(_END_SECONDS):
        time.sleep(_EXIT_SECONDS)  # its exit handlers may wait for what never ends
        os._exit(1)
    _note_error(text, error, folder)
    say(text)
    os._exit(1)


def _raise_in_main_thread(text: str) -> tuple[type, threading.Event]:
    """Raises what a collective of the engine would raise, as soon as the thread runs Python.

    The event is set by then.
    """
    import jax

    base: Any = jax.errors.JaxRuntimeError
    raised = threading.Event()

    class JaxRuntimeError(base):
        def __init__(self, *_: Any) -> None:
            super().__init__(text)
            raised.set()

    JaxRuntimeError.__module__ = "jax.errors"
    JaxRuntimeError.__qualname__ = "JaxRuntimeError"
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(JaxRuntimeError))
    return JaxRuntimeError, raised


def _note_error(text: str, error: type, folder: Path | None) -> None:
    if folder is None:
        return
    name, frame = f"jax.errors.{error.__name__}", main_frame()
    stack = traceback.extract_stack(frame) if frame else []
    # A program that has ended has no line of its own in the stack.
    is_in_program = any(not frames.is_on_the_way(each.filename) for each in stack)
    trace = "".join(traceback.format_list(stack)) if is_in_program else ""
    whole = f"Traceback (most recent call last):\n{trace}{name}: {text}\n"
    with contextlib.suppress(Exception):
        summary = f"{name}: {text.splitlines()[0]}"
        _run_files.ErrorRecord(time.monotonic(), 1, summary, whole).write(folder)
        _run_files.ring(Path(_config.current().run_dir or ""))


def main_frame() -> FrameType | None:
    """The innermost frame of the main thread."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stderr is closed
        print(text, file=sys.stderr, flush=True)
