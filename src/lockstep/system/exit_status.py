"""How a process ended that is none of ours, from the kernel: Linux 6.15 and later.

Who holds a pidfd may ask (PIDFD_GET_INFO with PIDFD_INFO_EXIT, include/uapi/linux/pidfd.h), once
its parent has been told.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Callable

from lockstep._run_files import Exit

_INFO = struct.Struct("<QQ11Ii")
"""Mask, control group, eleven numbers of processes and users, exit status."""
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_EXIT = 1 << 3


_WRITING_PATIENCE = 0.3
"""Seconds the launcher may take to write down how a process ended."""
_REAPING_PATIENCE = 0.1
"""Seconds another launcher may take to ask for it: then the kernel tells us too."""


def ending(pidfd: int, written: Callable[[], Exit | None] | None) -> Exit | None:
    """How a process that has ended did so; None when nobody tells.

    ``written`` reads what a launcher writes down, who knows more than the kernel; None without one.
    """
    end = time.monotonic() + (_WRITING_PATIENCE if written else _REAPING_PATIENCE)
    while time.monotonic() < end:
        try:
            found = written() if written else exit_of(pidfd)
        except OSError:
            break
        if found is not None:
            return found
        time.sleep(0.01)
    with contextlib.suppress(OSError):  # who started it may be dead too
        return exit_of(pidfd)
    return None


def exit_of(pidfd: int) -> Exit | None:
    """None: not yet. Raises OSError when this kernel does not tell."""
    asked = bytearray(_INFO.pack(_EXIT, *[0] * 13))
    fcntl.ioctl(pidfd, _GET_INFO, asked)
    mask, *_, status = _INFO.unpack(asked)
    if not mask & _EXIT:
        return None
    if os.WIFSIGNALED(status):
        return Exit(signal=os.WTERMSIG(status))
    return Exit(exit_code=os.WEXITSTATUS(status))
