"""The exit status of a process that is no child of this one, from Linux 6.15 on.

The holder of a pidfd can read it (PIDFD_GET_INFO with PIDFD_INFO_EXIT, include/uapi/linux/pidfd.h)
once the parent has reaped the process.
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


_WRITING_TIMEOUT = 0.3
"""Seconds that the launcher may take to write how a process ended."""
_REAPING_TIMEOUT = 0.1
"""Seconds that another launcher may take to reap the process, before the kernel has its status."""


def ending(pidfd: int, written: Callable[[], Exit | None] | None) -> Exit | None:
    """How a process ended; None: not known.

    ``written`` reads the exit record of a launcher, which has more than the kernel; None: there is
    no launcher.
    """
    end = time.monotonic() + (_WRITING_TIMEOUT if written else _REAPING_TIMEOUT)
    while time.monotonic() < end:
        try:
            found = written() if written else exit_of(pidfd)
        except OSError:
            break
        if found is not None:
            return found
        time.sleep(0.01)
    with contextlib.suppress(OSError):  # the launcher may be dead too
        return exit_of(pidfd)
    return None


def exit_of(pidfd: int) -> Exit | None:
    """The exit; None: not reaped yet. Raises OSError when this kernel does not support it."""
    info = bytearray(_INFO.pack(_EXIT, *[0] * 13))
    fcntl.ioctl(pidfd, _GET_INFO, info)
    mask, *_, status = _INFO.unpack(info)
    if not mask & _EXIT:
        return None
    if os.WIFSIGNALED(status):
        return Exit(signal=os.WTERMSIG(status))
    return Exit(exit_code=os.WEXITSTATUS(status))
