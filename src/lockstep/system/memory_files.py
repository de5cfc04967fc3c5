"""Opens a memory file of another process of this host and user, by way of /proc.

The other process publishes the number of its descriptor in JAX's key-value store. The file is
checked before it can be read or written, since the number may be wrong, reused, or forged.
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

    ``names`` are the permitted names (memfd_create(2)). Raises OSError when it cannot be opened, or
    is no memory file of this user with one of these names.
    """
    if type(fd) is not int or fd < 0 or pid <= 0:
        raise OSError(errno.EBADF, "not the number of a file descriptor")
    # O_PATH opens nothing yet: opening a device or a pipe may have side effects.
    path = os.open(f"/proc/{pid}/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
    try:
        found, link = os.fstat(path), os.readlink(f"/proc/self/fd/{path}")
        is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if not is_ours or link not in {f"/memfd:{name}{_GONE}" for name in names}:
            raise OSError(errno.EPERM, f"it is not the memory file {' or '.join(names)} of ours")
        return os.open(f"/proc/self/fd/{path}", flags | os.O_CLOEXEC)
    finally:
        os.close(path)
