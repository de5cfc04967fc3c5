"""The private directory that the processes of one host share, where a cluster started them.

It is what ``lockstep run`` makes for a run (`run_dir`), made by whoever comes first, and removed by
the last. Nobody tells them where it is: its name comes from what all of them know of the job. Each
agent holds a lock that others may share as long as it lives, so whoever gets the lock for itself
is alone: it may clear what an earlier job of that name has left, or remove everything.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from lockstep import _run_files
from lockstep.launch import run_dir

_PAUSE_SECONDS = 0.05
_TRIES = 100
"""The last of an earlier job may remove the directory just when it was found."""


class HostDir:
    """One process's share in the directory of its host.

    ``names`` say which job it is: the same in all its processes, and in no other job that runs at
    the same time. Where the directory cannot be shared it is one of this process's own, which the
    others find by what it says to them. Raises `LaunchError` where there can be none.
    """

    def __init__(self, names: Sequence[str], attempt: int, process: int) -> None:
        mark = hashlib.sha256("\0".join([str(os.getuid()), *names]).encode()).hexdigest()[:16]
        top = Path(os.environ.get("TMPDIR") or "/tmp")
        self.path = top / f"{run_dir.PREFIX}{mark}"
        self.held = -1
        """The descriptor that holds the lock."""
        self._is_shared = True
        try:
            self._join()
            self.folder = self._make(attempt, process)
        except OSError:  # somebody else's, or the same process of another job is there
            self._let_go()
            self._is_shared = False
            self.path, self.held = run_dir.make_locked()
            self.folder = self._make(attempt, process)
        with contextlib.suppress(OSError):
            run_dir.sweep(top)

    def share_secret(self) -> None:
        """For a job of this host alone; others do not have it.

        A directory of one process's own has none: then the job has no key, as without a launcher.
        Raises `LaunchError` where it cannot be written.
        """
        if self._is_shared:
            run_dir.share_secret(self.path)

    def _make(self, attempt: int, process: int) -> Path:
        """The folder of this process."""
        folder = _run_files.process_dir(self.path, attempt, process)
        folder.mkdir(parents=True)
        return folder

    def _join(self) -> None:
        for _ in range(_TRIES):
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
            try:
                self.held = _open_private(self.path)
            except FileNotFoundError:
                continue
            if self._is_alone():
                _clear(self.path)
            # Not there: the last of an earlier job has removed it. Held: that one is about to.
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                fcntl.flock(self.held, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.path.samestat(os.stat(self.path), os.fstat(self.held)):
                    return
            self._let_go()
            time.sleep(_PAUSE_SECONDS)
        raise OSError("others remove it again and again, or do not let go of it")

    def _is_alone(self) -> bool:
        """Whether nobody else holds the lock; if so, nobody else gets it."""
        try:
            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_last(self) -> bool:
        """Lets go of this process's share; whether it was the last, and may now do what it likes.

        Of several that leave at a time exactly one is the last.
        """
        return not self._is_shared or self._is_alone()

    def _let_go(self) -> None:
        if self.held >= 0:
            os.close(self.held)
        self.held = -1


def _open_private(path: Path) -> int:
    """Raises OSError for a directory that others made, or may enter."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    about = os.fstat(held)
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        os.close(held)
        raise PermissionError(f"{path} is not private")
    return held


def _clear(path: Path) -> None:
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
