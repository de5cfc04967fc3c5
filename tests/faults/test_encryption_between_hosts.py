"""The engine between hosts without encryption, and with it on some of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from faults.host_jobs import PROGRAM, TIMEOUT, assert_nothing_left, end, everything, start_four
from faults.hosts import Hosts, possible
from lanes import needs

pytestmark = needs(possible(), "no network namespaces, or no ip or nsenter: no second host")

EAVESDROPPER = """
import array, socket, sys, time
data = array.array("f", range(20, 40)).tobytes()
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.settimeout(1)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    try:
        if data in tap.recv(1 << 17):
            print("seen")
            break
    except TimeoutError:
        pass
"""
"""Prints whether a part of the program's arrays passes over the network of its host."""


def test_without_encryption_data_passes_as_it_is(hosts: Hosts) -> None:
    with ThreadPoolExecutor(1) as pool:
        sees = pool.submit(hosts.run, 1, EAVESDROPPER, str(TIMEOUT))
        processes = start_four(hosts, PROGRAM, "none", LOCKSTEP_ENCRYPTION="0")
        statuses = end(processes, hosts)
        said = everything(hosts, 4)
        assert statuses == [0] * 4, said
        assert said.count("checked mpi") == 4, said
        assert "lockstep:" not in said
        assert sees.result().split() == ["seen"]
    assert_nothing_left(hosts)


def test_encryption_on_some_hosts_only_is_an_error_on_all(hosts: Hosts) -> None:
    processes = [
        hosts.start(host, PROGRAM, "none", env={"LOCKSTEP_ENCRYPTION": str(host)})
        for host in range(2)
    ]
    assert 0 not in end(processes, hosts)
    for host in range(2):
        assert "the processes of this job differ in LOCKSTEP_ENCRYPTION" in hosts.said(host)
