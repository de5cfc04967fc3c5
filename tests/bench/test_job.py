"""A job that is driven over its socket, and how its end becomes a reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lockstep.bench import job
from lockstep.bench.job import BenchJob, JobFailed, JobSpec

WORKER = """\
import json, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
lines = connection.makefile("rw")
def reply(**answer):
    lines.write(json.dumps(answer) + "\\n")
    lines.flush()
reply(process=0)
for line in lines:
    order = json.loads(line)
    if order["do"] == "double":
        reply(result=2 * order["value"])
    elif order["do"] == "raise":
        reply(error="JaxRuntimeError: INTERNAL: all_reduce: process 1 left")
    elif order["do"] == "sleep":
        import time
        time.sleep(60)
    else:
        sys.exit("terminate called after throwing an instance of 'gloo::IoException'")
"""


class ScriptSpec(JobSpec):
    """A job of one process that runs ``WORKER`` without the launcher."""

    def command(self, path: Path) -> list[str]:
        return [sys.executable, "-I", "-c", WORKER, str(path)]


class BrokenSpec(JobSpec):
    def command(self, path: Path) -> list[str]:
        return [sys.executable, "-I", "-c", "raise SystemExit('error: no such option')"]


@pytest.fixture
def running(tmp_path: Path):
    with BenchJob(ScriptSpec("gloo", 1, 1), tmp_path, dict(os.environ)) as started:
        yield started
    assert started._process.poll() is not None


def test_orders_are_answered(running: BenchJob) -> None:
    assert running.hello == [{"process": 0}]
    assert running.request("double", 10.0, value=21) == [{"result": 42}]


def test_an_error_in_a_process_is_the_reason(running: BenchJob) -> None:
    with pytest.raises(JobFailed, match="process 1 left"):
        running.request("raise", 10.0)


def test_a_process_that_ends_leaves_its_last_words(running: BenchJob) -> None:
    with pytest.raises(JobFailed, match="gloo::IoException"):
        running.request("die", 10.0)


def test_a_process_that_does_not_answer_is_given_up(
    running: BenchJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "STOP_SECONDS", 0.2)
    with pytest.raises(JobFailed, match="no answer in time from 1 of 1 processes"):
        running.request("sleep", 0.2)


def test_a_launcher_that_ends_at_once(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="ended before it started: error: no such option"):
        BenchJob(BrokenSpec("gloo", 1, 1), tmp_path, dict(os.environ))


def test_the_launcher_is_given_the_implementation() -> None:
    command = JobSpec("gloo", 2, 4, ("--bind", "none")).command(Path("/x.sock"))
    assert command[1:] == [
        *("-m", "lockstep", "run", "--this-host", "--collectives", "gloo", "-n", "2", "-d", "4"),
        *("--bind", "none", "-m", "lockstep.bench.worker", "/x.sock"),
    ]


def test_the_launcher_gets_the_environment_of_the_benchmark() -> None:
    started = {"MPITRAMPOLINE_LIB": "/opt/libmpiwrapper.so"}
    assert JobSpec("mpi", 2, 1, x64=True).environ(started) == {**started, "JAX_ENABLE_X64": "1"}


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", "it printed nothing"),
        ("starting\nall well\n", "starting"),
        ("x\nerror: no such option\nValueError: late\n", "ValueError: late"),
        (
            "  raise ValueError(\nValueError: first\nRuntimeError: second\nbye\n",
            "ValueError: first",
        ),
    ],
)
def test_the_most_telling_line(log: str, reason: str) -> None:
    assert job.why(log) == reason


def test_a_long_reason_is_cut() -> None:
    assert len(job.why("Error: " + "x" * 1000)) == job.MAX_REASON
