"""The supervisor of ``lockstep worker --max-restarts`` alone: this process is the agents."""

from __future__ import annotations

import contextlib
import re
import signal
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockstep._errors import LaunchError
from lockstep._run_files import ErrorRecord, Exit
from lockstep.hosts.checks import network_probe
from lockstep.hosts.worker_agent import Attempt
from support import wait_until
from worker.supervised import (
    KEY,
    TIMEOUT,
    Job,
    Line,
    Start,
    begin,
    ended,
    finish_well,
    last_attempt,
    started,
    wait_for_signal,
)


def go_on(job: Job, stays: Line) -> list[Attempt]:
    """Process 0 ends as it is told, and goes on with another agent of process 1."""
    wait_for_signal(stays)
    ended(stays, 1)
    assert stays.decision(TIMEOUT) is True
    lines = [stays, job.line(1)]
    attempts = begin(lines)
    finish_well(lines)
    return attempts


def test_an_agent_in_the_place_of_a_lost_one(start_job: Start) -> None:
    """As a new pod of an Indexed Job has the index of one that was evicted."""
    job = start_job()
    stays, lost = job.line(0), job.line(1)
    first, other = begin([stays, lost])
    assert first == other
    assert first.attempt == 0
    assert not stays.signals()
    lost.close()
    second, other = go_on(job, stays)
    assert second == other
    assert second.attempt == 1
    assert second.coordinator != first.coordinator
    assert re.search(r"process 1 of 2 on \S+ failed first: its agent was lost$", job.end(), re.M)


SHORT = "from lockstep.hosts import lease; lease.SILENCE_SECONDS = 4.0"


@pytest.mark.full
def test_an_agent_that_is_lost_may_run_on_until_its_lease_is_over(start_job: Start) -> None:
    """The end of its connection does not say that: a firewall may have closed it."""
    job = start_job(fault=SHORT, waits=True)
    stays, lost = job.begun()
    lost.close()
    go_on(job, stays)
    assert re.search(r"waiting for \d\.\d s, until the processes on \S+ have ended", job.end())


def test_an_agent_that_answers_nothing_is_lost(start_job: Start) -> None:
    """Its connection stays, as that of a host without its network does."""
    job = start_job(fault=SHORT)
    stays, silent = job.begun()
    go_on(job, stays)
    assert "its agent was lost: it has answered nothing for 4 s" in job.end()
    silent.close()


def test_an_agent_that_comes_early_takes_the_place_of_one_that_is_lost(start_job: Start) -> None:
    """The host of the first is lost: its connection has no end, and the new one tells of it."""
    job = start_job(restarts=2)
    stays, lost = job.begun()
    found: list[Attempt] = []
    new = job.line(1)
    waits = threading.Thread(target=lambda: found.append(started(new)))
    waits.start()
    wait_for_signal(stays)
    assert waits.is_alive()
    ended(stays, 1)
    assert stays.decision(TIMEOUT) is True
    [second] = begin([stays])
    waits.join(TIMEOUT)
    assert found == [second]
    assert second.attempt == 1
    # A loss of the first attempt does not count in the second.
    finish_well([stays, new])
    lost.close()


def test_an_agent_that_is_stopped_alone_counts_as_failed(start_job: Start) -> None:
    job = start_job()
    stays, evicted = job.begun()
    ended(evicted, -signal.SIGTERM, stopped=True)
    wait_for_signal(stays)
    ended(stays, 1)
    assert [line.decision(TIMEOUT) for line in (stays, evicted)] == [True, True]
    evicted.close()
    last_attempt([stays, job.line(1)])
    assert "process 1 of 2 on" in job.end()


def test_the_failure_that_came_first_is_named(start_job: Start) -> None:
    """Not the program that has ended first: an error may be raised long before its process ends."""
    job = start_job()
    victim, culprit = job.begun()
    now = time.monotonic()
    ended(victim, 1, record=ErrorRecord(now - 2, 1, "ValueError: late", ""))
    wait_for_signal(culprit)
    ended(culprit, 7, record=ErrorRecord(now - 5, 7, "ValueError: early", ""))
    assert [line.decision(TIMEOUT) for line in (victim, culprit)] == [True, True]
    last_attempt([victim, culprit])
    report = job.end()
    assert re.search(r"process 1 of 2 on \S+ failed first: ValueError: early", report), report
    assert re.search(r"process 0 on \S+ failed 3\.\d s later: ValueError: late", report), report


def test_a_lost_agent_is_named_before_those_that_fail_because_of_it(start_job: Start) -> None:
    """The silence of its host is noticed later than the errors of the others."""
    job = start_job()
    victim, lost = job.begun()
    ended(victim, 1, record=ErrorRecord(time.monotonic(), 1, "RuntimeError: its peer is gone", ""))
    lost.close()
    assert victim.decision(TIMEOUT) is True
    last_attempt([victim, job.line(1)])
    assert re.search(r"process 1 of 2 on \S+ failed first: its agent was lost$", job.end(), re.M)


MALFORMED = [b"[]", b"no head", b'{"kind": "ready", "process": 1}', b'{"kind": "exit"}']
"""`tests/hosts/test_agent_messages.py` has more."""


def test_what_is_no_message_ends_the_connection_alone(start_job: Start) -> None:
    """Before the start of the attempt, and while it runs."""
    job = start_job()

    def send_all() -> None:
        for message in MALFORMED:
            with network_probe.connect("127.0.0.1", job.port, "job", KEY, TIMEOUT) as other:
                other.settimeout(TIMEOUT)
                other.sendall(struct.pack(">IQ", len(message), 0) + message)
                assert other.recv(1) == b"", message

    send_all()
    lines = [job.line(0), job.line(1)]
    assert len(begin(lines)) == 2
    send_all()
    finish_well(lines)


def test_an_agent_that_sends_what_is_no_message_is_lost(start_job: Start) -> None:
    job = start_job()
    stays, lost = job.begun()
    wrong = Exit(exit_code="3")  # type: ignore[arg-type]  # that is what is refused
    lost.ended(wrong, None, False, False)
    go_on(job, stays)
    told = "it has sent a message that is not one: not how a process ended: exit_code is '3'"
    assert f"failed first: its agent was lost: {told}\n" in job.end()


@pytest.mark.full
def test_two_jobs_do_not_share_a_port(start_job: Start) -> None:
    first = start_job(timeout=15.0)  # more than the other waits for the port
    second = start_job(name="other", port=first.port)
    assert not second.has_started
    assert "the agent of process 0 cannot listen on 127.0.0.1" in second.end()


def test_a_failure_of_the_last_attempt_and_a_signal_end_the_job(start_job: Start) -> None:
    for restarts, stopped in ((0, False), (1, True)):
        job = start_job(restarts)
        lines = job.begun()
        for line in lines:
            ended(line, 3, stopped)
        assert [line.decision(TIMEOUT) for line in lines] == [False, False]
        found = "stopped by a signal" if stopped else "failed first: exit code 3"
        assert found in job.end()


@pytest.mark.parametrize(("known", "is_said"), [([0], False), ([0, 1], True)])
def test_processes_that_ran_alone_are_told_so_where_all_are_known(
    start_job: Start, tmp_path: Path, known: list[int], is_said: bool
) -> None:
    """The supervisor sees the notes of its own host; process 1 may have joined on another."""
    for process in known:
        folder = tmp_path / "attempt_0" / f"process_{process}"
        folder.mkdir(parents=True)
        (folder / "alone").touch()
    job = start_job()
    lines = job.begun()
    finish_well(lines)
    assert ("no process joined the job" in job.end()) is is_said


def test_processes_that_do_not_come_are_named(start_job: Start) -> None:
    job = start_job(timeout=1.0)
    with pytest.raises(
        LaunchError, match=r"process 0 was not started: the agent of process 1 did not come"
    ):
        job.line(0).wait_for_start()


NO_DESCRIPTORS = """
from lockstep.system import signal_pipe

def open_for(handled):
    raise OSError(24, "Too many open files")

signal_pipe.open_for = open_for
"""


def test_agents_are_told_why_no_attempt_starts(start_job: Start) -> None:
    job = start_job(fault=NO_DESCRIPTORS)
    with ThreadPoolExecutor(2) as threads:
        lines = [job.line(process) for process in range(2)]
        for waits in [threads.submit(line.wait_for_start) for line in lines]:
            with pytest.raises(LaunchError, match=r"nothing can be started: .*Errno 24"):
                waits.result(TIMEOUT)


FEW_DESCRIPTORS = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (32, {hard}))"


def test_the_supervisor_raises_its_limit_on_descriptors(start_job: Start) -> None:
    job = start_job(fault=FEW_DESCRIPTORS.format(hard=1024))
    with contextlib.ExitStack() as others:
        for _ in range(40):
            made = network_probe.connect("127.0.0.1", job.port, "job", KEY, TIMEOUT)
            others.enter_context(made)
        lines = [job.line(0), job.line(1)]
        assert len(begin(lines)) == 2
        finish_well(lines)


def test_a_hard_limit_that_is_too_low_for_the_agents_is_told(start_job: Start) -> None:
    job = start_job(fault=FEW_DESCRIPTORS.format(hard=64))
    assert not job.has_started
    assert "the supervisor of --max-restarts needs 90 file descriptors" in job.end()


def test_an_agent_that_does_not_come_again_ends_the_job(start_job: Start) -> None:
    job = start_job(restarts=3, timeout=2.0)
    stays, lost = job.begun()
    ended(stays, 1)
    lost.close()
    assert stays.decision(TIMEOUT) is True
    with pytest.raises(LaunchError, match=r"the agent of process 1 did not come within 2 s"):
        stays.wait_for_start()
    assert "not started again: the agent of process 1 did not come" in job.end()


def test_an_agent_without_its_supervisor_knows_it(start_job: Start) -> None:
    job = start_job()
    lines = job.begun()
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
