"""The records of a host's processes, on their way to the launcher.

Times are made those of the launcher's clock on the way, so that the files can be read there as
those of one host: `failed_runs` and ``lockstep report`` know no difference.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep import _run_files
from lockstep._errors import RecordError
from lockstep._run_files import ErrorRecord, Exit, process_dir
from lockstep.processes.job_spec import LaunchSpec

MAX_FILE = 1 << 26
"""Bytes; a longer file is left out."""
Sent = dict[Path, tuple[int, int]]
"""Files that have been sent: time of their last change, and size."""


def send(
    job: LaunchSpec, head: Mapping[str, Any], send: Callable[..., None], sent: Sent
) -> Iterator[None]:
    """Sends the files of all processes of this host, those of one in each step.

    ``head`` has ``shift``, to be added to this host's monotonic clock in nanoseconds to get the
    launcher's, and ``real``, the lead of the launcher's wall clock over its monotonic one; and
    ``latest``, how many entries of each device are wanted, None for all. Files other than the
    recorder's are in ``sent``, and are sent again only when they have changed.
    """
    shift, real = int(head["shift"]), int(head["real"])
    latest = head.get("latest")
    for process_id in range(job.first, job.first + job.processes):
        yield
        folder = job.process_dir(process_id)
        for name, data in _files(folder, shift, real, latest, sent):
            body = zlib.compress(data, 1)
            if len(data) <= MAX_FILE and len(body) <= MAX_FILE:
                send("file", body, process=process_id, name=name)
    send("collected", number=head.get("number"))


def _files(
    folder: Path, shift: int, real: int, latest: int | None, sent: Sent
) -> Iterator[tuple[str, bytes]]:
    for name in _run_files.OF_PROCESS:
        path = folder / name
        with contextlib.suppress(OSError, RecordError, ValueError):
            if name in (_run_files.RECORDER, _run_files.NCCL_RECORDER):
                yield name, _record(path, shift, real, latest)
                continue
            about = path.stat()
            state = (about.st_mtime_ns, about.st_size)
            if sent.get(path) != state:
                yield name, _contents(folder, name, shift, real)
                sent[path] = state


def _contents(folder: Path, name: str, shift: int, real: int) -> bytes:
    """A file, with times of the launcher's clocks.

    Raises OSError or `RecordError` for a file that is not there, or cannot be read.
    """
    path = folder / name
    if name == _run_files.ERROR and (error := ErrorRecord.read(folder)):
        at = error.time + shift / 1e9
        return json.dumps(dataclasses.asdict(dataclasses.replace(error, time=at))).encode()
    if name == _run_files.EXIT and (exit := Exit.read(folder)):
        ahead = shift + real - (time.time_ns() - time.monotonic_ns())
        return json.dumps(dataclasses.asdict(exit.later_by(ahead))).encode()
    if path.stat().st_size > MAX_FILE:
        raise OSError(f"{path} is too long")
    return path.read_bytes()


def _record(path: Path, shift: int, real: int, latest: int | None) -> bytes:
    """The recorder's file as if this host's clocks were set as the launcher's.

    Readers take all times by the difference of the record's two clocks (`flight_recorder.model`).
    """
    from lockstep.flight_recorder import run_records
    from lockstep.watchdog import messages

    record = run_records.read_record(path, latest)
    record = dataclasses.replace(record, realtime_ns=record.monotonic_ns + shift + real)
    return messages.encode_record(record)


def notes(job: LaunchSpec) -> list[tuple[int, str]]:
    """Which process has left which note about how it has used JAX."""
    found = []
    for process_id in range(job.first, job.first + job.processes):
        folder = job.process_dir(process_id)
        found += [(process_id, name) for name in _run_files.NOTES if (folder / name).exists()]
    return found


def store(run_dir: Path, attempt: int, head: Mapping[str, Any], body: bytes) -> None:
    """Writes a file that another host has sent; the launcher's side of `send`.

    Raises ValueError, KeyError, TypeError, zlib.error or OSError for what is no such file.
    """
    name, process_id = str(head["name"]), int(head["process"])
    if name not in _run_files.OF_PROCESS:
        raise ValueError(f"{name!r} is no file of a process")
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(body, MAX_FILE)
    if not unpacker.eof:
        raise ValueError(f"{name} is cut short, or too long")
    _run_files.write_whole(process_dir(run_dir, attempt, process_id) / name, data)
