"""``lockstep worker --max-restarts``: all processes start again together, under their launcher."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lanes import full
from lockstep._errors import LaunchError
from lockstep._run_files import ErrorRecord, Exit
from lockstep.hosts import network_probe
from lockstep.hosts.supervisor_line import Attempt, SupervisorLine
from processes import free_port
from support import MARK, marked, wait_until
from worker.test_worker_command import CLEAN, WORKER, mpiexec
from worker.workers import Workers, rest

TIMEOUT = 120.0
KEY = b"k" * 32
FAILS = r"""
import os, signal, sys, threading, time, jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
attempt = int(os.environ["LOCKSTEP_ATTEMPT"])
ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
if attempt < int(sys.argv[1]):
    if jax.process_index() == 1:
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
"""


def start(folder: Path, *words: str, source: str = FAILS) -> subprocess.Popen[str]:
    """Two processes under MPICH's mpiexec, whose files are in ``folder``/tmp."""
    (folder / "tmp").mkdir()
    (folder / "program.py").write_text(source)
    options, program = words[: words.index("--")], words[words.index("--") + 1 :]
    return subprocess.Popen(
        [mpiexec(), "-n", "2", *WORKER, *options, str(folder / "program.py"), *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**CLEAN, "TMPDIR": str(folder / "tmp"), MARK: str(folder)},
    )


def finish(started: subprocess.Popen[str], folder: Path) -> tuple[str, str]:
    """The output; nothing is left."""
    try:
        out, err = started.communicate(timeout=TIMEOUT)
    finally:
        for pid in marked(str(folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not list((folder / "tmp").glob("lockstep-run-*"))
    return out, err


@pytest.mark.parametrize(
    "options", [[], full(["--collectives", "gloo", "--grace", "2"])], ids=["engine", "gloo"]
)
def test_all_start_again_after_a_failure(options: list[str], tmp_path: Path) -> None:
    started = start(tmp_path, "--max-restarts", "2", *options, "--", "1")
    out, err = finish(started, tmp_path)
    assert started.returncode == 0, err
    found = re.findall(r"attempt (\d) (\[.*?\]) at (\S+)", out)
    assert [each[:2] for each in found] == [("1", "[0, 1]")] * 2
    assert len({each[2] for each in found}) == 1
    first = (
        r"^lockstep: process 1 of 2 on \S+ failed first: sys\.exit\(7\) \(exit code 7\), program"
    )
    assert re.search(first, err, re.MULTILINE), err
    again = "lockstep: attempt 0 has failed; starting again (2 restarts left)"
    assert again in err.splitlines(), err
    assert "for details" not in err
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.full
def test_the_last_attempt_gives_status_and_records(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    options = ["--max-restarts", "1", "--log-dir", str(logs), "--grace", "4"]
    started = start(tmp_path, *options, "--", "9")
    out, err = finish(started, tmp_path)
    assert started.returncode != 0
    assert "attempt" not in out
    assert err.count("starting again (1 restart left)") == 1
    [run] = logs.glob("run_*")
    assert {path.name for path in run.glob("attempt_*")} >= {"attempt_1"}
    assert f"lockstep report {run}" in err
    assert err.count("process 1 of 2 on") == 2, "the failure of each attempt"


@pytest.mark.full
def test_a_process_that_does_not_end_is_killed_and_started_again(tmp_path: Path) -> None:
    started = start(tmp_path, "--max-restarts", "1", "--grace", "2", "--", "1", "stuck")
    out, err = finish(started, tmp_path)
    assert started.returncode == 0, (out, err)
    assert "killed because they did not end within --grace: process 0" in err
    assert "process 0 was killed" not in err, "it is said once"
    assert out.count("attempt 1 [0, 1]") == 2


@pytest.mark.full
def test_a_job_that_is_stopped_does_not_start_again(tmp_path: Path) -> None:
    # One write: both programs have the same pipe.
    source = "import os, time; os.write(1, b'up\\n'); time.sleep(100)"
    with start(tmp_path, "--max-restarts", "3", "--", source=source) as started:
        assert started.stdout
        assert [started.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        started.send_signal(signal.SIGTERM)
        _, err = started.communicate(timeout=TIMEOUT)
    assert "stopped by a signal to the agent of process" in err
    assert "starting again" not in err
    wait_until(lambda: not marked(str(tmp_path)), "an end of all processes")


@pytest.mark.full
def test_an_agent_takes_the_place_of_one_on_the_same_host(tmp_path: Path) -> None:
    """Without a key file: it needs the directory of the lost one, with the host's secret."""
    (tmp_path / "tmp").mkdir()
    # The program of the lost agent goes on, until it misses process 0.
    goes_on = """print('up', flush=True)
    while True:
        multihost_utils.process_allgather(ranks)"""
    (tmp_path / "program.py").write_text(FAILS.replace("sys.exit(7)", goes_on))
    port = str(free_port())

    def agent(process: int) -> subprocess.Popen[str]:
        place = {"RANK": str(process), "WORLD_SIZE": "2", "LOCAL_RANK": str(process)}
        at = {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return subprocess.Popen(
            [*WORKER, "--max-restarts", "1", str(tmp_path / "program.py"), "1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**CLEAN, **place, **at, "TMPDIR": str(tmp_path / "tmp"), MARK: str(tmp_path)},
        )

    with agent(0) as first, agent(1) as lost:
        assert lost.stdout
        assert lost.stdout.readline() == "up\n"
        lost.kill()
        with agent(1) as second:
            out = second.communicate(timeout=TIMEOUT)[0]
        lines = (out + finish(first, tmp_path)[0]).splitlines()
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


def test_an_agent_whose_supervisor_is_lost_ends_its_program(tmp_path: Path) -> None:
    workers = Workers(tmp_path, LOOPS)
    try:
        options = ["--max-restarts", "1", "--grace", "2"]
        first, other = (workers.start(rank, options=options) for rank in range(2))
        assert first.stdout
        assert other.stdout
        assert [first.stdout.readline(), other.stdout.readline()] == ["up\n"] * 2
        first.kill()
        said = rest(other)
    finally:
        workers.end()
    assert said.startswith("interrupted\n"), said
    assert "process 1 was killed: the agent of process 0 has ended, and it had not ended 2" in said
    assert other.returncode == -signal.SIGKILL


# The supervisor alone


SUPERVISES = """
import sys
from pathlib import Path
from lockstep._config import Config
from lockstep.launch import worker_job
from lockstep.processes.job_spec import LaunchSpec
address, name, folder, restarts, timeout = sys.argv[1:]
config = Config(start_timeout=float(timeout))
job = LaunchSpec(
    (), 2, config, {}, Path(folder), grace=1.0, max_restarts=int(restarts), agents_keep_records=True
)
worker_job.start(job, address, name, b"k" * 32)
print("started", flush=True)
sys.stdin.read()
"""


class Job:
    """The supervisor of two processes, as a child of a process that stands for an agent."""

    def __init__(
        self,
        folder: Path,
        restarts: int = 1,
        timeout: float = 30.0,
        name: str = "job",
        port: int = 0,
    ) -> None:
        self.port = port or free_port()
        words = [f"127.0.0.1:{self.port}", name, str(folder), str(restarts), str(timeout)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISES, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.has_started = bool(self.process.stdout.readline())

    def line(self, process: int, key: bytes = KEY, timeout: float = 30.0) -> SupervisorLine:
        return SupervisorLine.connect(f"127.0.0.1:{self.port}", "job", key, process, timeout)

    def end(self) -> str:
        """What it has reported."""
        return self.process.communicate("", timeout=TIMEOUT)[1]


Start = Callable[..., Job]


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Start]:
    made: list[Job] = []

    def start(*args: Any, **values: Any) -> Job:
        made.append(Job(tmp_path, *args, **values))
        return made[-1]

    yield start
    for job in made:
        if job.process.poll() is None:
            job.end()


def begin(lines: list[SupervisorLine]) -> list[Attempt]:
    """All wait for the start at the same time."""
    found: list[Attempt] = []
    threads = [
        threading.Thread(target=lambda line=line: found.append(line.wait_for_start()))
        for line in lines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    return found


def ended(
    line: SupervisorLine, status: int, stopped: bool = False, record: ErrorRecord | None = None
) -> None:
    line.ended(Exit.of(status), record, stopped, False)


def finish_well(lines: list[SupervisorLine]) -> None:
    """The job ends without a failure."""
    for line in lines:
        ended(line, 0)
    assert [line.decision(TIMEOUT) for line in lines] == [False] * len(lines)


def wait_for_signal(line: SupervisorLine) -> None:
    """The supervisor has the program of ``line`` stopped, since another one has failed."""
    wait_until(lambda: signal.SIGINT in line.signals(), "SIGINT")
    assert not line.is_lost


def test_an_agent_in_the_place_of_a_lost_one(start_job: Start) -> None:
    """As a new pod of an Indexed Job has the index of one that was evicted."""
    job = start_job()
    stays, lost = job.line(0), job.line(1)
    first, other = begin([stays, lost])
    assert first == other
    assert first.attempt == 0
    assert not stays.signals()
    lost.close()
    wait_for_signal(stays)
    ended(stays, 1)
    assert stays.decision(TIMEOUT) is True
    new = job.line(1)
    second, other = begin([stays, new])
    assert second == other
    assert second.attempt == 1
    assert second.coordinator != first.coordinator
    finish_well([stays, new])
    assert re.search(r"process 1 of 2 on \S+ failed first: its agent was lost$", job.end(), re.M)


def test_an_agent_that_comes_early_takes_the_place_of_one_that_is_lost(start_job: Start) -> None:
    """The host of the first is lost: its connection has no end, and the new one tells of it."""
    job = start_job(restarts=2)
    stays, lost = job.line(0), job.line(1)
    begin([stays, lost])
    started: list[Attempt] = []
    new = job.line(1)
    waits = threading.Thread(target=lambda: started.append(new.wait_for_start()))
    waits.start()
    wait_for_signal(stays)
    assert waits.is_alive()
    ended(stays, 1)
    assert stays.decision(TIMEOUT) is True
    [second] = begin([stays])
    waits.join(TIMEOUT)
    assert started == [second]
    assert second.attempt == 1
    # A loss of the first attempt does not count in the second.
    finish_well([stays, new])
    lost.close()


def test_an_agent_that_is_stopped_alone_counts_as_failed(start_job: Start) -> None:
    job = start_job()
    stays, evicted = job.line(0), job.line(1)
    begin([stays, evicted])
    ended(evicted, -signal.SIGTERM, stopped=True)
    wait_for_signal(stays)
    ended(stays, 1)
    assert [line.decision(TIMEOUT) for line in (stays, evicted)] == [True, True]
    evicted.close()
    lines = [stays, job.line(1)]
    begin(lines)
    finish_well(lines)
    assert "process 1 of 2 on" in job.end()


def test_the_failure_that_came_first_is_named(start_job: Start) -> None:
    """Not the program that has ended first: an error may be raised long before its process ends."""
    job = start_job()
    victim, culprit = job.line(0), job.line(1)
    begin([victim, culprit])
    now = time.monotonic()
    ended(victim, 1, record=ErrorRecord(now - 2, 1, "ValueError: late", ""))
    wait_for_signal(culprit)
    ended(culprit, 7, record=ErrorRecord(now - 5, 7, "ValueError: early", ""))
    assert [line.decision(TIMEOUT) for line in (victim, culprit)] == [True, True]
    lines = [victim, culprit]
    begin(lines)
    finish_well(lines)
    report = job.end()
    assert re.search(r"process 1 of 2 on \S+ failed first: ValueError: early", report), report
    assert re.search(r"process 0 on \S+ failed 3\.\d s later: ValueError: late", report), report


def test_a_lost_agent_is_named_before_those_that_fail_because_of_it(start_job: Start) -> None:
    """The silence of its host is noticed later than the errors of the others."""
    job = start_job()
    victim, lost = job.line(0), job.line(1)
    begin([victim, lost])
    ended(victim, 1, record=ErrorRecord(time.monotonic(), 1, "RuntimeError: its peer is gone", ""))
    lost.close()
    assert victim.decision(TIMEOUT) is True
    lines = [victim, job.line(1)]
    begin(lines)
    finish_well(lines)
    assert re.search(r"process 1 of 2 on \S+ failed first: its agent was lost$", job.end(), re.M)


@pytest.mark.parametrize(
    "message",
    [
        b"[]",
        b"no head",
        b'{"kind": "ready"}',
        b'{"kind": "ready", "process": 1}',
        b'{"kind": "ready", "process": 1.5, "host": "a"}',
        b'{"kind": "exit", "process": 1}',
        b'{"kind": "exit", "process": 1, "exit": 1, "record": null, "stopped": false}',
        b'{"kind": "leave", "process": 1}',
    ],
)
def test_what_is_no_message_ends_the_connection_alone(start_job: Start, message: bytes) -> None:
    job = start_job()
    with network_probe.connect("127.0.0.1", job.port, "job", KEY, TIMEOUT) as other:
        other.settimeout(TIMEOUT)
        other.sendall(struct.pack(">IQ", len(message), 0) + message)
        assert other.recv(1) == b""
    lines = [job.line(0), job.line(1)]
    assert len(begin(lines)) == 2
    with network_probe.connect("127.0.0.1", job.port, "job", KEY, TIMEOUT) as other:
        other.settimeout(TIMEOUT)
        other.sendall(struct.pack(">IQ", len(message), 0) + message)
        assert other.recv(1) == b""
    finish_well(lines)


def test_an_agent_that_sends_what_is_no_message_is_lost(start_job: Start) -> None:
    job = start_job()
    stays, lost = job.line(0), job.line(1)
    begin([stays, lost])
    lost.ended(Exit(signal="all"), None, False, False)  # type: ignore[arg-type]
    wait_for_signal(stays)
    ended(stays, 0)
    assert stays.decision(TIMEOUT) is True
    lines = [stays, job.line(1)]
    begin(lines)
    finish_well(lines)
    assert re.search(r"process 1 of 2 on \S+ failed first: its agent was lost$", job.end(), re.M)


@pytest.mark.full
def test_two_jobs_do_not_share_a_port(start_job: Start) -> None:
    first = start_job(timeout=15.0)  # more than the other waits for the port
    second = start_job(name="other", port=first.port)
    assert not second.has_started
    assert "the agent of process 0 cannot listen on 127.0.0.1" in second.end()


def test_a_failure_of_the_last_attempt_and_a_signal_end_the_job(start_job: Start) -> None:
    for restarts, stopped in ((0, False), (1, True)):
        job = start_job(restarts)
        lines = [job.line(0), job.line(1)]
        begin(lines)
        for line in lines:
            ended(line, 3, stopped)
        assert [line.decision(TIMEOUT) for line in lines] == [False, False]
        found = "stopped by a signal" if stopped else "failed first: exit code 3"
        assert found in job.end()


def test_processes_that_do_not_come_are_named(start_job: Start) -> None:
    job = start_job(timeout=1.0)
    with pytest.raises(
        LaunchError, match=r"process 0 was not started: the agent of process 1 did not come"
    ):
        job.line(0).wait_for_start()


def test_an_agent_that_does_not_come_again_ends_the_job(start_job: Start) -> None:
    job = start_job(restarts=3, timeout=2.0)
    stays, lost = job.line(0), job.line(1)
    begin([stays, lost])
    ended(stays, 1)
    lost.close()
    assert stays.decision(TIMEOUT) is True
    with pytest.raises(LaunchError, match=r"the agent of process 1 did not come within 2 s"):
        stays.wait_for_start()
    assert "not started again: the agent of process 1 did not come" in job.end()


def test_an_agent_without_its_supervisor_knows_it(start_job: Start) -> None:
    job = start_job()
    lines = [job.line(0), job.line(1)]
    begin(lines)
    job.end()
    for line in lines:
        wait_until(
            lambda line=line: not line.signals() and line.is_lost, "the end of the supervisor"
        )
        assert line.decision(TIMEOUT) is False


def test_another_key_is_refused(start_job: Start) -> None:
    job = start_job(timeout=2.0)
    with pytest.raises(LaunchError, match=r"process 1 does not reach the agent of process 0 .*key"):
        job.line(1, b"x" * 32, 1.0)


def test_under_lockstep_run_the_launcher_restarts(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("")
    done = subprocess.run(
        [*WORKER, "--max-restarts", "1", str(tmp_path / "program.py")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        env={
            **CLEAN,
            "LOCKSTEP_RUN_DIR": str(tmp_path),
            "LOCKSTEP_PROCESS_ID": "0",
            "LOCKSTEP_NUM_PROCESSES": "1",
            "LOCKSTEP_COORDINATOR": f"127.0.0.1:{free_port()}",
        },
    )
    assert done.returncode != 0
    assert "--max-restarts of lockstep worker: here lockstep run owns the processes" in done.stderr
