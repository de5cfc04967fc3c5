"""Processes that are killed or stopped from outside, at random moments."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from faults.harness import HEAD, PROGRAMS, TIMEOUT, ended_with, told_by
from lanes import full
from support import Run, start_lockstep, wait_until

TRAINING = PROGRAMS / "training.py"
FOR_EVER = str(10**9)


def pid_of(run: Run, process: int) -> int:
    """The pid of a process of the job, which the program has written down."""
    return int((run.folder / f"pid_{process}").read_text())


WAITS = """
x = jax.make_array_from_process_local_data(rows, np.ones(1, np.float32))
total = jax.jit(jnp.sum)
float(total(x))
beside = os.environ["TMPDIR"]
if jax.process_index() == 1:
    while not os.path.exists(f"{beside}/waits"):
        time.sleep(0.05)
    time.sleep(5)
    open(f"{beside}/now", "w").close()
    time.sleep(1000)
open(f"{beside}/waits", "w").close()
float(total(x))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, full(signal.SIGTERM)])
def test_a_signal_to_a_job_that_waits_says_for_which_process(number: int) -> None:
    with start_lockstep(["-n", "2", "-d", "1", "--grace", "4"], HEAD + WAITS, forked=True) as run:
        wait_until(lambda: (run.folder / "now").exists(), "process 0 waits", 60)
        run.process.send_signal(number)
        said = run.finish(TIMEOUT).said_by_launcher
    name = re.escape(signal.Signals(number).name)
    assert re.search(
        rf"stopped by {name}; until then, process 1 \(pid \d+ on \S+\) has not arrived yet; "
        r"process 0 waits in its 2nd: all-reduce \(sum\) of 1 x f32, program.py:12 in sum",
        said,
    ), said


def wait_for_training(run: Run, n: int) -> None:
    wait_until(lambda: len(list(run.folder.glob("training_*"))) == n, "training", 60)


@pytest.mark.parametrize(
    ("moment", "victim", "n"),
    [
        full(0, 0, 2),
        full(1, 1, 2),
        *(
            pytest.param(moment, victim, 3, marks=pytest.mark.slow)
            for moment in range(20)
            for victim in range(3)
        ),
    ],
)
def test_a_process_is_killed_at_any_moment_of_training(moment: int, victim: int, n: int) -> None:
    # A moment of the loop: no test of a duration, and the same again when the test runs again.
    pause = random.Random(moment).uniform(0, 0.5)
    with start_lockstep(["-n", str(n), "--grace", "60"], TRAINING, [FOR_EVER], forked=True) as run:
        wait_for_training(run, n)
        pid = pid_of(run, victim)
        time.sleep(pause)
        os.kill(pid, signal.SIGKILL)
        result = run.finish(TIMEOUT)
        statuses = ended_with(run.folder)
    assert result.status == 137, result
    first = result.said_by_launcher.splitlines()[0]
    assert f"process {victim} of {n} failed first: killed by SIGKILL (signal 9)" in first, result
    for process, told in enumerate(told_by(result, n, statuses)):
        if process == victim:
            assert told.status == -9
        else:
            assert told.status == 20 + process, result
            killed = rf"process {victim} \(pid {pid} on .*\) was killed by SIGKILL"
            assert re.search(killed, told.raised()), result
            assert told.said["saved"] == 10.0


STOPPED = """
import os, signal, sys, time, jax, jax.numpy as jnp
from pathlib import Path
jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
for step in range(6):
    if step == 3 and jax.process_index() == 1:
        Path(os.environ["TMPDIR"], "pid_1").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    result = total(jnp.full(jax.local_device_count(), step + 1.0))[0]
print("result", float(result))
"""


@pytest.mark.full
def test_a_stopped_process_is_reported_and_may_go_on(tmp_path: Path) -> None:
    options = ["-n", "2", "--stall-warning", "1", "--log-dir", str(tmp_path)]

    def warned() -> bool:
        logs = tmp_path.glob("run_*/attempt_0/process_0/stderr.log")
        return any("does meanwhile:" in log.read_text() for log in logs)

    with start_lockstep(options, STOPPED) as run:
        wait_until(warned, "a stall warning", 60)
        pid = pid_of(run, 1)
        os.kill(pid, signal.SIGCONT)
        result = run.finish(TIMEOUT)
    assert result.status == 0, result
    assert result.by_process == {0: ["result 12.0"], 1: ["result 12.0"]}
    warning = "\n".join(result.stderr_by_process[0])
    assert warning.count("waiting for") == 1, warning
    assert f"process 1 (pid {pid} on " in warning
    assert "has not arrived yet" in warning
    assert "kill -STOP, Ctrl-Z" in warning


def test_a_process_that_stays_stopped_is_named_at_the_deadline() -> None:
    options = ["-n", "3", "--collective-timeout", "3", "--grace", "1"]
    with start_lockstep(options, STOPPED, forked=True) as run:
        result = run.finish(TIMEOUT)
    first = next(line for line in result.said_by_launcher.splitlines() if "failed" in line)
    assert re.match(r"lockstep: process 1 \(pid \d+ on \S+\) is stopped, by a signal", first), (
        result
    )
