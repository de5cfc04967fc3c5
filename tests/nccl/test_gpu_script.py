"""``scripts/gpu.py`` without a GPU: its programs run on CPUs, and it reads what a job has said."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from script_modules import load
from support import run_lockstep

gpu = load("gpu")
PROGRAMS = Path(__file__).parents[2] / "scripts" / "gpu_programs.py"


@pytest.mark.full
@pytest.mark.parametrize("name", ["collectives", "precision", "cost"])
def test_its_programs_on_cpus(name: str) -> None:
    result = run_lockstep(["--platform", "cpu"], PROGRAMS, program_args=[name], timeout=120)
    said = [json.loads(line) for lines in result.by_process.values() for line in lines]
    errors = [one["error"] for one in said if "error" in one]
    assert len(errors) == (12 if name == "collectives" else 0)
    assert all(error < 1e-5 for error in errors), errors  # a NaN is not
    assert not any(one.get("differ") for one in said)
    assert said


@pytest.mark.full
def test_its_job_that_hangs_continues_from_its_checkpoint(tmp_path: Path) -> None:
    options = ["--platform", "cpu", "--collective-timeout", "4", "--max-restarts", "1"]
    arguments = ["restart", str(tmp_path / "step")]
    result = run_lockstep(options, PROGRAMS, program_args=arguments, timeout=120)
    said = [json.loads(line) for lines in result.by_process.values() for line in lines]
    said.sort(key=lambda one: one["process"])
    assert said == [{"process": k, "steps": [5, 12], "error": 0.0} for k in range(2)], result
    assert len(gpu.said(result.stdout)) == 2


@pytest.mark.full
def test_its_solvers_on_a_cpu() -> None:
    command = [sys.executable, str(PROGRAMS), "linalg"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    ratios = [json.loads(line)["ratio"] for line in done.stdout.splitlines()]
    assert len(ratios) == 3
    assert all(ratio < 1 for ratio in ratios), ratios  # a NaN is not


@pytest.mark.full
def test_its_solvers_over_two_processes() -> None:
    result = run_lockstep(["--platform", "cpu"], PROGRAMS, program_args=["solvers"], timeout=300)
    said = [json.loads(line) for lines in result.by_process.values() for line in lines]
    assert {one["routine"] for one in said} >= {"solve", "qr", "lstsq", "svd", "polar", "eigh"}
    assert all(one["ratio"] < 1 for one in said), said  # a NaN is not


def test_all_parts_together_stay_under_nine_minutes() -> None:
    assert gpu.WHOLE + 2 * gpu._LEFT <= 9 * 60
    limits = {name: limit for name, (_, limit) in gpu.PARTS.items()}
    assert sum(limits.values()) - limits["faults"] <= gpu.WHOLE
    assert list(limits)[-1] == "faults", "each fault is begun only where time is left for it"


@pytest.mark.full
def test_a_part_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = gpu.bench()
    assert found["status"] == 2
    assert "this machine shows no GPU" in found["said"][-1]
    assert {check["area"] for check in gpu.doctor()["checks"]} <= {"GPUs"}


@pytest.mark.full
def test_a_part_that_takes_too_long_is_ended_with_its_job(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    program = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(100)"

    def part() -> None:
        job = subprocess.Popen([sys.executable, "-c", program])
        try:
            job.wait()
        finally:
            gpu.end(job)

    with pytest.raises(gpu.Late, match="not done after 3 s"), gpu.limited(3):
        part()
    assert not Path(f"/proc/{mark.read_text()}").exists()
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_part_without_time_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "WHOLE", 0)
    results = tmp_path / "gpu.json"
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only", "facts", "--json", str(results)])
    assert gpu.main() == 1
    assert json.loads(results.read_text())["facts"]["error"].startswith("Late: not done")


def test_faults_that_no_time_is_left_for_are_not_begun() -> None:
    with gpu.limited(5):
        found = gpu.faults()
    assert set(found) == set(gpu.FAULTS)
    assert {one["status"] for one in found.values()} == {"not run: no time was left"}


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
    assert gpu.said(output) == [{"planted": 1.5}]
    assert gpu.words(output) == [
        "lockstep: waiting for 5 s over NCCL. process 1 has not arrived yet",
        "lockstep: process 0 of 2 failed first: ValueError: x (exit code 1)",
        "  process 0 (pid 7 on a): waits for process 1",
    ]
