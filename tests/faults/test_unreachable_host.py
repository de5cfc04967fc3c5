"""A host that can no longer be reached, and one that only takes its time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.harness import PROGRAMS
from faults.hosts import NAMES, NEEDED, Hosts, some_hosts
from lanes import full
from lockstep.watchdog.silent_hosts import LIMIT
from support import assert_unsaid, marked, wait_until

HEARTBEAT = 30
LIMIT_SECONDS = LIMIT * HEARTBEAT
ABORT_SECONDS = HEARTBEAT / 2
"""When JAX may abort a process at the earliest."""
OWN_STATUS = (3, 0)
"""Of each process. With 0 a program goes the whole way out, JAX's handlers at exit included."""

pytestmark = NEEDED


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with some_hosts(tmp_path, forked=True) as hosts:
        yield hosts


def start(hosts: Hosts) -> list[subprocess.Popen[bytes]]:
    """Runs the program on both, until they sum."""
    processes = [
        hosts.launch(host, PROGRAMS / "unreachable.py", str(HEARTBEAT), str(status))
        for host, status in enumerate(OWN_STATUS)
    ]
    wait_for_steps(hosts)
    return processes


def wait_for_steps(hosts: Hosts, more: int = 5) -> None:
    before = [len(hosts.lines(host, "step")) for host in range(2)]

    def are_there() -> bool:
        return all(len(hosts.lines(host, "step")) >= before[host] + more for host in range(2))

    try:
        wait_until(are_there, f"{more} more steps", 60)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{hosts.said(0)}\n{hosts.said(1)}") from None


@pytest.fixture(params=[full("gloo"), "engine"])
def carrier(request: pytest.FixtureRequest, hosts: Hosts) -> str:
    """What the collectives between the hosts run on."""
    if request.param == "engine":
        for host in range(2):
            hosts.write_key(host)
    return request.param


@pytest.mark.full
def test_both_sides_of_a_cut_raise_compute_and_end_as_they_like(hosts: Hosts, carrier: str) -> None:
    processes = start(hosts)
    cut = time.monotonic()
    hosts.pull()
    for host, process in enumerate(processes):
        # Without the watch process 0 waits forever, and JAX aborts process 1.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, cut + HEARTBEAT - time.monotonic()))
        said = hosts.said(host)
        assert process.returncode == OWN_STATUS[host], said
        other = 1 - host
        words = f"cannot reach host {NAMES[other]} (process {other}): the last packet from there "
        # The engine's exception says it too, and the end of a program that has caught it.
        times = 2 + (OWN_STATUS[host] == 0) if carrier == "engine" else 1
        assert said.count(words) == times, said
        assert ("JAX will abort it" in said) == (host == 1), said
        [raised] = hosts.lines(host, "raised")
        assert float(raised[1]) < cut + ABORT_SECONDS, said  # JAX's deadline
        assert ("Gloo all-reduce failed" in said) == (carrier == "gloo"), said
        assert hosts.lines(host, "saved") == [["saved", "10.0"]], said
    # JAX's service had a client on the other side.
    wait_until(lambda: not marked(hosts.mark), "a process is left behind", 45)


@pytest.mark.full
def test_a_deadline_names_the_link_that_is_cut_one_way(tmp_path: Path) -> None:
    """It ends long before the connection counts as lost; host c waits for hosts that wait."""
    with some_hosts(tmp_path, 3, forked=True) as hosts:
        for host in range(3):
            hosts.write_key(host)
        limits = {"LOCKSTEP_COLLECTIVE_TIMEOUT": "8"}
        arguments = (PROGRAMS / "unreachable.py", "100", "3")
        processes = [hosts.launch(host, *arguments, env=limits) for host in range(3)]
        wait_until(lambda: all(len(hosts.lines(h, "step")) > 5 for h in range(3)), "steps", 60)
        hosts.mute(0, 1)
        for process in processes:
            process.wait(60)
        for host in range(3):
            said = hosts.said(host)
            [raised] = hosts.lines(host, "raised")
            link = r"(0 \(pid \d+ on hosta\) cannot reach host hostb \(process 1\)"
            link += (
                r"|1 \(pid \d+ on hostb\) cannot reach host hosta \(process 0\)), which does not"
            )
            assert re.search(rf"lockstep: process {link}", " ".join(raised)), said


@pytest.mark.full
def test_a_process_that_is_stopped_is_not_unreachable(hosts: Hosts, carrier: str) -> None:
    processes = start(hosts)
    os.kill(hosts.pid(1), signal.SIGSTOP)
    time.sleep(LIMIT_SECONDS + 3)
    os.kill(hosts.pid(1), signal.SIGCONT)
    wait_for_steps(hosts)
    for host in range(2):
        assert processes[host].poll() is None, hosts.said(host)
        assert_unsaid("cannot reach ", hosts.said(host))
