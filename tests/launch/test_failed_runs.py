"""What stays of a failed run: its records, in a place that only the user can enter."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from lockstep import _run_files
from lockstep.processes import failed_runs
from lockstep.report import locate_run
from support import assert_unsaid, run_lockstep, start_lockstep

# A recorder file that nobody can read is one too: here it only has to be kept.
PROGRAM = """
import os, pathlib, sys, time
me = int(os.environ["LOCKSTEP_PROCESS_ID"])
attempt = os.environ["LOCKSTEP_ATTEMPT"]
folder = pathlib.Path(os.environ["LOCKSTEP_RUN_DIR"], f"attempt_{{attempt}}", f"process_{{me}}")
(folder / "recorder.bin").write_bytes(b"not a record")
{end}
"""
FAILS = PROGRAM.format(end="if me == 1: raise ValueError('no data')")


def make_run(folder: Path, content: bytes = b"x") -> Path:
    run = folder / "run"
    for process in range(2):
        target = _run_files.process_dir(run, 0, process)
        target.mkdir(parents=True)
        (target / _run_files.RECORDER).write_bytes(content)
    return run


def test_a_good_run_keeps_nothing(tmp_path: Path) -> None:
    with start_lockstep(["-n", "2"], PROGRAM.format(end=""), forked=True) as run:
        assert run.finish(30).status == 0
        left = {path.name for path in run.folder.iterdir()}
        assert left - {"stdout", "stderr"} == {"program.py"}  # of a forked launcher


def test_a_failed_run_keeps_its_records_and_says_what_to_type() -> None:
    with start_lockstep(["-n", "2"], FAILS, forked=True) as run:
        result = run.finish(30)
        last = result.said_by_launcher.splitlines()[-1]
        match = re.fullmatch(r"lockstep: process 1 .*; for details: lockstep report (\S+)", last)
        assert match, result
        folder = Path(match[1])
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        assert (folder / "attempt_0/process_0/recorder.bin").read_bytes() == b"not a record"
        assert (folder / "attempt_0/process_0/exit.json").exists()
        assert (folder / "attempt_0/process_1/error.json").exists()
    assert result.status == 1
    assert "process 1 of 2 failed first: ValueError: no data" in result.said_by_launcher


def test_each_run_has_a_folder_of_its_own_beside_its_logs(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    restarted = ["--log-dir", str(logs), "--max-restarts", "1", "--grace", "1"]
    run_lockstep(restarted, FAILS, expect_status=1, forked=True)
    [first] = logs.iterdir()
    assert (first / "attempt_1/process_1/recorder.bin").exists()
    result = run_lockstep(["--log-dir", str(logs)], FAILS, expect_status=1, forked=True)
    [second] = set(logs.iterdir()) - {first}
    assert f"for details: lockstep report {second}" in result.said_by_launcher
    assert (second / "attempt_0/process_1/recorder.bin").exists()
    assert (second / "attempt_0/process_1/stderr.log").exists()
    assert (first / "attempt_1/process_1/recorder.bin").exists()
    assert locate_run.read(logs, None).attempt == 0, "of the second run, not the last of the first"


def test_a_run_that_is_stopped_keeps_its_records_too() -> None:
    program = PROGRAM.format(end="(folder.parent.parent / f'ready_{me}').touch(); time.sleep(100)")
    with start_lockstep(["-n", "2"], program, forked=True) as run:
        run.wait_files("*/ready_*", 2)
        run.process.send_signal(signal.SIGINT)
        result = run.finish(30)
    assert result.status == 130
    assert "for details: lockstep report" in result.said_by_launcher


def test_without_a_recorder_file_nothing_is_kept() -> None:
    with start_lockstep(["-n", "2"], "raise ValueError", forked=True) as run:
        result = run.finish(30)
        assert not list(run.folder.glob("lockstep-*"))
    assert_unsaid("lockstep report", result.stderr)


def test_failed_runs_are_kept_for_a_week_and_below_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(failed_runs, "KEPT_BYTES", 10_000)
    hour = 3600
    # hours ago, bytes -> whether it is still there
    runs = [(0.1, 8000), (0.5, 8000), (0.9, 8000), (2, 8000), (24 * 8, 10)]
    names = []
    for hours, size in runs:
        folder = failed_runs.keep(make_run(tmp_path / str(hours), bytes(size // 2)), None)
        assert folder is not None
        names.append(folder)
    for (hours, _), folder in zip(runs, names, strict=True):
        at = time.time() - hours * hour
        os.utime(folder, (at, at))
    assert failed_runs.keep(make_run(tmp_path / "new"), None)
    assert [folder.exists() for folder in names] == [True, True, True, False, False]


@pytest.mark.parametrize("what", ["a folder that others can enter", "a link"])
def test_a_place_that_is_not_private_is_not_used(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    place, elsewhere = tmp_path / f"lockstep-failed-{os.getuid()}", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if what == "a link":
        place.symlink_to(elsewhere)
    else:
        place.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="is not private"):
        failed_runs.keep(make_run(tmp_path), None)
    assert not list(elsewhere.iterdir())


def test_a_run_whose_records_cannot_be_kept_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(shutil, "move", full)
    words = failed_runs.kept(make_run(tmp_path / "run"), tmp_path / "log")
    assert words.startswith("the records of this run could not be kept, for lockstep report: ")
    assert "No space left on device" in words
    assert "name another directory with --log-dir" in words


def test_a_record_that_cannot_be_read_hides_nothing(tmp_path: Path) -> None:
    assert failed_runs.diagnosis(tmp_path, 0) == ""
    text = failed_runs.diagnosis(make_run(tmp_path), 0)
    assert text
