"""A job that carries out orders, and how its end becomes a reason."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from lockstep.bench import job
from lockstep.bench.job import BenchJob, JobFailed, JobSpec


@pytest.fixture
def running() -> Iterator[BenchJob]:
    with BenchJob(JobSpec("gloo", 1, 2)) as started:
        yield started
    assert started._pool.pids == []


@pytest.mark.full
def test_orders_are_answered_and_an_error_is_the_reason(running: BenchJob) -> None:
    [hello] = running.hello
    assert [hello[name] for name in ("process", "processes", "ranks")] == [0, 1, 2]
    [answer] = running.request("copy", 60.0, seconds=0.01)
    assert answer["rate"] > 0
    with pytest.raises(JobFailed, match="RuntimeError: no case is prepared"):
        running.request("block", 60.0, k=1, samples=1, calls=1)


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "process 0 of 1 died: killed by SIGKILL"),
        (signal.SIGSTOP, "no answer in time: process 0"),
    ],
)
def test_a_process_that_dies_or_is_stuck_is_the_reason(
    running: BenchJob, number: signal.Signals, words: str
) -> None:
    os.kill(running._pool.pids[0], number)
    with pytest.raises(JobFailed, match=words):
        running.request("copy", 1.0, seconds=0.01)


def test_a_death_is_told_after_the_launcher_has_ended(running: BenchJob) -> None:
    """The launcher of one process ends at once after it, and leaves what it wrote to its caller."""
    processes = running._pool._processes
    assert processes is not None
    os.kill(running._pool.pids[0], signal.SIGKILL)
    deadline = time.monotonic() + 60.0
    while not processes.is_over and time.monotonic() < deadline:
        processes.turn(1.0)
    assert (exit := processes.exit_of(0, 0.0))
    assert exit.signal == signal.SIGKILL


def test_a_launcher_that_ends_at_once() -> None:
    with pytest.raises(JobFailed, match=r"ended before it started: .*invalid choice: 'no'"):
        BenchJob(JobSpec("gloo", 1, 1, ("--bind", "no")))


def test_the_processes_are_those_of_the_implementation() -> None:
    pool = JobSpec("plain", 2, 4, ("--bind", "none"), x64=True).pool()
    words = ["-n", "2", "--collectives", "lockstep", "--bind", "none", "--devices", "4"]
    assert pool.options() == words
    assert pool.environ == {"JAX_ENABLE_X64": "1", "LOCKSTEP_ENCRYPTION": "0"}
    alone = JobSpec("xla", 2, 4).pool()
    assert (alone.processes, alone.devices, alone.joins) == (1, 8, False)


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
