"""The engine between two hosts: right numbers, who is let in, and how a fault of one is told."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.harness import PROGRAMS
from faults.hosts import NAMES, Hosts, possible, two_hosts
from support import marked, wait_until

PROGRAM = PROGRAMS / "between_hosts.py"
TIMEOUT = 90
RAISED_WITHIN = 10.0
"""Seconds; what is measured stands in docs/faults.md."""

pytestmark = pytest.mark.skipif(
    not possible(), reason="no network namespaces, or no ip or nsenter: no second host"
)

STRANGER = """
import os, socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
connection.settimeout(15)
connection.sendall(bytes.fromhex(sys.argv[3]))
try:
    print("refused" if connection.recv(1 << 16) and not connection.recv(1) else "closed")
except ConnectionError:
    print("refused")
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with two_hosts(tmp_path) as hosts:
        for host in range(2):
            hosts.write_key(host)
        yield hosts


def run(hosts: Hosts, fault: str) -> list[int]:
    """Runs the program on both hosts to its end; returns how its processes ended."""
    return end([hosts.start(host, PROGRAM, fault) for host in range(2)], hosts)


def end(
    processes: list[subprocess.Popen[bytes]], hosts: Hosts, timeout: float = TIMEOUT
) -> list[int]:
    """How the processes end; ``timeout`` is for all of them."""
    deadline = time.monotonic() + timeout
    try:
        return [process.wait(max(0.0, deadline - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        raise AssertionError(f"hangs\n{everything(hosts, len(processes))}") from None


def everything(hosts: Hosts, processes: int) -> str:
    """What the processes have said, one after another."""
    per_host = processes // 2
    said = [hosts.said(host, local) for host in range(2) for local in range(per_host)]
    return "\n".join(f"--- process {process}\n{text}" for process, text in enumerate(said))


def start_four(
    hosts: Hosts, program: Path, *args: str, **env: str
) -> list[subprocess.Popen[bytes]]:
    """Two processes on each host: 0 and 1, 2 and 3."""
    return [
        hosts.start(host, program, *args, local=local, per_host=2, env=env)
        for host in range(2)
        for local in range(2)
    ]


def assert_nothing_left(hosts: Hosts) -> None:
    wait_until(lambda: not marked(hosts.mark), "a process is left behind")


def test_every_collective_is_right(hosts: Hosts) -> None:
    assert run(hosts, "none") == [0, 0], hosts.said(0) + hosts.said(1)
    for host in range(2):
        assert hosts.lines(host, "checked") == [["checked", "mpi"]]
        assert "lockstep:" not in hosts.said(host)
    assert_nothing_left(hosts)


def test_every_collective_of_several_processes_a_host_is_right(hosts: Hosts) -> None:
    statuses = end(start_four(hosts, PROGRAM, "none"), hosts)
    said = everything(hosts, 4)
    assert statuses == [0] * 4, said
    assert said.count("checked mpi") == 4, said
    assert "lockstep:" not in said
    assert_nothing_left(hosts)


@pytest.mark.parametrize(
    ("fault", "record", "status", "words"),
    [
        ("exit", "1", 0, "waits for process 1 (pid {pid} on hosta), whose program has ended"),
        ("exit", "0", 0, "waits for process 1 (pid {pid} on hosta), whose program has ended"),
        ("kill", "1", -9, "process 1 (pid {pid} on hosta)"),
        ("kill", "0", -9, "process 1 (pid {pid} on hosta)"),
    ],
)
def test_a_fault_of_a_process_of_the_same_host_raises(
    hosts: Hosts, fault: str, record: str, status: int, words: str
) -> None:
    processes = start_four(hosts, PROGRAMS / "within_hosts.py", fault, LOCKSTEP_RECORD=record)
    statuses = end(processes, hosts)
    said = everything(hosts, 4)
    assert statuses == [3, status, 3, 3], said
    [raised], [planted] = hosts.lines(0, "raised"), hosts.lines(0, "planted", 1)
    assert 0 <= float(raised[1]) - float(planted[1]) < RAISED_WITHIN, said
    assert words.format(pid=processes[1].pid) in hosts.said(0), said
    assert_nothing_left(hosts)


@pytest.mark.parametrize(("first", "how"), [(0, "later"), (1, "later"), (1, "longer")])
def test_a_program_that_drops_its_result_lets_the_others_have_theirs(
    hosts: Hosts, first: int, how: str
) -> None:
    program = PROGRAMS / "drops_its_result.py"
    statuses = end([hosts.start(host, program, str(first), how) for host in range(2)], hosts)
    said = everything(hosts, 2)
    assert statuses == [0, 0], said
    assert hosts.lines(first, "dropped"), said
    assert hosts.lines(1 - first, "has") == [["has", "it"]], said
    assert_nothing_left(hosts)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("kill", "process 1 (pid {pid} on hostb) has ended, or its host cannot be reached"),
        ("raise", "process 1 (pid {pid} on hostb) failed: RuntimeError: no more of this"),
        ("exit", "waits for process 1 (pid {pid} on hostb), whose program has ended"),
        ("dtype", "process 1 (pid {pid} on hostb) called all-reduce (sum) of 1 x s32"),
    ],
)
def test_a_fault_of_one_host_raises_on_the_other(hosts: Hosts, fault: str, words: str) -> None:
    assert_raised(hosts, fault, words)
    assert_nothing_left(hosts)


def test_a_child_that_was_forked_does_not_hide_the_death_of_its_parent(hosts: Hosts) -> None:
    assert_raised(hosts, "fork and kill", "process 1 (pid {pid} on hostb) has ended, or its host")
    [child] = hosts.lines(1, "child")
    assert int(child[1]) in marked(hosts.mark)


def test_another_line_is_told_between_hosts_too(hosts: Hosts) -> None:
    words = "process 1 (pid {pid} on hostb) called all-reduce (sum) of 1 x f32"
    assert_raised(hosts, "line", words, LOCKSTEP_STRICT="1")
    assert "different lines of the program make them" in hosts.said(0)


def assert_raised(hosts: Hosts, fault: str, words: str, **env: str) -> None:
    """Process 0 raises soon after process 1 does what it does, and says ``words``."""
    processes = [hosts.start(host, PROGRAM, fault, env=env) for host in range(2)]
    statuses = end(processes, hosts)
    said = hosts.said(0)
    assert statuses[0] == 3, said
    [raised], [planted] = hosts.lines(0, "raised"), hosts.lines(1, "planted")
    assert 0 <= float(raised[1]) - float(planted[1]) < RAISED_WITHIN
    assert words.format(pid=processes[1].pid) in said, said


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_engine_that_does_not_start_is_told_at_once(hosts: Hosts, when: str) -> None:
    statuses = end(start_four(hosts, PROGRAMS / "fails_to_start.py", when), hosts)
    said = everything(hosts, 4)
    assert statuses == [3] * 4, said
    assert said.count("no luck") == 4, said
    for host, local in ((0, 0), (0, 1), (1, 0), (1, 1)):
        [raised] = hosts.lines(host, "raised", local)
        assert float(raised[1]) < RAISED_WITHIN, said


def test_other_keys_are_an_error_on_both(hosts: Hosts) -> None:
    hosts.write_key(1, "another key " * 4)
    assert 0 not in run(hosts, "none")
    for host in range(2):
        assert "hold different keys" in hosts.said(host)


def test_a_host_without_a_key_is_an_error_on_both(hosts: Hosts) -> None:
    hosts.key(1).unlink()
    assert 0 not in run(hosts, "none")
    for host in range(2):
        assert "without it: process 1 (pid" in hosts.said(host)
        assert NAMES[1] in hosts.said(host)


def test_strangers_are_refused_and_the_job_goes_on(hosts: Hosts) -> None:
    processes = [hosts.start(host, PROGRAM, "forever") for host in range(2)]
    wait_until(lambda: bool(hosts.lines(0, "step")), "a step", TIMEOUT)
    addresses = [address for host in range(2) for address in hosts.listening(host)]
    assert len(addresses) == 2
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + bytes(512), b"\xff" * 64):
        for address, port in addresses:
            assert hosts.run(0, STRANGER, address, str(port), text.hex()).strip() in (
                "refused",
                "closed",
            )
    for host in range(2):
        said = hosts.said(host)
        assert said.count("refused a connection from 10.9.0.1 port") == 3, said
        assert said.count("it has not shown that it has the job's key") == 3, said
    before = len(hosts.lines(0, "step"))
    wait_until(lambda: len(hosts.lines(0, "step")) > before + 5, "more steps", TIMEOUT)
    assert [process.poll() for process in processes] == [None, None]
