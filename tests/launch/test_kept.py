"""What stays of a failed run: its records, in a place that only the user can enter."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from lockstep import _records
from lockstep.launch import kept
from support import run_lockstep, start_lockstep, wait_until

# A recorder file that nobody can read is one too: here it only has to be kept.
PROGRAM = """
import os, pathlib, sys, time
me = int(os.environ["LOCKSTEP_PROCESS_ID"])
folder = pathlib.Path(os.environ["LOCKSTEP_RUN_DIR"], "attempt_0", f"process_{{me}}")
(folder / "recorder.bin").write_bytes(b"not a record")
{end}
"""
FAILS = PROGRAM.format(end="if me == 1: raise ValueError('no data')")


def make_run(folder: Path, content: bytes = b"x") -> Path:
    run = folder / "run"
    for process in range(2):
        target = _records.process_dir(run, 0, process)
        target.mkdir(parents=True)
        (target / _records.RECORDER).write_bytes(content)
    return run


def test_a_good_run_keeps_nothing(tmp_path: Path) -> None:
    with start_lockstep(["-n", "2"], PROGRAM.format(end="")) as run:
        assert run.finish(30).status == 0
        assert sorted(path.name for path in run.folder.iterdir()) == ["program.py"]


def test_a_failed_run_keeps_its_records_and_says_what_to_type() -> None:
    with start_lockstep(["-n", "2"], FAILS) as run:
        result = run.finish(30)
        run.assert_nothing_left()
        last = result.said_by_launcher.splitlines()[-1]
        match = re.fullmatch(r"lockstep: to look closer: lockstep report (\S+)", last)
        assert match, result
        folder = Path(match[1])
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        assert (folder / "attempt_0/process_0/recorder.bin").read_bytes() == b"not a record"
        assert (folder / "attempt_0/process_0/exit.json").exists()
        assert (folder / "attempt_0/process_1/error.json").exists()
    assert result.status == 1
    assert "process 1 of 2 failed first: ValueError: no data" in result.said_by_launcher


def test_records_lie_beside_the_logs_and_old_ones_go(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    old = _records.process_dir(logs, 3, 7)
    old.mkdir(parents=True)
    (old / _records.RECORDER).write_bytes(b"of an earlier run")
    result = run_lockstep(["--log-dir", str(logs)], FAILS, expect_status=1)
    assert f"to look closer: lockstep report {logs}" in result.said_by_launcher
    assert (logs / "attempt_0/process_1/recorder.bin").exists()
    assert (logs / "attempt_0/process_1/stderr.log").exists()
    assert not (old / _records.RECORDER).exists()


def test_a_run_that_is_stopped_keeps_its_records_too() -> None:
    program = PROGRAM.format(end="(folder.parent.parent / f'ready_{me}').touch(); time.sleep(100)")
    with start_lockstep(["-n", "2"], program) as run:
        wait_until(lambda: len(list(run.folder.glob("*/ready_*"))) == 2, "both are ready", 30)
        run.process.send_signal(signal.SIGINT)
        result = run.finish(30)
    assert result.status == 130
    assert "to look closer: lockstep report" in result.said_by_launcher


def test_without_a_recorder_file_nothing_is_kept() -> None:
    with start_lockstep(["-n", "2"], "raise ValueError") as run:
        result = run.finish(30)
        assert not list(run.folder.glob("lockstep-*"))
    assert "lockstep report" not in result.stderr


def test_only_the_last_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folders = []
    for number in range(kept.RUNS + 2):
        run = make_run(tmp_path / str(number))
        folder = kept.keep(run, None)
        assert folder is not None
        os.rename(folder, folder := folder.with_name(f"2000010{number}-000000-x"))
        folders.append(folder)
    left = sorted(path.name for path in folders[-1].parent.iterdir())
    assert left == [folder.name for folder in folders[-kept.RUNS :]]


def test_a_place_that_others_can_enter_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / f"lockstep-failed-{os.getuid()}").mkdir(mode=0o755)
    assert kept.keep(make_run(tmp_path), None) is None


def test_a_link_that_somebody_put_there_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / f"lockstep-failed-{os.getuid()}").symlink_to(elsewhere)
    assert kept.keep(make_run(tmp_path), None) is None
    assert not list(elsewhere.iterdir())


def test_a_record_that_cannot_be_read_hides_nothing(tmp_path: Path) -> None:
    assert kept.diagnosis(tmp_path, 0) is None
    text = kept.diagnosis(make_run(tmp_path), 0)
    assert text
