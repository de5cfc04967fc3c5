"""A file system like one of a network, by FUSE: it mirrors a folder and lacks what it is told.

    python network_fs.py FOLDER MOUNTPOINT [locks] [sockets]

Stays in the foreground until it is unmounted.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable
from typing import Any

import mfusepy as fuse

DONE = 0
TIMES = ("st_atime", "st_mtime", "st_ctime")
OTHERS = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")
SIZES = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree")


class Mirror(fuse.Operations):
    """The files of ``root``, without what ``lacks`` names."""

    use_ns = True

    def __init__(self, root: str, lacks: frozenset[str]) -> None:
        self.root, self.lacks = root, lacks

    def at(self, path: str) -> str:
        return self.root + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self.at(path))
        times = {name: getattr(found, f"{name}_ns") for name in TIMES}
        return {name: getattr(found, name) for name in OTHERS} | times

    def readdir(self, path: str, fh: int) -> Iterable[str]:
        return [".", "..", *os.listdir(self.at(path))]

    def mknod(self, path: str, mode: int, dev: int) -> int:
        if "sockets" in self.lacks and stat.S_ISSOCK(mode):
            raise fuse.FuseOSError(errno.EPERM)
        os.mknod(self.at(path), mode, dev)
        return DONE

    def link(self, target: str, source: str) -> int:
        os.link(self.at(source), self.at(target))
        return DONE

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self.at(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self.at(path), flags)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self.at(path) if fh is None else fh, length)
        return DONE

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return DONE

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self.at(path), mode)
        return DONE

    def rmdir(self, path: str) -> int:
        os.rmdir(self.at(path))
        return DONE

    def unlink(self, path: str) -> int:
        os.unlink(self.at(path))
        return DONE

    def rename(self, old: str, new: str) -> int:
        os.rename(self.at(old), self.at(new))
        return DONE

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self.at(path), mode)
        return DONE

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self.at(path))
        return {name: getattr(found, name) for name in SIZES}


class WithoutLocks(Mirror):
    """The kernel keeps the locks of a file system that has no such operations."""

    def lock(self, path: str, fh: int, cmd: int, lock: Any) -> int:
        raise fuse.FuseOSError(errno.ENOLCK)

    def flock(self, path: str, fh: int, op: int) -> int:
        raise fuse.FuseOSError(errno.ENOLCK)


def main() -> None:
    root, where, *lacks = sys.argv[1:]
    kind = WithoutLocks if "locks" in lacks else Mirror
    fuse.FUSE(kind(root, frozenset(lacks)), where, foreground=True, nothreads=True)


if __name__ == "__main__":
    main()
