"""Opening what another process of this host and user has in memory, by way of /proc.

Which descriptor it is comes from that process through JAX's key-value store. What is opened is
looked at before it can be read or written: the number may be wrong, used again by now, or a lie.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import Any

_GONE = " (deleted)"


def open_of(pid: int, fd: Any, names: Sequence[str], flags: int) -> int:
    """A descriptor of the memory file that process ``pid`` has open as ``fd``.

    ``names`` are those that it may have (memfd_create(2)). Raises OSError where it cannot be
    opened, or is something else than such a file of this user's.
    """
    if type(fd) is not int or fd < 0 or pid <= 0:
        raise OSError(errno.EBADF, "not the number of a file descriptor")
    # A path alone: to open a device or a pipe could do something already.
    path = os.open(f"/proc/{pid}/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
    try:
        found, link = os.fstat(path), os.readlink(f"/proc/self/fd/{path}")
        is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if not is_ours or link not in {f"/memfd:{name}{_GONE}" for name in names}:
            raise OSError(errno.EPERM, f"it is not the memory file {' or '.join(names)} of ours")
        return os.open(f"/proc/self/fd/{path}", flags | os.O_CLOEXEC)
    finally:
        os.close(path)
