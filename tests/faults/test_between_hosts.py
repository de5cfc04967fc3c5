"""The engine between two hosts: right numbers, and reports of faults."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from faults.harness import PROGRAMS
from faults.host_jobs import (
    PROGRAM,
    TIMEOUT,
    assert_nothing_left,
    end,
    everything,
    line_of,
    start_four,
)
from faults.hosts import NEEDED, Hosts
from lanes import full, sample
from support import assert_unsaid, marked, wait_until
from system.test_exit_status import kernel_tells

TWO_DEVICES = "--xla_force_host_platform_device_count=2"

pytestmark = NEEDED


def test_every_collective_of_several_processes_a_host_is_right(hosts: Hosts) -> None:
    statuses = end(start_four(hosts, PROGRAM, "none"), hosts)
    said = everything(hosts, 4)
    assert statuses == [0] * 4, said
    assert said.count("checked mpi") == 4, said
    assert_unsaid("lockstep:", said)
    assert_nothing_left(hosts)


@pytest.mark.parametrize(
    "cached",
    [full(False), pytest.param(True, marks=pytest.mark.slow)],
    ids=["plain", "programs from a compilation cache in one process only"],
)
def test_a_correct_program_raises_nothing(hosts: Hosts, tmp_path: Path, cached: bool) -> None:
    cache = str(tmp_path / "cache") if cached else ""
    for attempt in range(1 + cached):
        processes = start_four(hosts, PROGRAMS / "sound.py", cache, XLA_FLAGS=TWO_DEVICES)
        statuses = end(processes, hosts, 2 * TIMEOUT)
        said = everything(hosts, 4)
        assert statuses == [0] * 4, said
        assert said.count("finished") == 4, said
        assert_unsaid("lockstep:", said)
        if cached and attempt == 0:
            shutil.rmtree(tmp_path / "cache" / "1")


@pytest.mark.parametrize(
    ("fault", "record", "status", "words"),
    [
        full("exit", "1", 0, "process 1 (pid {pid} on hosta) ended by sys.exit() at within_hosts"),
        pytest.param(
            "exit",
            "0",
            0,
            "waits for process 1 (pid {pid} on hosta), whose program has ended",
            marks=pytest.mark.slow,
        ),
        full(
            "kill",
            "1",
            -9,
            "process 1 (pid {pid} on hosta) was killed by SIGKILL (signal 9)",
        ),
        pytest.param("kill", "0", -9, "process 1 (pid {pid} on hosta)", marks=pytest.mark.slow),
    ],
)
def test_a_fault_of_a_process_of_the_same_host_raises(
    hosts: Hosts, fault: str, record: str, status: int, words: str
) -> None:
    processes = start_four(hosts, PROGRAMS / "within_hosts.py", fault, LOCKSTEP_RECORD=record)
    statuses = end(processes, hosts)
    said = everything(hosts, 4)
    assert statuses == [3, status, 3, 3], said
    assert len(hosts.lines(0, "raised")) == len(hosts.lines(0, "planted", 1)) == 1, said
    assert words.format(pid=hosts.pid(0, 1)) in hosts.said(0), said
    assert_nothing_left(hosts)


@pytest.mark.parametrize(("first", "how"), [(0, "later"), (1, "later"), (1, "longer")])
@pytest.mark.full
def test_a_program_that_drops_its_result_lets_the_others_have_theirs(
    hosts: Hosts, first: int, how: str
) -> None:
    program = PROGRAMS / "drops_its_result.py"
    statuses = end([hosts.launch(host, program, str(first), how) for host in range(2)], hosts)
    said = everything(hosts, 2)
    assert statuses == [0, 0], said
    assert hosts.lines(first, "dropped"), said
    assert hosts.lines(1 - first, "has") == [["has", "it"]], said
    assert_nothing_left(hosts)


@pytest.mark.full
@sample(
    ("fault", "words"),
    [
        (
            "kill",
            "{process} was killed by SIGKILL (signal 9) after 24 collectives; process 0 waits",
        ),
        ("exit", "{process} ended by sys.exit() at between_hosts.py:"),
        ("dtype", "{process} called all-reduce (sum) of 1 x s32, between_hosts.py:{total} in"),
        ("program", "process 1 runs another program than process 0: _lambda (between_hosts.py:"),
        (
            "argument",
            "{process} called all-gather of 1 x f32, _lambda (first used at "
            "between_hosts.py:{moved})",
        ),
    ],
    *(2,),
)
def test_a_fault_of_one_host_raises_on_the_other(hosts: Hosts, fault: str, words: str) -> None:
    assert_raised(hosts, fault, words)
    lines = f"20 x between_hosts.py:{line_of('total = over_all')} in"
    assert hosts.said(0).count(lines) == 2, hosts.said(0)
    assert_nothing_left(hosts)


@pytest.mark.parametrize(
    "fault",
    [
        full("exit"),
        full("kill"),
        pytest.param("dtype", marks=pytest.mark.slow),
        pytest.param("raise", marks=pytest.mark.slow),
    ],
)
def test_a_fault_without_records_raises_all_the_same(hosts: Hosts, fault: str) -> None:
    words = {
        "kill": "{process} has ended, or its host cannot be reached",
        "raise": "{process} failed: RuntimeError: no more of this",
        "exit": "waits for {process}, whose program has ended",
        "dtype": "{process} called all-reduce (sum) of 1 x s32",
    }
    assert_raised(hosts, fault, words[fault], LOCKSTEP_RECORD="0")


@pytest.mark.full
def test_a_second_job_in_the_same_processes_is_as_the_first(hosts: Hosts) -> None:
    program = PROGRAMS / "second_job.py"
    statuses = end([hosts.launch(host, program) for host in range(2)], hosts)
    assert statuses == [0, -signal.SIGKILL], everything(hosts, 2)
    assert [len(hosts.lines(host, "checked")) for host in range(2)] == [2, 2]
    assert "on hostb) was killed by SIGKILL" in hosts.said(0), hosts.said(0)
    assert_nothing_left(hosts)


def test_a_process_that_died_is_reported_by_its_agent(hosts: Hosts) -> None:
    processes = start_four(hosts, PROGRAM, "kill")
    assert end(processes, hosts) == [3, -9, 3, 3], everything(hosts, 4)
    assert_died(hosts, "was killed by SIGKILL (signal 9) after 24 collectives")
    assert_nothing_left(hosts)


@pytest.mark.slow
@pytest.mark.parametrize("reaped", [True, False])
def test_a_death_without_an_agent_is_reported_by_another_process_of_the_host(
    hosts: Hosts, reaped: bool
) -> None:
    processes = start_four(hosts, PROGRAM, "kill", agent=False)
    if reaped:  # as a launcher does it; then other processes can read the exit status too
        processes[1].wait(TIMEOUT)
    assert end(processes, hosts) == [3, -9, 3, 3], everything(hosts, 4)
    how = "is gone after 24 collectives: it died, and only its parent process knows how"
    if reaped and kernel_tells():
        how = "was killed by SIGKILL (signal 9) after 24 collectives"
    assert_died(hosts, how)


def assert_died(hosts: Hosts, how: str) -> None:
    """Process 1 of four."""
    for host, local in ((0, 0), (1, 0), (1, 1)):
        said = hosts.said(host, local)
        assert f"(pid {hosts.pid(0, 1)} on hosta) {how}; processes 0, 2-3 wait" in said, said


@pytest.mark.full
def test_without_agents_a_process_that_died_alone_on_its_host_is_gone(hosts: Hosts) -> None:
    statuses = end([hosts.launch(host, PROGRAM, "kill", agent=False) for host in range(2)], hosts)
    assert statuses == [3, -9], hosts.said(0)
    process = f"process 1 (pid {hosts.pid(1)} on hostb)"
    assert f"{process} is gone: it has ended, or its host cannot be reached" in hosts.said(0)


@pytest.mark.full
def test_a_program_outlives_its_agent(hosts: Hosts) -> None:
    hosts.forked = False  # the parent of a forked agent ends with it, and a program with both
    processes = [hosts.launch(host, PROGRAM, "forever") for host in range(2)]
    wait_until(lambda: bool(hosts.lines(0, "step")), "a step", TIMEOUT)
    processes[1].kill()
    processes[1].wait(TIMEOUT)
    steps = len(hosts.lines(0, "step"))
    wait_until(lambda: len(hosts.lines(0, "step")) > steps + 1, "more steps", TIMEOUT)
    os.kill(hosts.pid(1), signal.SIGKILL)
    assert end(processes, hosts) == [3, -9], hosts.said(0)
    assert f"process 1 (pid {hosts.pid(1)} on hostb) is gone" in hosts.said(0), hosts.said(0)
    assert_nothing_left(hosts)


@pytest.mark.full
def test_a_child_that_was_forked_does_not_hide_the_death_of_its_parent(hosts: Hosts) -> None:
    assert_raised(hosts, "fork and kill", "{process} was killed by SIGKILL (signal 9) after 24")
    [child] = hosts.lines(1, "child")
    assert int(child[1]) in marked(hosts.mark)


@pytest.mark.full
def test_another_line_is_reported_between_hosts_too(hosts: Hosts) -> None:
    call = "all-reduce (sum) of 1 x f32, between_hosts.py:{total} in _lambda, called from"
    words = "{process} called " + call + " between_hosts.py:{other}:"
    assert_raised(hosts, "line", words, LOCKSTEP_STRICT="1")


def assert_raised(hosts: Hosts, fault: str, words: str, **env: str) -> None:
    """Process 0 raises soon after process 1 does what it does, and says ``words``."""
    processes = [hosts.launch(host, PROGRAM, fault, env=env) for host in range(2)]
    statuses = end(processes, hosts)
    said = hosts.said(0)
    assert statuses[0] == 3, said
    assert len(hosts.lines(0, "raised")) == len(hosts.lines(1, "planted")) == 1, said
    process = f"process 1 (pid {hosts.pid(1)} on hostb)"
    lines = {
        "total": "total = over_all",
        "twice": "twice =",
        "moved": "jax.jit(lambda a: a",
        "other": "  total(spread(np.ones(count, np.float32)))",
    }
    assert words.format(process=process, **{n: line_of(t) for n, t in lines.items()}) in said, said


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.full
def test_an_engine_that_does_not_start_is_reported(hosts: Hosts, when: str) -> None:
    statuses = end(start_four(hosts, PROGRAMS / "fails_to_start.py", when), hosts)
    said = everything(hosts, 4)
    assert statuses == [3] * 4, said
    assert said.count("no luck") == 4, said
    for host, local in ((0, 0), (0, 1), (1, 0), (1, 1)):
        assert len(hosts.lines(host, "raised", local)) == 1, said
