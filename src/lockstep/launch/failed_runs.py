"""What stays of a failed run, so that ``lockstep report`` can be asked about it.

The records lie in the run's private directory, which goes with the run. When it has failed they
move to the run's folder in ``--log-dir``, beside the logs, or else to a private directory of the
user's, in which runs are kept for a week. Without a recorder file there is nothing to report, and
nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep import _run_files

if TYPE_CHECKING:
    from lockstep.flight_recorder import diagnose

KEPT_SECONDS = 7 * 24 * 3600.0
"""How long a failed run is kept."""
KEPT_BYTES = 1 << 30
"""Above this, the oldest failed runs are removed earlier."""
SAFE_SECONDS = 3600.0
"""For this long a failed run is kept in any case: somebody may be looking at it."""
RUN_PREFIX = "run_"
"""What the folders of runs in ``--log-dir`` begin with."""
MAX_LINES = 60


def diagnosis(run_dir: Path, attempt: int) -> str | None:
    """What the records of all processes say together; None when they say nothing.

    Never raises: this is the last thing that a failed run does, and must not hide how it failed.
    """
    if not any(run_dir.glob(f"attempt_{attempt}/process_*/{_run_files.RECORDER}")):
        return None
    try:
        from lockstep.flight_recorder import text_report

        lines = text_report.table(_diagnosed(run_dir, attempt)).splitlines()
    except Exception as error:
        return f"the records could not be read: {type(error).__name__}: {error}"
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"... {len(lines) - MAX_LINES} more lines"]
    return "\n".join(lines)


def culprits(run_dir: Path, attempt: int) -> tuple[int, ...]:
    """The processes that the records blame; none where there is nothing to read."""
    with contextlib.suppress(Exception):
        return _diagnosed(run_dir, attempt).culprits
    return ()


def _diagnosed(run_dir: Path, attempt: int) -> diagnose.Diagnosis:
    from lockstep.flight_recorder import diagnose, model

    return diagnose.diagnose(model.read_run(run_dir, attempt))


def new_name() -> str:
    """A name for the folder of a run; of two names the later is the greater."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"


def run_folder(log_dir: Path, name: str) -> Path:
    """Where the logs and records of one run lie in ``--log-dir``."""
    return log_dir / f"{RUN_PREFIX}{name}"


def last_run(directory: Path) -> Path:
    """The folder of the last run in a ``--log-dir``; ``directory`` itself where it is a run's."""
    runs = [path for path in directory.glob(f"{RUN_PREFIX}*") if path.is_dir()]
    return max(runs, key=lambda path: path.stat().st_mtime_ns, default=directory)


def forget(folder: Path, process: int) -> None:
    """Removes what ``process`` of an earlier run of the same name has left in ``folder``."""
    for name in _run_files.OF_PROCESS:
        for path in folder.glob(f"attempt_*/process_{process}/{name}"):
            with contextlib.suppress(OSError):
                path.unlink()


def keep(run_dir: Path, folder: Path | None) -> Path | None:
    """Moves the records of all attempts to where they stay; None when nothing is kept.

    That is the run's ``folder`` in ``--log-dir``, or a new private one.
    """
    if not any(run_dir.glob(f"attempt_*/process_*/{_run_files.RECORDER}")):
        return None
    try:
        target = folder or _private()
        for name in _run_files.OF_PROCESS:
            for path in run_dir.glob(f"attempt_*/process_*/{name}"):
                own = target / path.parent.relative_to(run_dir)
                own.mkdir(parents=True, exist_ok=True)
                shutil.move(path, own / name)
    except OSError:
        return None
    return target


def _top() -> Path:
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"lockstep-failed-{os.getuid()}"


def failed_runs() -> list[Path]:
    """The folders of this user's failed runs without ``--log-dir``, the last one first."""
    try:
        return sorted(_check_private(_top()).iterdir(), reverse=True)
    except OSError:
        return []


def _check_private(top: Path) -> Path:
    about = top.lstat()
    # In a directory that everybody writes to, somebody else may have taken the name.
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise PermissionError(f"{top} is not private")
    return top


def _private() -> Path:
    """A new directory of this user's only, beside those of earlier runs."""
    top = _top()
    with contextlib.suppress(FileExistsError):
        top.mkdir(mode=0o700)
    _remove_old(_check_private(top))
    path = top / new_name()
    path.mkdir(mode=0o700)
    return path


def _remove_old(top: Path) -> None:
    now = time.time()
    total = 0
    for path in sorted(top.iterdir(), key=_modified, reverse=True):
        total += _size(path)
        age = now - _modified(path)
        if age > KEPT_SECONDS or (total > KEPT_BYTES and age > SAFE_SECONDS):
            shutil.rmtree(path, ignore_errors=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed by another run, just now
        return 0.0


def _size(path: Path) -> int:
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.lstat().st_size
    return total
