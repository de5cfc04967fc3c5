"""What an agent sends of the records of its processes, with the times of the launcher's clocks."""

from __future__ import annotations

import json
import time
from pathlib import Path

from lockstep._config import Config
from lockstep._run_files import ErrorRecord, Exit, process_dir
from lockstep.hosts import host_records
from lockstep.processes.job_spec import LaunchSpec

HOUR = 3600 * 10**9


def test_error_and_exit_have_the_times_of_the_launcher(tmp_path: Path) -> None:
    here, there = (tmp_path / name for name in ("launcher", "host"))
    for run in (here, there):
        process_dir(run, 0, 0).mkdir(parents=True)
    folder = process_dir(there, 0, 0)
    ended = Exit.of(1)
    ended.write(folder)
    ErrorRecord(100.0, 1, "ValueError: x", "").write(folder)
    # The launcher has booted two hours later, and its wall clock is three hours behind.
    shift = -2 * HOUR
    real = time.time_ns() - 3 * HOUR - (time.monotonic_ns() + shift)
    job = LaunchSpec(("a.py",), 1, Config(attempt=0), {}, there)
    found = {}

    def send(kind: str, body: bytes = b"", **head: object) -> None:
        if kind == "file":
            host_records.store(here, 0, head, body)
            found[head["name"]] = True

    for _ in host_records.send(job, {"shift": shift, "real": real}, send, {}):
        pass
    assert set(found) == {"error.json", "exit.json"}
    stored = Exit.read(process_dir(here, 0, 0))
    assert stored is not None
    assert stored.realtime_ns is not None
    assert ended.realtime_ns is not None
    assert abs(stored.realtime_ns - (ended.realtime_ns - 3 * HOUR)) < 10**9
    error = json.loads((process_dir(here, 0, 0) / "error.json").read_text())
    assert error["time"] == 100.0 - 7200.0
