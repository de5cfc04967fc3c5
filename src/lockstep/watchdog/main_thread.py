"""What the main thread of this process does at the moment."""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType

from lockstep.callsites import frames

_FRAMES = 12
_COMPILE_OR_EXECUTE = tuple(
    os.path.join("jax", "_src", *names) for names in (["compiler.py"], ["interpreters", "pxla.py"])
)


def frame() -> FrameType | None:
    """The innermost frame of the main thread."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def inside(at: FrameType | None) -> str:
    """The function of JAX in which a thread compiles or executes a program; "": it is elsewhere."""
    if at is None or not at.f_code.co_filename.endswith(_COMPILE_OR_EXECUTE):
        return ""
    return at.f_code.co_name


def stack(at: FrameType | None) -> str:
    """The Python stack from a frame on, the innermost line first, without Lockstep's own."""
    lines = []
    while at is not None and len(lines) < _FRAMES:
        code = at.f_code
        if not code.co_filename.startswith(frames.PACKAGE) and "<frozen" not in code.co_filename:
            lines.append(f'File "{code.co_filename}", line {at.f_lineno} in {code.co_name}')
        at = at.f_back
    return "\n".join(lines)


def place(at: FrameType | None) -> str:
    """The line of the user's program on the stack of a frame, ``train.py:34``; "": nowhere."""
    line = frames.innermost(at) if at else None
    return line.short if line else ""
