"""What stays of a failed run, so that ``lockstep report`` can be asked about it.

The records lie in the run's private directory, which goes with the run. When it has failed they
move to ``--log-dir``, beside the logs, or else to a private directory of the user's, in which
only the last few runs are kept. Without a recorder file there is nothing to report, and nothing is
kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from pathlib import Path

from lockstep import _records

RUNS = 5
"""How many failed runs are kept."""
MOST_LINES = 60


def diagnosis(run_dir: Path, attempt: int) -> str | None:
    """What the records of all processes say together; None when they say nothing.

    Never raises: this is the last thing that a failed run does, and must not hide how it failed.
    """
    if not any(run_dir.glob(f"attempt_{attempt}/process_*/{_records.RECORDER}")):
        return None
    try:
        from lockstep.record import match, run, text

        found = match.diagnose(run.read_run(run_dir, attempt))
        lines = text.table(found).splitlines()
    except Exception as error:
        return f"the records could not be read: {type(error).__name__}: {error}"
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"... {len(lines) - MOST_LINES} more lines"]
    return "\n".join(lines)


def forget(log_dir: Path, process: int | None = None) -> None:
    """Removes what an earlier run has left in ``log_dir``: it would be taken for this run's.

    ``process`` says of which process; None: of all.
    """
    which = "*" if process is None else process
    for name in _records.OF_PROCESS:
        for path in log_dir.glob(f"attempt_*/process_{which}/{name}"):
            with contextlib.suppress(OSError):
                path.unlink()


def keep(run_dir: Path, log_dir: Path | None) -> Path | None:
    """Moves the records of all attempts to where they stay; None when nothing is kept."""
    if not any(run_dir.glob(f"attempt_*/process_*/{_records.RECORDER}")):
        return None
    try:
        target = log_dir or _private()
        for name in _records.OF_PROCESS:
            for path in run_dir.glob(f"attempt_*/process_*/{name}"):
                folder = target / path.parent.relative_to(run_dir)
                folder.mkdir(parents=True, exist_ok=True)
                shutil.move(path, folder / name)
    except OSError:
        return None
    return target


def _private() -> Path:
    """A new directory of this user's only, beside the last few."""
    top = Path(os.environ.get("TMPDIR") or "/tmp") / f"lockstep-failed-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        top.mkdir(mode=0o700)
    about = top.lstat()
    # In a directory that everybody writes to, somebody else may have taken the name.
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise PermissionError(f"{top} is not private")
    path = top / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
    path.mkdir(mode=0o700)
    for old in sorted(top.iterdir())[:-RUNS]:
        shutil.rmtree(old, ignore_errors=True)
    return path
