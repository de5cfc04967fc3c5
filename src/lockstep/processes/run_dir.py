"""The private directory of a run, and the removal of those whose launcher was killed.

A launcher removes its own directory. If both of its processes were killed at once (see guard), the
next run of the same user removes it. A directory is in use while it is locked: the lock ends with
the processes that hold it, and unlike a process id it works across containers that share the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path

from lockstep._errors import LaunchError
from lockstep._run_files import SECRET

PREFIX = "lockstep-run-"
STALE_SECONDS = 60.0
"""A younger directory may just have been created and not be locked yet."""


def share_secret(path: Path) -> None:
    """Creates the secret that the processes of this run on this host share, if it is not there.

    With it they authenticate their messages to each other (`lockstep.job.job_key`). Raises
    `LaunchError` when it cannot be written.
    """
    own = path / f"{SECRET}.{os.getpid()}"
    try:
        write_secret(own, os.urandom(32).hex())
        # A link makes the file complete when it gets its name, and never replaces one.
        with contextlib.suppress(FileExistsError):
            os.link(own, path / SECRET)
        own.unlink()
    except OSError as error:
        raise LaunchError(
            f"cannot write the secret of this run in {path}: {error.strerror}."
        ) from error


def write_secret(path: Path, text: str) -> None:
    """Makes a file that only this user can read, and which is not there yet. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(text)


def make_locked() -> tuple[Path, int]:
    """A new directory that only this user can enter, and the descriptor that holds its lock: it is
    locked as long as this process or a child that it forks lives.

    Raises `LaunchError` when it cannot be created.
    """
    # tempfile.mkdtemp does the same, after 10 ms of imports.
    top = Path(os.environ.get("TMPDIR") or "/tmp")
    path = top / f"{PREFIX}{os.urandom(8).hex()}"
    try:
        path.mkdir(mode=0o700)
    except OSError as error:
        raise LaunchError(
            f"cannot create a private directory in {top}: {error.strerror}. "
            "Set TMPDIR to a writable directory."
        ) from error
    held = _lock_with_checks(path)
    with contextlib.suppress(OSError):
        sweep(top)
    return path, held


def _lock_with_checks(path: Path) -> int:
    """Takes the lock, as `_lock` does, and tries what else a run needs of the file system.

    Raises `LaunchError` where that is not possible; ``path`` is then removed.
    """
    held, what = -1, "take a lock (flock)"
    try:
        held = _lock(path)
        one, other = path / "one", path / "other"
        what = "make a FIFO"
        os.mkfifo(one, 0o600)
        what = "make a hard link"
        os.link(one, other)
        one.unlink()
        other.unlink()
    except OSError as error:
        if held >= 0:
            os.close(held)
        shutil.rmtree(path, ignore_errors=True)
        raise LaunchError(
            f"cannot {what} in {path.parent}: {error.strerror}. File systems of a network or of "
            "another system may not have that: set TMPDIR to a directory of a local disk, or of "
            "memory."
        ) from error
    return held


def _lock(path: Path) -> int:
    """Takes the lock and returns the descriptor that holds it. Raises OSError if it is taken."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def sweep(top: Path) -> None:
    """Removes this user's directories that are not locked."""
    for path in top.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            about = path.lstat()
            if about.st_uid == os.getuid() and about.st_mtime < time.time() - STALE_SECONDS:
                held = _lock(path)
                shutil.rmtree(path, ignore_errors=True)
                os.close(held)
