"""The commands: what they print, write and return, and how they find a live run."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import platform
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from flight_recorder.files import write_run
from flight_recorder.jobs import job, steps
from flight_recorder.simulate import STRIDE, Job, site
from lockstep import RecordError
from lockstep.cli import main
from lockstep.flight_recorder import text_report
from lockstep.flight_recorder.diagnose import diagnose
from lockstep.flight_recorder.json_report import SCHEMA
from lockstep.processes import failed_runs, running_job
from lockstep.report import locate_run, top


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Process 1 left after 5 of 9 collectives."""
    return write_run(job(steps(9), steps(5)), tmp_path / "run", {1: {"exit_code": 0}})


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    both = {0: {"exit_code": 0}, 1: {"exit_code": 0}}
    return write_run(job(steps(9), steps(9)), tmp_path / "run", both)


def test_a_report_names_the_culprit_and_its_status_says_that_something_is_wrong(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(broken)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("process 1 (pid 101 on host a) ended (exit code 0) after 5 collectives")
    assert "Likely causes:\n  - a loop with fewer steps on process 1" in out
    assert "collectives by line" not in out


def test_a_run_with_nothing_wrong_has_status_0(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(sound)]) == 0
    assert capsys.readouterr().out.startswith("nothing is wrong: 2 processes ended\n")


def test_json(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(broken), "--json", "--summary"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == SCHEMA
    assert (report["kind"], report["fault"], report["culprits"]) == ("ended", True, [1])
    assert report["place"]["sequence"] == 5
    assert report["place"]["devices"] == [0, 2048]
    waiting, gone = report["processes"]
    assert (waiting["activity"], waiting["waits_for"]) == ("waits", [1])
    [place] = waiting["call"]["sites"]
    assert (place["line"], place["first_used"]) == (41, None)
    assert gone["exit"]["exit_code"] == 0
    assert report["causes"][0]["pattern"] == "shorter_loop"
    assert report["summary"]["lines"][0]["calls"] == 5


def test_json_of_what_has_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = site(1000, file="", line=0, used_file="/home/u/main.py", used_line=7)
    made = job(steps(9), steps(5), sites={0: (place,), 1: (place,)})
    main(["report", str(write_run(made, tmp_path)), "--json"])
    call = json.loads(capsys.readouterr().out)["processes"][0]["call"]
    assert call["sites"][0]["first_used"] == {"file": "/home/u/main.py", "line": 7}


def test_the_summary_is_added_on_demand(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(broken), "--summary"])
    out = capsys.readouterr().out
    assert "collectives by line" in out
    assert "train.py:41 in step" in out
    assert "from 11 of 11 collectives" in out


def test_the_trace_is_written(broken: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    assert main(["report", str(broken), "--trace", str(file)]) == 1
    assert len(json.loads(file.read_text())["traceEvents"]) > 20


def test_a_trace_that_cannot_be_written_is_reported(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(broken), "--trace", str(tmp_path / "no" / "t.json")]) == 2
    assert "cannot write the trace to" in capsys.readouterr().err


def test_the_attempt_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(job(steps(9), steps(5)), tmp_path, {1: {"exit_code": 0}}, attempt=0)
    write_run(job(steps(9), steps(9)), tmp_path, attempt=1)
    assert main(["report", str(tmp_path)]) == 0
    assert main(["report", str(tmp_path), "--attempt", "0"]) == 1
    assert main(["report", str(tmp_path), "--attempt", "7"]) == 2
    assert "has no attempt 7; it has: 0, 1" in capsys.readouterr().err


# --- Live runs ------------------------------------------------------------------------------------


@contextmanager
def process(run_dir: Path | None, *, below_another: bool = False) -> Iterator[int]:
    """The pid of a process that waits, in the run of ``run_dir``; or of that one's parent."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_RUN")}
    own = f"LOCKSTEP_RUN_DIR={run_dir}" if run_dir else "LOCKSTEP_ATTEMPT=0"
    program = f"exec env {own} {sys.executable} -c 'print(flush=True); input()'"
    command = f"({program}) && true" if below_another else program
    child = subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdout.readline()
        yield child.pid
    finally:
        child.stdin.write(b"\n")
        child.stdin.close()
        child.wait(timeout=30)
        child.stdout.close()


@pytest.mark.parametrize("below_another", [False, True])
def test_a_live_run_is_found_by_a_pid(
    broken: Path, below_another: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with process(broken, below_another=below_another) as pid:
        assert locate_run.directory_of(pid) == broken
        assert main(["report", "--pid", str(pid)]) == 1
    assert "process 1 (pid 101 on host a) ended" in capsys.readouterr().out


@pytest.fixture
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a job and without a failed run, as far as the commands see."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(locate_run, "parents", dict)
    return tmp_path


def test_without_arguments_the_last_failed_run_is_taken(
    broken: Path, nothing_here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report"]) == 2
    assert "no job of yours runs on this machine" in capsys.readouterr().err
    folder = failed_runs.keep(broken, None)
    assert main(["report"]) == 1
    said = capsys.readouterr()
    assert f"the last failed run: {folder}" in said.err
    assert "process 1 (pid 101 on host a) ended" in said.out
    assert main(["top", "--once"]) == 1


def test_without_arguments_the_one_live_job_is_taken_and_several_are_listed(
    broken: Path,
    nothing_here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = nothing_here / "other"
    other.mkdir()
    with process(broken) as one, process(broken) as same, process(other) as another:
        monkeypatch.setattr(locate_run, "parents", lambda: {one: 1, same: 1})
        assert main(["report"]) == 1
        assert "process 1 (pid 101 on host a) ended" in capsys.readouterr().out
        monkeypatch.setattr(locate_run, "parents", lambda: {one: 1, same: 1, another: 1})
        assert main(["report"]) == 2
    said = capsys.readouterr().err
    assert "2 jobs of yours run on this machine; choose one:" in said
    for pid, folder in ((one, broken), (another, other)):
        assert re.search(rf"--pid {pid}  started \d\d:\d\d:\d\d, \S*python.*, {folder}\n", said)


def test_a_process_of_no_run_is_reported() -> None:
    with (
        process(None) as pid,
        pytest.raises(RecordError, match="does not belong to a run of Lockstep"),
    ):
        locate_run.read(None, pid)


def test_a_process_that_is_gone_is_reported() -> None:
    with process(None) as pid:
        pass
    with pytest.raises(RecordError, match=f"there is no process {pid}. If the run has ended"):
        locate_run.read(None, pid)


def test_a_run_without_a_directory_is_read_from_the_processes_memory() -> None:
    made = job(steps(9), steps(9))
    # A process of its own: this one may hold runs of other tests.
    holder = (
        "import os, sys; content = bytearray(sys.stdin.buffer.read());"
        "content[40:44] = os.getpid().to_bytes(4, 'little');"
        "os.write(os.memfd_create('lockstep-recorder'), content);"
        "print('ready', flush=True); import time; time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdin
            assert process.stdout
            process.stdin.write(made.file(0))
            process.stdin.close()
            assert process.stdout.readline() == b"ready\n"
            run = locate_run.read(None, process.pid)
        finally:
            process.kill()
    assert run.processes[0].record is not None
    assert run.processes[0].record.rings[0].written == 9
    assert run.processes[1].problems == ("it runs on another host, or has ended",)


# --- lockstep top ---------------------------------------------------------------------------------


def test_one_picture_of_top(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(broken), "--once"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "process 1 (pid 101 on host a) ended (exit code 0) after 5 collectives" in out
    assert "│ 0 │ a │ 100 │ 6 │" in out
    assert "train.py:41 in step" in out


def test_top_ends_with_the_run(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(sound)]) == 0
    assert "nothing is wrong: 2 processes ended" in capsys.readouterr().out


def test_rates_are_collectives_of_one_device_a_second() -> None:
    before = top.Rates(job(steps(3), steps(3)).snapshot(), 10.0)
    now = top.Rates(job(steps(9), steps(5)).snapshot(), 12.0)
    assert now.since(before) == {0: 1.5, 1: 1.0}


def test_a_picture_shows_how_long_a_process_waits_by_the_clock_of_its_host() -> None:
    made = job(steps(9), steps(5))
    run, hour = made.snapshot(), 3_600_000_000_000
    there, here = (process.record for process in run.processes)
    assert here
    assert there
    records = (
        # Its clock is an hour behind that of this machine.
        dataclasses.replace(there, host="b", monotonic_ns=0, realtime_ns=7 + hour),
        dataclasses.replace(here, host=platform.node(), monotonic_ns=0, realtime_ns=7),
    )
    pairs = zip(run.processes, records, strict=True)
    run = dataclasses.replace(
        run, processes=[dataclasses.replace(each, record=record) for each, record in pairs]
    )
    console = Console(width=160, record=True, file=io.StringIO())
    [waits] = [row.call for row in diagnose(run).rows if row.index == 0]
    assert waits
    began = waits.entry.entered_ns
    console.print(top.frame(run, diagnose(run), began + hour + 3_000_000_000, {0: 12.0, 1: 0.0}))
    assert "3.00 s" in console.export_text()


def test_a_live_job_has_no_straggler_for_a_short_wait() -> None:
    made = job(steps(9), steps(9))
    late = Job(made.cliques, {d: list(v.steps) for d, v in made.devices.items()})
    late.devices[STRIDE].stops_at = 5
    late.run(random.Random(0))
    run = late.snapshot()
    [began] = [r.call.entry.entered_ns for r in diagnose(run).rows if r.call and r.index == 0]
    hosts = {process.record.host for process in run.processes if process.record}
    brief = running_job.settled(diagnose(run), dict.fromkeys(hosts, began + 55_000_000))
    assert "nothing is wrong" in text_report.table(brief)
    assert text_report.CULPRIT not in text_report.table(brief)
    for later in (3_000_000_000, -3_600_000_000_000):  # the host has been started again
        waiting = running_job.settled(diagnose(run), dict.fromkeys(hosts, began + later))
        assert "has not arrived yet" in text_report.table(waiting)
