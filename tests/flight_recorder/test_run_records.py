"""Reading the directory of a run: whatever is missing or broken is a note, not an error."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from flight_recorder.files import write_run
from flight_recorder.jobs import job, steps
from flight_recorder.simulate import record_of, site
from lockstep import RecordError
from lockstep._run_files import CALLERS, SITES, ErrorRecord, Exit
from lockstep.flight_recorder.diagnose import Kind, diagnose
from lockstep.flight_recorder.run_records import Caller, read_run


def folder(top: Path, process: int) -> Path:
    return top / "attempt_0" / f"process_{process}"


def test_everything_is_read(tmp_path: Path) -> None:
    made = job(steps(3), steps(2))
    write_run(made, tmp_path, {1: {"exit_code": 0, "realtime_ns": 5}})
    error = ErrorRecord(1.5, 1, "ValueError: x", "Traceback")
    error.write(folder(tmp_path, 0))
    run = read_run(tmp_path)
    first, second = run.processes
    assert first.record is not None
    assert len(first.record.rings[0].entries) == 3
    assert first.error == error
    assert first.exit is None
    assert second.exit == Exit(pid=101, exit_code=0, realtime_ns=5)
    assert [s.line for s in second.sites] == [41]
    assert first.problems == second.problems == ()


def test_the_lines_of_a_call_are_read(tmp_path: Path) -> None:
    top = write_run(job(steps(2), steps(2)), tmp_path)
    file = top / "attempt_0" / "process_1" / CALLERS
    line = '{"site": 7, "callers": [["/home/u/train.py", 12, "main", "5-9"]]}'
    file.write_text(line + '\n{"site": 9, "callers": [["/home')
    assert read_run(top).processes[1].callers == {
        7: (Caller("/home/u/train.py", 12, "main", "5-9"),)
    }
    assert read_run(top).processes[0].callers == {}


def test_sites_with_and_without_a_first_use_are_read(tmp_path: Path) -> None:
    known = site(1000, file="", line=0, used_file="/home/u/main.py", used_line=7)
    top = write_run(job(steps(2), steps(2), sites={0: (known,)}), tmp_path)
    assert read_run(top).processes[0].sites == (known,)
    # As they were written before there was such a thing.
    values = dataclasses.asdict(site(1000))
    old = {name: value for name, value in values.items() if not name.startswith("used_")}
    (folder(top, 1) / SITES).write_text(json.dumps(old))
    assert read_run(top).processes[1].sites == (site(1000),)


def test_the_last_attempt_is_read_unless_another_is_asked_for(tmp_path: Path) -> None:
    for attempt, number in ((0, 1), (2, 2), (10, 3)):
        write_run(job(steps(number), steps(number)), tmp_path, attempt=attempt)

    def length(attempt: int | None) -> int:
        return record_of(read_run(tmp_path, attempt), 0).rings[0].written

    assert (length(None), length(0), length(2)) == (3, 1, 2)
    with pytest.raises(RecordError, match="has no attempt 1; it has: 0, 2, 10"):
        read_run(tmp_path, 1)


def test_what_is_not_the_directory_of_a_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is not the directory of a run: there is no attempt_0"):
        read_run(tmp_path)
    with pytest.raises(RecordError, match="is not the directory of a run"):
        read_run(tmp_path / "nowhere")


def test_files_that_are_missing_or_broken_are_notes(tmp_path: Path) -> None:
    write_run(job(*[steps(3)] * 5), tmp_path)
    (folder(tmp_path, 0) / "recorder.bin").unlink()
    os.truncate(folder(tmp_path, 1) / "recorder.bin", 5000)
    (folder(tmp_path, 2) / "sites.jsonl").write_text('{"program": 1000, "chan')
    for name in ("exit.json", "error.json"):
        (folder(tmp_path, 3) / name).write_text("half a fil")
    for file in folder(tmp_path, 4).iterdir():
        file.unlink()
    folder(tmp_path, 4).rmdir()
    run = read_run(tmp_path)
    notes = [" ".join(p.problems) for p in run.processes]
    assert notes[0] == "there is no recorder file"
    assert "truncated: it has 5000 bytes" in notes[1]
    assert notes[2:4] == ["", ""]
    assert notes[4] == "this process left no files"
    assert run.processes[2].sites == ()
    assert (run.processes[3].exit, run.processes[3].error) == (None, None)
    assert diagnose(run).kind is Kind.NOTHING


def test_a_record_of_another_job_is_not_mixed_in(tmp_path: Path) -> None:
    write_run(job(*[steps(3)] * 3), tmp_path)
    file = folder(tmp_path, 1) / "recorder.bin"
    content = bytearray(file.read_bytes())
    content[48] = 99
    file.write_bytes(content)
    run = read_run(tmp_path)
    assert run.processes[1].record is None
    assert run.processes[1].problems == ("its recorder file belongs to another job",)


def test_a_record_in_the_wrong_place_is_not_believed(tmp_path: Path) -> None:
    write_run(job(steps(3), steps(3)), tmp_path)
    wrong = (folder(tmp_path, 0) / "recorder.bin").read_bytes()
    (folder(tmp_path, 1) / "recorder.bin").write_bytes(wrong)
    run = read_run(tmp_path)
    assert run.processes[1].record is None
    assert run.processes[1].problems == ("its recorder file is that of process 0",)
