"""What `lockstep.inspect` reports is what the recorder saw when the programs ran."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from processes import captured

PROGRAM = Path(__file__).parent / "programs" / "truth.py"
SECONDS = 200
JOB = ["-m", "lockstep", "run", "-n", "2", "-d", "2"]


def reports(arguments: list[str], environ: dict[str, str]) -> tuple[dict[str, Any], str]:
    command = [sys.executable, *arguments, str(PROGRAM)]
    done = captured(command, env={**os.environ, **environ}, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = {}
    for line in re.findall(r"^(?:\[0\] )?report (.*)$", done.stdout, re.MULTILINE):
        found.update(json.loads(line))
    return found, done.stdout


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    """The reports of a job. The program compares each with the recorder of its process, and fails
    if they differ."""
    found, output = reports(JOB, {})
    assert len(found) == 16
    assert len(re.findall(r"^\[[01]\] \w+: \d+ collectives of a device$", output, re.M)) == 32
    return found


@pytest.mark.full
def test_reports_equal_what_was_planned_in_one_process(job: dict[str, Any]) -> None:
    plan, _ = reports([], {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"})
    assert plan.keys() == job.keys()
    for name, report in plan.items():
        rows = [dict(row, reach="") for row in report["collectives"]]
        assert rows == [dict(row, reach="") for row in job[name]["collectives"]], name
        assert report["memory"] == job[name]["memory"], name


@pytest.mark.full
def test_reports_equal_what_ran(job: dict[str, Any]) -> None:
    rows = {name: report["collectives"] for name, report in job.items()}
    assert rows["nested_loops"][0]["trips"] == [2, 3]
    assert rows["nested_loops"][0]["cause"]["text"] == "lax.psum"
    assert rows["tensor_parallel"][0]["cause"]["kind"] == "contraction"
    assert rows["tensor_parallel"][0]["axes"] == ["y"]
    assert rows["pipeline"][0]["shift"] == "+1"
    assert rows["unknown_length"][0]["executions"] is None
    assert {row["cause"]["text"] for row in rows["largest"]} == {"reduce of a sharded dimension"}
