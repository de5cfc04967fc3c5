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
from typing import Any, NoReturn

from lockstep import _config, _run_files
from lockstep._jax_compat.texts import INTERRUPT
from lockstep._stderr import print_line
from lockstep.callsites import frames
from lockstep.watchdog import main_thread

_NAME = "jax.errors.JaxRuntimeError"
"""What the exception is called in tracebacks."""
_END_SECONDS = 3.0
"""Seconds for the main thread to get the exception, before the process is ended without it."""
_EXIT_SECONDS = 5.0
"""Seconds for a program that has got the exception to end."""


def end_with(text: str, folder: Path | None, has_ended: bool = False) -> NoReturn:
    """Raises ``text`` in the main thread, and ends the process if that stays in native code.

    A kernel of NCCL that waits cannot be interrupted. ``folder`` is where the launcher looks for
    the error. ``has_ended``: the program has ended, and gets no exception any more.
    """
    if not has_ended and _raise_in_main_thread(text).wait(_END_SECONDS):
        time.sleep(_EXIT_SECONDS)  # its exit handlers may wait for what never ends
        _exit()
    _note_error(text, folder)
    print_line(text)
    _exit()


def _exit() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it is closed, or was replaced by the program
            stream.flush()
    os._exit(1)


def _raise_in_main_thread(text: str) -> threading.Event:
    """Raises what a collective of the engine would raise, as soon as the thread runs Python.

    The event that is returned is set by then.
    """
    import jax

    base: Any = jax.errors.JaxRuntimeError
    raised = threading.Event()

    class JaxRuntimeError(base):
        def __init__(self, *_: Any) -> None:
            super().__init__(text)
            raised.set()

    setattr(JaxRuntimeError, INTERRUPT, True)
    JaxRuntimeError.__module__, _, JaxRuntimeError.__qualname__ = _NAME.rpartition(".")
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(JaxRuntimeError))
    return raised


def _note_error(text: str, folder: Path | None) -> None:
    if folder is None:
        return
    frame = main_thread.frame()
    stack = traceback.extract_stack(frame) if frame else []
    # A program that has ended has no line of its own in the stack.
    is_in_program = any(not frames.is_on_the_way(each.filename) for each in stack)
    trace = "".join(traceback.format_list(stack)) if is_in_program else ""
    whole = f"Traceback (most recent call last):\n{trace}{_NAME}: {text}\n"
    with contextlib.suppress(Exception):
        summary = f"{_NAME}: {text.splitlines()[0]}"
        _run_files.ErrorRecord(time.monotonic(), 1, summary, whole).write(folder)
        _run_files.ring(Path(_config.current().run_dir or ""))
