"""Keeps the records of failed runs for ``lockstep report``.

The records lie in the run's private directory, which is removed with the run. If the run has
failed, they are moved to its folder in ``--log-dir``, beside the logs, or else to a private
directory of the user, where runs are kept for a week. A run without a recorder file has nothing to
report and is not kept.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import stat
import time
from collections.abc import Sequence
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
"""A failed run is kept at least this long, since a user may be reading its report."""
RUN_PREFIX = "run_"
"""The names of run folders in ``--log-dir`` begin with this."""
MAX_LINES = 60
ENDS = "agents.log"
"""Beside the failed runs: why agents of this host have ended with their processes."""
MAX_ENDS = 1 << 18
"""Bytes after which it begins anew."""


def diagnosis(
    run_dir: Path, attempt: int, failed: Sequence[int] = (), told: Sequence[int] = ()
) -> str:
    """The report from the records of all processes; "" when there are none.

    For a reader who knows that the processes ``failed`` have failed, and the errors of those
    ``told``, it is what the records say beside that (`text_report.news`). Never raises: an error
    here must not hide how the run failed.
    """
    if not _run_files.has_records(run_dir, attempt):
        return ""
    try:
        from lockstep.flight_recorder import text_report

        found = _diagnosed(run_dir, attempt)
        lines = text_report.news(found, failed, told).splitlines()
    except Exception as error:
        return f"the records could not be read: {type(error).__name__}: {error}"
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"... {len(lines) - MAX_LINES} more lines"]
    return "\n".join(lines)


def waits(run_dir: Path, attempt: int) -> str:
    """Which process of a job that runs has others wait for long; "" where none, or not known."""
    with contextlib.suppress(Exception):  # the job is being stopped, and that comes first
        if _run_files.has_records(run_dir, attempt):
            from lockstep.flight_recorder import diagnose, diagnosis_headline, run_records
            from lockstep.processes import running_job

            run = run_records.read_run(run_dir, attempt)
            now = running_job.now_of_hosts(run, time.monotonic_ns())
            found = running_job.settled(diagnose.diagnose(run), now)
            if found.kind is not diagnose.Kind.NOTHING:
                return diagnosis_headline.headline(found)
    return ""


def culprits(run_dir: Path, attempt: int) -> tuple[int, ...]:
    """The processes that caused the fault by the records; empty: there are none to read."""
    with contextlib.suppress(Exception):
        return _diagnosed(run_dir, attempt).culprits
    return ()


def show_fault_before(run_dir: Path, attempt: int, process: int) -> bool:
    """Whether the records show another fault than the end of ``process``."""
    with contextlib.suppress(Exception):
        from lockstep.flight_recorder.diagnose import Kind

        found = _diagnosed(run_dir, attempt)
        is_its_end = found.kind in (Kind.FAILED, Kind.KILLED) and process in found.culprits
        return found.kind.is_fault and not is_its_end
    return False


def differences(run_dir: Path, attempt: int) -> str:
    """In what the processes of a job differ, as process 0 has found at the start; else ""."""
    folder = _run_files.process_dir(run_dir, attempt, 0)
    with contextlib.suppress(OSError):
        return (folder / _run_files.DIFFERENCES).read_text("utf-8", "replace")
    return ""


def _diagnosed(run_dir: Path, attempt: int) -> diagnose.Diagnosis:
    from lockstep.flight_recorder import diagnose, run_records

    return diagnose.diagnose(run_records.read_run(run_dir, attempt))


def new_name() -> str:
    """A name for the folder of a run; names sort by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"


def run_folder(log_dir: Path, name: str) -> Path:
    """The folder of the logs and records of one run in ``--log-dir``."""
    return log_dir / f"{RUN_PREFIX}{name}"


def last_run(directory: Path) -> Path:
    """The folder of the last run in a ``--log-dir``; ``directory`` itself if it is of a run."""
    runs = [path for path in directory.glob(f"{RUN_PREFIX}*") if path.is_dir()]
    return max(runs, key=lambda path: path.stat().st_mtime_ns, default=directory)


def forget(folder: Path, process: int) -> None:
    """Removes the files of ``process`` from an earlier run of the same name in ``folder``."""
    for name in _run_files.OF_PROCESS:
        for path in folder.glob(f"attempt_*/process_{process}/{name}"):
            with contextlib.suppress(OSError):
                path.unlink()


def keep(run_dir: Path, folder: Path | None) -> Path | None:
    """Moves the records of all attempts out of ``run_dir``; returns the target, None for nothing.

    The target is the run's ``folder`` in ``--log-dir``, or a new private folder. Raises OSError
    where they cannot be kept.
    """
    if not _run_files.has_records(run_dir):
        return None
    target = folder or _private()
    for name in _run_files.OF_PROCESS:
        for path in run_dir.glob(f"attempt_*/process_*/{name}"):
            own = target / path.parent.relative_to(run_dir)
            own.mkdir(parents=True, exist_ok=True)
            shutil.move(path, own / name)
    if (restarts := run_dir / _run_files.RESTARTS).exists():
        shutil.move(restarts, target / _run_files.RESTARTS)
    return target


def kept(run_dir: Path, folder: Path | None) -> str:
    """Does what `keep` does; what to tell the user of it, "" where there is nothing."""
    try:
        target = keep(run_dir, folder)
    except OSError as error:
        return not_kept(f"{error}")
    return f"for details: lockstep report {shlex.quote(str(target))}" if target else ""


def not_kept(why: str) -> str:
    """What to tell the user of records that could not be written."""
    return (
        f"the records of this run could not be kept, for lockstep report: {why}. Make room there, "
        "or name another directory with --log-dir"
    )


def _top() -> Path:
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"lockstep-failed-{os.getuid()}"


def log_end(words: str) -> None:
    """Notes on this host why an agent has ended, whose launcher may be out of reach."""
    with contextlib.suppress(OSError):
        path = _make_top() / ENDS
        if path.exists() and path.stat().st_size > MAX_ENDS:
            path.unlink()
        with path.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}\n")


def failed_runs() -> list[Path]:
    """The private folders of this user's failed runs, the latest first."""
    try:
        found = _check_private(_top()).iterdir()
        return sorted((path for path in found if path.name != ENDS), reverse=True)
    except OSError:
        return []


def _make_top() -> Path:
    with contextlib.suppress(FileExistsError):
        _top().mkdir(mode=0o700)
    return _check_private(_top())


def _check_private(top: Path) -> Path:
    about = top.lstat()
    # All users can write to /tmp, so another user may have created a directory of this name.
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise PermissionError(f"{top} is not private")
    return top


def _private() -> Path:
    """A new directory that only this user can enter, beside those of earlier runs."""
    top = _make_top()
    _remove_old(top)
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
