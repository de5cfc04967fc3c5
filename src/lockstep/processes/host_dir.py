"""The private directory that the processes of one host share when a cluster started them.

It has the same contents as the directory of ``lockstep run`` (`run_dir`). The first agent creates
it, and the last one removes it. Its name is computed from variables that all processes of the job
have, so it needs no communication. Each agent holds a shared lock while it lives. An agent that
gets the exclusive lock is therefore alone, and may remove what an earlier job of that name has
left, or the whole directory.
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
from lockstep.processes import run_dir

_PAUSE_SECONDS = 0.05
_TRIES = 100
"""The last agent of an earlier job may remove the directory at any moment, so try again."""


class HostDir:
    """One process's share in the directory of its host.

    ``names`` identify the job: equal in all its processes, and different for every other job that
    runs at the same time. If the directory cannot be shared, this process gets one of its own and
    publishes its path to the others. Raises `LaunchError` when neither can be created.

    ``attempt``: None where it is not known yet; `take_attempt` makes the folder then.
    """

    def __init__(self, names: Sequence[str], attempt: int | None, process: int) -> None:
        mark = hashlib.sha256("\0".join([str(os.getuid()), *names]).encode()).hexdigest()[:16]
        top = Path(os.environ.get("TMPDIR") or "/tmp")
        self.path = top / f"{run_dir.PREFIX}{mark}"
        self.held = -1
        """The descriptor that holds the lock."""
        self._is_shared = True
        self.folder = self.path
        """That of this process, once its attempt is known."""
        try:
            self._join()
            if attempt is not None:
                self.folder = self._make(attempt, process)
        except OSError:  # another user's directory, or another job's process has this folder
            self._let_go()
            self._is_shared = False
            self.path, self.held = run_dir.make_locked()
            if attempt is not None:
                self.folder = self._make(attempt, process)
        with contextlib.suppress(OSError):
            run_dir.sweep(top)

    def take_attempt(self, attempt: int, process: int) -> None:
        """Makes this process's folder in an attempt that is known by now."""
        self.folder = self._make(attempt, process, exist_ok=True)

    def share_secret(self) -> None:
        """Creates the secret of a job that runs on this host only.

        If the directory is not shared, there is no secret, and the job has no key, as without a
        launcher. Raises `LaunchError` when it cannot be written.
        """
        if self._is_shared:
            run_dir.share_secret(self.path)

    def _make(self, attempt: int, process: int, exist_ok: bool = False) -> Path:
        """The folder of this process."""
        folder = _run_files.process_dir(self.path, attempt, process)
        folder.mkdir(parents=True, exist_ok=exist_ok)
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
            # The last agent of an earlier job may have removed the directory (not found), or hold
            # the exclusive lock to do so (blocking).
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                fcntl.flock(self.held, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.path.samestat(os.stat(self.path), os.fstat(self.held)):
                    return
            self._let_go()
            time.sleep(_PAUSE_SECONDS)
        raise OSError("other processes keep removing it, or keep it locked")

    def _is_alone(self) -> bool:
        """Takes the exclusive lock; False when another process holds the lock."""
        try:
            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_last(self) -> bool:
        """Releases this process's share; True for the last process, which may remove everything.

        If several processes leave at the same time, exactly one of them is the last.
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
