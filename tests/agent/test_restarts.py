"""``lockstep worker --max-restarts``: all processes start again together, under their launcher."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.test_worker_command import CLEAN, WORKER, mpiexec
from lanes import full
from lockstep._errors import LaunchError
from lockstep.hosts import network_probe, restart_server
from lockstep.hosts.restart_line import Attempt, RestartLine
from lockstep.hosts.restart_server import Server
from processes import free_port
from support import MARK, marked, wait_until

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
    assert re.search(
        r"^lockstep: attempt 0 has failed: process 1 on \S+ ended with status 7; starting again "
        r"\(2 restarts left\)$",
        err,
        re.MULTILINE,
    ), err
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


@pytest.mark.full
def test_a_process_that_does_not_end_is_killed_and_started_again(tmp_path: Path) -> None:
    started = start(tmp_path, "--max-restarts", "1", "--grace", "2", "--", "1", "stuck")
    out, err = finish(started, tmp_path)
    assert started.returncode == 0, (out, err)
    assert "process 0 was killed: another has failed, and it had not ended 2 s later" in err
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


# The server alone


class Job:
    """A server of two processes, in a thread."""

    def __init__(self, restarts: int = 1, timeout: float = 30.0) -> None:
        self.port = free_port()
        listener = network_probe.listen("127.0.0.1", self.port)
        hosts = ("127.0.0.1", "127.0.0.1")
        self.server = Server(listener, hosts, 2, "job", KEY, restarts, 1.0, timeout)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()

    def line(self, process: int, key: bytes = KEY, timeout: float = 30.0) -> RestartLine:
        return RestartLine.connect(f"127.0.0.1:{self.port}", "job", key, process, timeout)


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    made: list[Job] = []
    yield made
    for job in made:
        job.thread.join(TIMEOUT)
        assert not job.thread.is_alive()
        job.server.close()


def begin(lines: list[RestartLine]) -> list[Attempt]:
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


def test_an_agent_in_the_place_of_a_lost_one(jobs: list[Job]) -> None:
    """As a new pod of an Indexed Job has the index of one that was evicted."""
    jobs.append(job := Job())
    stays, lost = job.line(0), job.line(1)
    first, other = begin([stays, lost])
    assert first == other
    assert first.attempt == 0
    assert not stays.failure()
    lost.close()
    wait_until(lambda: bool(stays.failure()), "the news of the loss")
    stays.ended(1, False)
    assert stays.decision(TIMEOUT) is True
    new = job.line(1)
    second, other = begin([stays, new])
    assert second == other
    assert second.attempt == 1
    assert second.coordinator != first.coordinator
    for line in (stays, new):
        line.ended(0, False)
    assert [line.decision(TIMEOUT) for line in (stays, new)] == [False, False]


def test_an_agent_that_comes_early_takes_the_place_of_one_that_is_lost(jobs: list[Job]) -> None:
    """Its host is lost: its connection has no end, and the server learns it from the new one."""
    jobs.append(job := Job(restarts=2))
    stays, lost = job.line(0), job.line(1)
    begin([stays, lost])
    started: list[Attempt] = []
    new = job.line(1)
    waits = threading.Thread(target=lambda: started.append(new.wait_for_start()))
    waits.start()
    wait_until(lambda: bool(stays.failure()), "the news of the loss")
    assert waits.is_alive()
    stays.ended(1, False)
    assert stays.decision(TIMEOUT) is True
    [second] = begin([stays])
    waits.join(TIMEOUT)
    assert started == [second]
    assert second.attempt == 1
    for line in (stays, new):
        line.ended(0, False)
    # A loss of the first attempt does not count in the second.
    assert [line.decision(TIMEOUT) for line in (stays, new)] == [False, False]
    lost.close()


def test_an_agent_that_is_stopped_alone_counts_as_failed(jobs: list[Job]) -> None:
    jobs.append(job := Job())
    stays, evicted = job.line(0), job.line(1)
    begin([stays, evicted])
    evicted.ended(-15, True)
    wait_until(lambda: bool(stays.failure()), "the news of the failure")
    stays.ended(1, False)
    assert [line.decision(TIMEOUT) for line in (stays, evicted)] == [True, True]
    evicted.close()
    lines = [stays, job.line(1)]
    begin(lines)
    for line in lines:
        line.ended(0, False)
    assert [line.decision(TIMEOUT) for line in lines] == [False, False]


def test_the_failure_that_came_first_is_named(
    jobs: list[Job], capfd: pytest.CaptureFixture[str]
) -> None:
    """Not the program that has ended first: it had the news of the other one's failure."""
    jobs.append(job := Job())
    victim, culprit = job.line(0), job.line(1)
    begin([victim, culprit])
    victim.ended(1, False, consequence=True)
    wait_until(lambda: bool(culprit.failure()), "the news of the failure")
    culprit.ended(7, False)
    assert [line.decision(TIMEOUT) for line in (victim, culprit)] == [True, True]
    assert re.search("has failed: process 1 on .* ended with status 7", capfd.readouterr().err)
    begin([victim, culprit])
    for line in (victim, culprit):
        line.ended(0, False)
    assert [line.decision(TIMEOUT) for line in (victim, culprit)] == [False, False]


def test_a_lost_agent_is_named_before_those_that_fail_because_of_it(
    jobs: list[Job], capfd: pytest.CaptureFixture[str]
) -> None:
    """The silence of its host is noticed later than the errors of the others."""
    jobs.append(job := Job())
    victim, lost = job.line(0), job.line(1)
    begin([victim, lost])
    victim.ended(1, False, consequence=True)
    wait_until(lambda: bool(lost.failure()), "the news of the failure")
    lost.close()
    assert victim.decision(TIMEOUT) is True
    assert "has failed: the agent of process 1 was lost; starting again" in capfd.readouterr().err
    lines = [victim, job.line(1)]
    begin(lines)
    for line in lines:
        line.ended(0, False)
    assert [line.decision(TIMEOUT) for line in lines] == [False, False]


@pytest.mark.parametrize(
    "message",
    [
        b"[]",
        b"no head",
        b'{"kind": "ready"}',
        b'{"kind": "ready", "process": 1.5}',
        b'{"kind": "ended", "process": 1}',
        b'{"kind": "ended", "process": 1, "status": 1, "stopped": false, "host": "a"}',
        b'{"kind": "leave", "process": 1}',
    ],
)
def test_what_is_no_message_ends_the_connection_alone(jobs: list[Job], message: bytes) -> None:
    jobs.append(job := Job())
    with network_probe.connect("127.0.0.1", job.port, "job", KEY, TIMEOUT) as other:
        other.settimeout(TIMEOUT)
        other.sendall(struct.pack(">IQ", len(message), 0) + message)
        assert other.recv(1) == b""
    lines = [job.line(0), job.line(1)]
    assert len(begin(lines)) == 2
    for line in lines:
        line.ended(0, False)
    assert [line.decision(TIMEOUT) for line in lines] == [False, False]


@pytest.mark.full
def test_two_jobs_do_not_share_a_port(jobs: list[Job]) -> None:
    jobs.append(job := Job(timeout=15.0))  # more than the other waits for the port
    with pytest.raises(LaunchError, match=r"the agent of process 0 cannot listen on 127\.0\.0\.1"):
        restart_server.start(f"127.0.0.1:{job.port}", 2, "other", KEY, 1, 1.0, 1.0)


def test_a_failure_of_the_last_attempt_and_a_signal_end_the_job(jobs: list[Job]) -> None:
    for restarts, stopped in ((0, False), (1, True)):
        jobs.append(job := Job(restarts))
        lines = [job.line(0), job.line(1)]
        begin(lines)
        for line in lines:
            line.ended(3, stopped)
        assert [line.decision(TIMEOUT) for line in lines] == [False, False]


def test_processes_that_do_not_come_are_named(jobs: list[Job]) -> None:
    jobs.append(job := Job(timeout=1.0))
    with pytest.raises(
        LaunchError, match=r"process 0 was not started: the agent of process 1 did not come"
    ):
        job.line(0).wait_for_start()


def test_another_key_is_refused(jobs: list[Job]) -> None:
    jobs.append(job := Job(timeout=2.0))
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
