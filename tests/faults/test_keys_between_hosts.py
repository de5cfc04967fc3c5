"""Hosts without the key of the others, and peers that have none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from faults.host_jobs import PROGRAM, TIMEOUT, run
from faults.hosts import NAMES, NEEDED, Hosts
from lanes import full
from of_this_jax import MUTUAL_TLS
from support import wait_until

pytestmark = NEEDED

UNAUTHENTICATED = """
import os, socket, sys, time
own, seconds, job_port = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
idle, end = [], time.monotonic() + 40
while time.monotonic() < end:
    before = len(idle)
    for row in open("/proc/net/tcp").read().splitlines()[1:]:
        port, state = int(row.split()[1].rpartition(":")[2], 16), row.split()[3]
        if state == "0A" and port != job_port:
            for _ in range(40):
                idle.append(socket.socket())
                idle[-1].setblocking(False)
                idle[-1].connect_ex((own, port))
    if idle and not before:
        end = time.monotonic() + seconds
    time.sleep(0.001)
    while len(idle) > 600 and time.monotonic() < end: time.sleep(0.1)
print(len(idle))
"""
"""Connects to each port of its host, but for that of JAX's service, and sends nothing.

It ends some seconds after the first connection, since a job may take long to start.
"""


def assert_both_fail(hosts: Hosts, compared: str, refused: str = "") -> None:
    """The keys are compared once both processes are in the job, into which JAX's service lets none
    with another key where it speaks TLS: ``refused`` is then in what process 1 says."""
    assert 0 not in run(hosts, "none", LOCKSTEP_START_TIMEOUT="8" if MUTUAL_TLS else "60")
    if MUTUAL_TLS:
        assert "process 1 did not join the job of 2 processes within 8 s" in hosts.said(0)
        assert "JAX's coordination service at " in hosts.said(1), hosts.said(1)
        assert (refused or compared) in hosts.said(1), hosts.said(1)
        return
    for host in range(2):
        assert compared in hosts.said(host), hosts.said(host)


@pytest.mark.full
def test_other_keys_are_an_error_on_both(hosts: Hosts) -> None:
    hosts.write_key(1, "another key " * 4)
    assert_both_fail(hosts, "hold different keys")
    assert MUTUAL_TLS or NAMES[1] in hosts.said(0)


@pytest.mark.parametrize("host", [1, full(0)])
def test_a_host_without_a_key_is_an_error_on_both(hosts: Hosts, host: int) -> None:
    hosts.key(host).unlink()
    refused = "this process has none" if host else "does not encrypt"
    assert_both_fail(hosts, f"without it: process {host} (pid", refused)


@pytest.mark.full
def test_unauthenticated_peers_hold_up_no_process_and_find_no_port_once_all_are_connected(
    hosts: Hosts,
) -> None:
    # More idle connections than there are places, while the processes meet.
    with ThreadPoolExecutor(2) as pool:
        floods = [pool.submit(hosts.flood, host, UNAUTHENTICATED) for host in range(2)]
        processes = [hosts.launch(host, PROGRAM, "forever") for host in range(2)]
        wait_until(lambda: bool(hosts.lines(0, "step")), "a step", TIMEOUT)
        assert any(flood.result() for flood in floods)
    for host in range(2):
        wait_until(lambda h=host: not hosts.listening(h), "the end of the ports", TIMEOUT)
    before = len(hosts.lines(0, "step"))
    wait_until(lambda: len(hosts.lines(0, "step")) > before + 5, "more steps", TIMEOUT)
    assert [process.poll() for process in processes] == [None, None]
