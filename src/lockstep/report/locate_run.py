"""Finds the run to report: by directory, by process, or the only one that runs. Reads /proc."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep import _run_files
from lockstep._errors import RecordError
from lockstep._stderr import complain
from lockstep._words import printable
from lockstep.flight_recorder.format import MAGIC, TIME_ERROR_NS, ProcessRecord
from lockstep.flight_recorder.run_records import Process, Run, read_record, read_run
from lockstep.hosts import host_query
from lockstep.processes import failed_runs
from lockstep.processes.run_dir import PREFIX
from lockstep.system import process_tree
from lockstep.system.process_tree import below, parents
from lockstep.watchdog.query_server import complete

_MEMORY_FILE = "/memfd:lockstep"
_MAX_COMMAND = 80


def read(directory: Path | None, pid: int | None, attempt: int | None = None) -> Run:
    """The run in ``directory``, which may be a ``--log-dir``, or that of a live process ``pid``.

    Raises `RecordError` when there is no such run.
    """
    if directory is not None:
        directory = failed_runs.last_run(directory)
    else:
        assert pid is not None
        directory = directory_of(pid)
        if directory is None:
            return _in_memory(pid)
    host_query.refresh(directory)
    return complete(read_run(directory, attempt), directory)


def restarts(directory: Path | None, pid: int | None) -> Mapping[str, Any]:
    """What the restarts of that run have cost up to now: `lockstep.launch.lost_time`; {}: none."""
    directory = failed_runs.last_run(directory) if directory else directory_of(pid or 0)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        if directory:
            found = json.loads((directory / _run_files.RESTARTS).read_text())
            last = found["restarts"][-1]  # whose step is written there with the next restart
            attempt = _run_files.attempt_dir(directory, last["attempt"] + 1)
            if (step := _run_files.read_continues_from(attempt)) is not None:
                last["continues_from"] = step
            return found
    return {}


def choose() -> tuple[Path | None, int | None]:
    """The default run, as the arguments of `read`: the only job of this user that runs on this
    machine, else the last failed run.

    Raises `RecordError` when there is none, or when several jobs run.
    """
    jobs = _live_jobs()
    if len(jobs) == 1:
        [(folder, pid)] = jobs.values()
        return (folder, None) if folder else (None, pid)
    if jobs:
        lines = [f"  --pid {pid}  {_about(pid)}{job}" for job, (_, pid) in jobs.items()]
        named = "\n".join(lines)
        raise RecordError(f"{len(jobs)} jobs of yours run on this machine; choose one:\n{named}")
    failed = failed_runs.failed_runs()
    if not failed:
        raise RecordError(
            "no job of yours runs on this machine, and there is no failed run. "
            "Give the directory of a run, or its --log-dir"
        )
    complain(f"no job of yours runs on this machine; the last failed run: {failed[0]}")
    return failed[0], None


def _live_jobs() -> dict[str, tuple[Path | None, int]]:
    """A job's name -> its directory if it has one, and the pid of one of its processes."""
    found: dict[str, tuple[Path | None, int]] = {}
    for pid in sorted(set(parents()) - {os.getpid()}):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == os.getuid():
                if folder := _run_dir(pid, required=False):
                    found.setdefault(str(folder), (folder, pid))
                elif record := next(_recorders(pid), None):
                    found.setdefault(f"job {record.nonce:x}, without a directory", (None, pid))
    return found


def _about(pid: int) -> str:
    """``started 14:02:11, lockstep run -n 2 train.py, ``; empty: the process has just ended."""
    with contextlib.suppress(OSError):
        since = time.localtime(process_tree.started(pid))
        command = _short(process_tree.command(pid))
        day = "" if since[:3] == time.localtime()[:3] else "%d %b "
        return f"started {time.strftime(day + '%H:%M:%S', since)}, {command}, "
    return ""


def _short(command: str) -> str:
    """``lockstep run ...`` without the folders of the interpreter and of the command."""
    return printable(
        re.sub(r"^\S*/python\S*( -\w+)* \S*/lockstep\b", "lockstep", command), _MAX_COMMAND
    )


def directory_of(pid: int) -> Path | None:
    """The run directory of ``pid``, a launcher or one of its processes; None: it has none.

    Raises `RecordError` for a process that does not exist or that another user owns.
    """
    if not Path(f"/proc/{pid}").exists():
        raise RecordError(
            f"there is no process {pid}. If the run has ended, give its directory instead"
        )
    for candidate in (pid, *sorted(below(pid, parents()))):
        if folder := _run_dir(candidate, required=candidate == pid):
            return folder
    return None


def _run_dir(pid: int, required: bool) -> Path | None:
    named = _environ(pid, required).get("LOCKSTEP_RUN_DIR")
    # The second path is as seen by that process, which may run in a container.
    for path in (Path(named), Path(f"/proc/{pid}/root{named}")) if named else ():
        if path.is_dir():
            # Under `lockstep run --hosts` that of this host lies in the launcher's.
            return path.parent if (path.parent / host_query.SOCKET).exists() else path
    return _held_directory(pid)


def _held_directory(pid: int) -> Path | None:
    """The directory that a launcher or an agent holds open: it has no variable that names it."""
    for path in map(Path, process_tree.open_files(pid)):
        for folder in (path.parent, path):
            if folder.name.startswith(PREFIX) and folder.is_dir():
                return folder
    return None


def _environ(pid: int, required: bool) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        if required:
            raise RecordError(f"process {pid} cannot be inspected: {error.strerror}") from None
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _in_memory(pid: int) -> Run:
    """A run without a directory: its recorders are memory files of the processes themselves."""
    own = next((r for p in (pid, *below(pid, parents())) for r in _recorders(p)), None)
    if own is None:
        raise RecordError(
            f"process {pid} does not belong to a run of Lockstep, or has recorded nothing yet "
            "(the recorder starts with lockstep.initialize() or jax.distributed.initialize())"
        )
    found = {
        record.process: record
        for other in parents()
        for record in _recorders(other)
        if record.nonce == own.nonce
    }
    missing = ("it runs on another host, or has ended",)
    return Run(
        tuple(
            Process(index, found.get(index), problems=() if index in found else missing)
            for index in range(max(own.num_processes, own.process + 1))
        ),
        own.attempt,
        clock_error_ns=TIME_ERROR_NS,
    )


def _recorders(pid: int) -> Iterator[ProcessRecord]:
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            with contextlib.suppress(OSError, RecordError):
                if os.readlink(path).startswith(_MEMORY_FILE) and _begins(path):
                    record = read_record(path)
                    if record.pid == pid:  # peers hold each other's files open
                        yield record


def _begins(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
