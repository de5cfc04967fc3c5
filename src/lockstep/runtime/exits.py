"""How a process ended that is none of ours, from the kernel: Linux 6.15 and later.

Who holds a pidfd may ask (PIDFD_GET_INFO with PIDFD_INFO_EXIT, include/uapi/linux/pidfd.h), once
its parent has been told.
"""

from __future__ import annotations

import fcntl
import os
import struct

from lockstep.record.run import Exit

_INFO = struct.Struct("<QQ11Ii")
"""Mask, control group, eleven numbers of processes and users, exit status."""
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_EXIT = 1 << 3


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
