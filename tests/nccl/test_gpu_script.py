"""``scripts/gpu.py`` without a GPU: its programs run on CPUs, and it reads what a job has said."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support import run_lockstep

SCRIPTS = Path(__file__).parents[2] / "scripts"
PROGRAMS = SCRIPTS / "gpu_programs.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu", SCRIPTS / "gpu.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
@pytest.mark.parametrize("name", ["collectives", "precision", "cost"])
def test_its_programs_on_cpus(name: str) -> None:
    result = run_lockstep(["--platform", "cpu"], PROGRAMS, program_args=[name], timeout=120)
    said = [json.loads(line) for lines in result.by_process.values() for line in lines]
    errors = [one["error"] for one in said if "error" in one]
    assert len(errors) == (12 if name == "collectives" else 0)
    assert max(errors, default=0) < 1e-5
    assert not any(one.get("differ") for one in said)
    assert said


@pytest.mark.full
def test_its_solvers_on_a_cpu() -> None:
    command = [sys.executable, str(PROGRAMS), "linalg"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    ratios = [json.loads(line)["ratio"] for line in done.stdout.splitlines()]
    assert len(ratios) == 3
    assert max(ratios) < 1


def test_what_it_keeps_of_an_output() -> None:
    output = """\
[0] lockstep: the hook "x" does not fit
[0] {"planted": 1.5}
[0] Traceback (most recent call last):
[0]   File "/home/me/train.py", line 3, in <module>
[0] lockstep: waiting for 5 s over NCCL. process 1 has not arrived yet
lockstep: process 0 of 2 failed first: ValueError: x (exit code 1)
  process 0 (pid 7 on a): waits for process 1
lockstep: for details: lockstep report /tmp/x
"""
    gpu = script()
    assert gpu.said(output) == [{"planted": 1.5}]
    assert gpu.words(output) == [
        "lockstep: waiting for 5 s over NCCL. process 1 has not arrived yet",
        "lockstep: process 0 of 2 failed first: ValueError: x (exit code 1)",
        "  process 0 (pid 7 on a): waits for process 1",
    ]
