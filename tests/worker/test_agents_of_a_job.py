"""Jobs of two processes with an agent each: what others learn when one of them ends."""

from __future__ import annotations

import re
import signal
import sys
import time

import pytest

from of_this_jax import where_numbered
from processes import captured
from support import assert_unsaid, marked, wait_until
from worker.workers import TIMEOUT, Workers, rest, workers_with

LOOP = """
import os, sys, time, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
jax.distributed.initialize()
rows = NamedSharding(jax.make_mesh((2,), ("x",)), PartitionSpec("x"))
total = jax.jit(lambda x: x.sum())
try:
    for step in range(20):
        if step == 10 and jax.process_index() == 1:
            exec(sys.argv[1])
        ones = jax.make_array_from_process_local_data(rows, np.ones(1, np.float32))
        float(total(ones))
except Exception as error:
    sys.stdout.write(f"raised {error}\\n")
    sys.stdout.flush()
    time.sleep(1)
    sys.stdout.write("saved\\n")
    raise SystemExit(3)
"""
looping = workers_with(LOOP)


@pytest.mark.full
def test_under_mpiexec_the_others_raise_and_save_before_all_is_killed(looping: Workers) -> None:
    done = looping.run_both("os.kill(os.getpid(), 9)")
    assert done.returncode != 0
    told = r"raised .*process 1 \(pid \d+ on .*\) was killed by SIGKILL \(signal 9\) after 10"
    assert re.search(told, done.stdout), done
    assert "saved" in done.stdout, done
    wait_until(lambda: not marked(looping.mark), "a process is left behind")


@pytest.mark.full
def test_sigterm_to_one_agent_stops_its_program_and_the_other_raises(looping: Workers) -> None:
    """JAX's preemption notifier swallows the signal itself."""
    code = """
print("steps", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""
    options = ["--grace", "4", "--log-dir", str(looping.folder / "logs")]
    processes = [looping.start(rank, code, options=options) for rank in range(2)]
    said = ""
    while "steps" not in said:
        assert processes[1].stdout is not None
        line = processes[1].stdout.readline()
        assert line, said
        said += line
    processes[1].send_signal(signal.SIGTERM)
    said += rest(processes[1])
    assert "interrupted\n" in said
    assert "stopped at" in said
    assert processes[1].returncode == -signal.SIGINT
    other = rest(processes[0])
    assert re.search(r"raised .*process 1 \(pid \d+ on .*\)", other), other
    assert processes[0].returncode == 3
    [run] = (looping.folder / "logs").iterdir()
    assert (run / "attempt_0/process_1/recorder.bin").exists()
    wait_until(lambda: not marked(looping.mark), "a process is left behind")


@pytest.mark.full
def test_a_job_goes_on_when_an_agent_is_killed(looping: Workers) -> None:
    code = "print('steps', flush=True); time.sleep(3)"
    processes = [looping.start(rank, code) for rank in range(2)]
    assert processes[1].stdout is not None
    while "steps" not in (line := processes[1].stdout.readline()):
        assert line
    processes[1].kill()
    said = rest(processes[0])
    assert processes[0].returncode == 0, said
    assert_unsaid("raised", said)
    wait_until(lambda: not marked(looping.mark), "a process is left behind", 30)


@pytest.mark.full
def test_a_program_that_ends_well_in_its_own_way_is_not_held_back(looping: Workers) -> None:
    """With another one that goes on: `os._exit(0)` is a habit of programs with slow ends."""
    processes = [looping.start(rank, "os._exit(0)") for rank in range(2)]
    processes[1].wait(TIMEOUT)
    # Process 0 raises when process 1 has gone, and saves for a second.
    assert (processes[0].poll(), processes[1].returncode) == (None, 0)
    assert "its last calls: 10 x program.py:" in rest(processes[0])
    looping.end()


@pytest.mark.full
def test_the_records_of_a_failed_job_are_kept_for_the_report(looping: Workers) -> None:
    where = looping.folder / "logs"
    done = looping.run_both("sys.exit(4)", options=["--log-dir", str(where)])
    [run] = where.iterdir()
    assert f"lockstep: for details: lockstep report {run}" in done.stderr, done
    command = [sys.executable, "-m", "lockstep", "report", str(where)]
    report = captured(command, timeout=TIMEOUT, env=looping.environ)
    assert report.returncode == 1, report
    assert re.search(r"process 1 .* failed after 10 collectives: sys\.exit\(4\)", report.stdout)
    called = "10 x all-reduce (sum) of 1 x f32" + where_numbered(", ")
    assert called in report.stdout, report.stdout


@pytest.mark.full
def test_a_live_job_is_shown_by_the_pid_of_an_agent(looping: Workers) -> None:
    """As `lockstep report` and `lockstep top` find it."""
    started = [looping.start(rank, "time.sleep(60)") for rank in range(2)]
    words = [sys.executable, "-m", "lockstep", "report", "--pid", str(started[0].pid)]
    end = time.monotonic() + TIMEOUT
    said = ""
    while "10 x all-reduce" not in said and time.monotonic() < end:
        time.sleep(0.5)
        said = captured(words, timeout=TIMEOUT).stdout
    assert "process 1" in said
    assert said.count("10 x all-reduce") == 2, said
