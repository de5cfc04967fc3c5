"""``lockstep worker --max-restarts``: all processes start again together, under their launcher."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanes import full
from lockstep.system import tcp_ports
from processes import captured, free_port, read_lines
from support import assert_unsaid, wait_until, with_variables
from worker.test_worker_command import CLEAN, WORKER
from worker.workers import Workers, rest, workers_with

TIMEOUT = 120.0
FAILS = r"""
import os, pathlib, signal, subprocess, sys, threading, time, jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
attempt = int(os.environ["LOCKSTEP_ATTEMPT"])
left = pathlib.Path(__file__).with_name("left")
ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
if attempt < int(sys.argv[1]):
    if jax.process_index() == 1:
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        left.write_text(str(child.pid))
        # The other one ends before it, and is not the one to be named.
        threading.Thread(target=time.sleep, args=[1]).start()
        sys.exit(7)
    if sys.argv[2:] == ["stuck"]:
        while True:
            try:
                time.sleep(100)
            except KeyboardInterrupt:
                pass
multihost_utils.process_allgather(ranks)
ports = os.environ["LOCKSTEP_COORDINATOR"]
sys.stdout.write(f"attempt {attempt} {ranks.ravel().tolist()} at {ports}\n")
if left.exists() and os.path.exists(f"/proc/{left.read_text()}"):
    print("a child of the attempt before runs on")
"""
failing = workers_with(FAILS)


@pytest.mark.parametrize(
    "options", [[], full(["--collectives", "gloo", "--grace", "2"])], ids=["engine", "gloo"]
)
def test_all_start_again_after_a_failure(options: list[str], failing: Workers) -> None:
    done = failing.run_both("1", options=["--max-restarts", "2", *options])
    err = done.stderr
    assert done.returncode == 0, err
    found = re.findall(r"attempt (\d) (\[.*?\]) at (\S+)", done.stdout)
    assert [each[:2] for each in found] == [("1", "[0, 1]")] * 2
    assert len({each[2] for each in found}) == 1
    assert "runs on" not in done.stdout
    first = (
        r"^lockstep: process 1 of 2 on \S+ failed first: sys\.exit\(7\) \(exit code 7\), program"
    )
    assert re.search(first, err, re.MULTILINE), err
    again = "lockstep: attempt 0 has failed; starting again (2 restarts left)"
    assert again in err.splitlines(), err
    assert_unsaid("for details", err)
    assert not list((failing.folder / "tmp").iterdir())


@pytest.mark.full
def test_the_last_attempt_gives_status_and_records(failing: Workers) -> None:
    logs = failing.folder / "logs"
    options = ["--max-restarts", "1", "--log-dir", str(logs), "--grace", "4"]
    done = failing.run_both("9", options=options)
    err = done.stderr
    assert done.returncode != 0
    assert "attempt" not in done.stdout
    assert err.count("starting again (1 restart left)") == 1
    [run] = logs.glob("run_*")
    assert {path.name for path in run.glob("attempt_*")} >= {"attempt_1"}
    assert f"lockstep report {run}" in err
    first = r"^lockstep: process 1 of 2 on \S+ failed first: "
    assert len(re.findall(first, err, re.MULTILINE)) == 3, "of each attempt, and in the end"


@pytest.mark.full
def test_a_process_that_does_not_end_is_killed_and_started_again(failing: Workers) -> None:
    done = failing.run_both("1", "stuck", options=["--max-restarts", "1", "--grace", "2"])
    assert done.returncode == 0, done
    assert "killed because they did not end within --grace: process 0" in done.stderr
    assert_unsaid("was killed: ", done.stderr)  # it is said once
    assert done.stdout.count("attempt 1 [0, 1]") == 2


@pytest.mark.full
def test_an_agent_takes_the_place_of_one_on_the_same_host(tmp_path: Path) -> None:
    """Without a key file: it needs the directory of the lost one, with the host's secret."""
    # The program of the lost agent goes on, until it misses process 0.
    goes_on = """print('up', flush=True)
    while True:
        multihost_utils.process_allgather(ranks)"""
    with Workers(tmp_path, FAILS.replace("sys.exit(7)", goes_on)) as workers:
        options = ["--max-restarts", "1"]
        first, lost = (workers.start(rank, "1", options=options) for rank in range(2))
        read_lines(lost, 1)
        lost.kill()
        second = workers.start(1, "1", options=options)
        lines = (rest(second) + rest(first)).splitlines()
        assert not workers.left
    assert [first.returncode, second.returncode] == [0, 0], lines
    assert sum(line.startswith("attempt 1 [0, 1] at") for line in lines) == 2, lines


LOOPS = r"""
import time
print("up", flush=True)
while True:
    try:
        time.sleep(100)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.full
def test_an_agent_whose_supervisor_is_lost_ends_its_program(tmp_path: Path) -> None:
    with Workers(tmp_path, LOOPS) as workers:
        options = ["--max-restarts", "1", "--grace", "2"]
        first, other = (workers.start(rank, options=options) for rank in range(2))
        for agent in (first, other):
            read_lines(agent, 1)
        first.kill()
        said = rest(other)
    asked = "lockstep: the agent of process 0 has ended, so the program is asked to end\n"
    assert said.replace(asked, "", 1).startswith("interrupted\n"), said
    assert asked in said
    assert "process 1 was killed: the agent of process 0 has ended, and it had not ended 2" in said
    assert other.returncode == -signal.SIGKILL


Agent = subprocess.Popen[str]
SAVES = r"""
import os, signal, sys, time

def save(number, frame):
    time.sleep(2)
    print("saved", flush=True)
    sys.exit(0)

if os.environ["LOCKSTEP_PROCESS_ID"] == "1":
    signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(100)
"""


@contextlib.contextmanager
def two_that_run(folder: Path, *options: str) -> Iterator[tuple[int, list[Agent]]]:
    """A job's port, and its agents, when both programs run; that of process 1 saves after
    SIGTERM."""
    with Workers(folder, SAVES) as workers:
        agents = [workers.start(rank, options=options) for rank in range(2)]
        for agent in agents:
            read_lines(agent, 1)
        yield int(workers.port), agents


@pytest.mark.full
def test_the_agent_of_process_0_waits_for_the_report_of_a_job_that_is_stopped(
    tmp_path: Path,
) -> None:
    """Its program ends at once, and the other one saves."""
    with two_that_run(tmp_path, "--max-restarts", "1") as (_, (first, other)):
        for agent in (first, other):
            agent.send_signal(signal.SIGTERM)
        said, saved = rest(first), rest(other)
    assert "lockstep: stopped by a signal to the agent of process 0\n" in said
    assert "saved" in saved
    assert [first.returncode, other.returncode] == [-signal.SIGTERM, 0]


def programs(folder: Path, process: int) -> set[int]:
    """The programs of a process, and not its agents, which lack this variable."""
    return with_variables(f"LOCKSTEP_PROCESS_ID={process}", f"TMPDIR={folder / 'tmp'}")


def test_a_killed_agent_takes_its_program_along(tmp_path: Path) -> None:
    """Another agent may take its place at once."""
    with two_that_run(tmp_path, "--max-restarts", "1", "--grace", "60") as (_, (_, other)):
        assert len(programs(tmp_path, 1)) == 1
        other.kill()
        wait_until(lambda: not programs(tmp_path, 1), "an end of the program", 20.0)


@pytest.mark.full
def test_the_agent_of_process_0_does_not_wait_for_a_supervisor_that_is_stuck(
    tmp_path: Path,
) -> None:
    with two_that_run(tmp_path, "--max-restarts", "1", "--grace", "1") as (port, (first, _)):
        listens = re.search(r"process (\d+)", tcp_ports.taken("127.0.0.1", port))
        assert listens
        os.kill(int(listens[1]), signal.SIGSTOP)
        first.send_signal(signal.SIGTERM)
        said = rest(first)
    assert_unsaid("stopped by a signal to the agent of process", said)
    assert first.returncode == -signal.SIGTERM


def test_under_lockstep_run_the_launcher_restarts(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("")
    environ = {
        **CLEAN,
        "LOCKSTEP_RUN_DIR": str(tmp_path),
        "LOCKSTEP_PROCESS_ID": "0",
        "LOCKSTEP_NUM_PROCESSES": "1",
        "LOCKSTEP_COORDINATOR": f"127.0.0.1:{free_port()}",
    }
    command = [*WORKER, "--max-restarts", "1", str(tmp_path / "program.py")]
    done = captured(command, timeout=TIMEOUT, env=environ)
    assert done.returncode != 0
    assert "--max-restarts of lockstep worker: here lockstep run owns the processes" in done.stderr
