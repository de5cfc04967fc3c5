"""What restarts have cost, as lines, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from lockstep.launch import lost_time
from lockstep.launch.lost_time import HOST_LOST, MORE_HOSTS, PROCESS_FAILED, Restart
from lockstep.processes.job_spec import HostChanges
from support import assert_unsaid, run_lockstep, start_lockstep

LOST = Restart(0, HOST_LOST, 10.0, 2.5, 1.5, HostChanges(("b",), (("b", "d"),), 3, 3))
FAILED = Restart(1, PROCESS_FAILED, 0.0, 0.75, 0.25)
GROWN = Restart(2, MORE_HOSTS, 0.0, 3.0, 1.0, HostChanges((), (), 3, 3))
AGAIN = Restart(3, HOST_LOST, 9.0, 1.0, 0.5, HostChanges(("c",), (), 2, 3))


def test_the_line_of_a_restart_has_its_parts() -> None:
    assert LOST.words == (
        "attempt 1 starts on 3 of 3 hosts, 14.0 s after the failure: noticed after 10.0 s, ended "
        "after 2.5 s, prepared in 1.5 s"
    )
    assert FAILED.words == (
        "attempt 2 starts, 1.0 s after the failure: ended after 0.8 s, prepared in 0.2 s"
    )
    assert "4.0 s after the request: ended after 3.0 s" in GROWN.words


def test_the_table_sums_by_cause() -> None:
    assert lost_time.table([LOST, FAILED, GROWN, AGAIN], 200.0).splitlines() == [
        "29.5 s of 200.0 s lost in 4 restarts:",
        "  cause           restarts  noticed  ended  prepared  in all",
        "  host lost              2   19.0 s  3.5 s     2.0 s  24.5 s",
        "  process failed         1    0.0 s  0.8 s     0.2 s   1.0 s",
        "  more hosts             1    0.0 s  3.0 s     1.0 s   4.0 s",
    ]
    assert lost_time.table([], 200.0) == ""


def test_the_table_has_the_steps_from_which_attempts_continued() -> None:
    told = [dataclasses.replace(LOST, continues_from=40), FAILED]
    assert lost_time.table(told, 200.0).splitlines()[-1] == (
        "  continued from a checkpoint: attempt 1 from step 40"
    )
    many = [dataclasses.replace(FAILED, attempt=i, continues_from=5 * i) for i in range(20)]
    assert lost_time.table(many, 200.0).splitlines()[-1] == (
        "  continued from a checkpoint: ..., attempt 18 from step 85, attempt 19 from step 90, "
        "attempt 20 from step 95"
    )


def test_json_has_each_restart_and_the_sums() -> None:
    found = json.loads(json.dumps(lost_time.values([LOST, FAILED, AGAIN], 200.0)))
    assert (found["seconds"], found["lost_seconds"]) == (200.0, 25.5)
    assert found["by_cause"][HOST_LOST] == {"restarts": 2, "lost_seconds": 24.5}
    assert found["restarts"][0]["hosts"]["replaced"] == [["b", "d"]]
    assert found["restarts"][1] == {
        "attempt": 1,
        "cause": PROCESS_FAILED,
        "noticed": 0.0,
        "ended": 0.75,
        "prepared": 0.25,
        "hosts": None,
        "continues_from": None,
    }


CONTINUES = """
import os, sys, lockstep
attempt = int(os.environ["LOCKSTEP_ATTEMPT"])
lockstep.continues_from(5 * attempt)
sys.exit(attempt < 2)
"""


def test_the_table_has_the_step_where_nothing_is_kept_of_the_run() -> None:
    said = run_lockstep(["-n", "2", "--max-restarts", "3"], CONTINUES, forked=True)
    assert "checkpoint: attempt 1 from step 5, attempt 2 from step 10\n" in said.stderr


def test_a_run_accounts_for_its_restarts_and_the_steps_restored(tmp_path: Path) -> None:
    options = ["--max-restarts", "3", "--log-dir", str(tmp_path)]
    said = run_lockstep(options, CONTINUES, forked=True).stderr
    assert "attempt 1 starts, " in said
    assert " lost in 2 restarts:\n" in said
    assert re.findall(r"attempt (\d) continues from step (\d+)", said) == [("1", "5"), ("2", "10")]
    assert "  continued from a checkpoint: attempt 1 from step 5, attempt 2 from step 10\n" in said
    [path] = tmp_path.glob("run_*/restarts.json")
    found = json.loads(path.read_text())
    assert [each["cause"] for each in found["restarts"]] == [PROCESS_FAILED] * 2
    assert [each["attempt"] for each in found["restarts"]] == [0, 1]
    assert [each["continues_from"] for each in found["restarts"]] == [5, 10]
    parts = [each[part] for each in found["restarts"] for part in ("noticed", "ended", "prepared")]
    assert found["seconds"] > found["lost_seconds"] > 0
    assert abs(sum(parts) - found["lost_seconds"]) < 0.01


@pytest.mark.full
def test_the_account_of_a_failed_run_is_kept_with_its_records() -> None:
    program = """if True:
        import os, pathlib, time
        attempt, process = os.environ["LOCKSTEP_ATTEMPT"], os.environ["LOCKSTEP_PROCESS_ID"]
        folder = pathlib.Path(os.environ["LOCKSTEP_RUN_DIR"], f"attempt_{attempt}")
        (folder / f"process_{process}" / "recorder.bin").write_bytes(b"no record")
        time.sleep(int(attempt))
        raise ValueError("no data")
    """
    with start_lockstep(["-n", "2", "--max-restarts", "1"], program, forked=True) as run:
        result = run.finish(60)
        assert result.status == 1
        [path] = run.folder.glob("lockstep-failed-*/*/restarts.json")
        found = json.loads(path.read_text())
    [restart] = found["restarts"]
    assert found["seconds"] > found["lost_seconds"] + 1  # attempt 1 has slept for a second
    assert (restart["attempt"], restart["cause"]) == (0, PROCESS_FAILED)
    last = result.said_by_launcher.partition(" lost in 1 restart:\n")[2]
    assert "failed: ValueError: no data" in last.splitlines()[-1], result


def test_a_run_without_a_restart_says_nothing_of_it(tmp_path: Path) -> None:
    options = ["--max-restarts", "3", "--log-dir", str(tmp_path)]
    result = run_lockstep(options, "import sys; print('to stderr', file=sys.stderr)", forked=True)
    assert_unsaid("lost in", result.stderr)
    assert list(tmp_path.glob("run_*/restarts.json")) == []
