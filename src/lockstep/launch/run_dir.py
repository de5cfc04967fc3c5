"""The private directory of a run, and the end of those that no launcher is left to remove.

A launcher removes its own. Where somebody killed both of its halves at once (see guard), the next
run of the same user does. The sign of life is a lock on the directory: it ends with the processes
that hold it, and unlike a process id it means the same in every container that shares the disk.
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
"""An unlocked directory that is younger may be about to be locked."""


def make() -> Path:
    """A new directory that only this user can enter, locked as long as this process or a child
    that it forks lives. Raises `LaunchError` when there can be none."""
    path = make_locked()[0]
    share_secret(path)
    return path


def share_secret(path: Path) -> None:
    """Sees to it that the processes of this run on this host have a secret in common.

    With it they authenticate what they tell each other (`lockstep.job.job_key`). The first one
    draws it. Raises `LaunchError` when it cannot be written.
    """
    own = path / f"{SECRET}.{os.getpid()}"
    try:
        fd = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            file.write(os.urandom(32).hex())
        # Whole from the moment that it has its name, and never replaced.
        with contextlib.suppress(FileExistsError):
            os.link(own, path / SECRET)
        own.unlink()
    except OSError as error:
        raise LaunchError(
            f"cannot write the secret of this run in {path}: {error.strerror}."
        ) from error


def make_locked() -> tuple[Path, int]:
    """Like `make`; also the descriptor that holds the lock."""
    # tempfile.mkdtemp does the same, after 10 ms of imports.
    top = Path(os.environ.get("TMPDIR") or "/tmp")
    path = top / f"{PREFIX}{os.urandom(8).hex()}"
    try:
        path.mkdir(mode=0o700)
        held = _lock(path)
    except OSError as error:
        raise LaunchError(
            f"cannot make a private directory in {top}: {error.strerror}. "
            "Set TMPDIR to a directory that can be written."
        ) from error
    with contextlib.suppress(OSError):
        sweep(top)
    return path, held


def _lock(path: Path) -> int:
    """Takes the lock; the descriptor returned holds it. Raises OSError if somebody has it."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def sweep(top: Path) -> None:
    """Removes this user's directories that nobody holds."""
    for path in top.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            about = path.lstat()
            if about.st_uid == os.getuid() and about.st_mtime < time.time() - STALE_SECONDS:
                held = _lock(path)
                shutil.rmtree(path, ignore_errors=True)
                os.close(held)
