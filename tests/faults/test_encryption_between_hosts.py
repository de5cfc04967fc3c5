"""The engine between hosts without encryption, and with it on some of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from faults.harness import PROGRAMS
from faults.host_jobs import assert_all_refuse, assert_nothing_left, end, everything
from faults.hosts import NEEDED, Hosts
from lanes import full
from support import assert_unsaid

pytestmark = NEEDED

EAVESDROPPER = """
import array, socket, time
data = array.array("f", range(20, 40)).tobytes()
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.settimeout(1)
seen, over, end = False, False, time.monotonic() + 100
while not over and time.monotonic() < end:
    try:
        packet = tap.recv(1 << 17)
    except TimeoutError:
        continue
    seen = seen or data in packet
    over = b"gathered all" in packet
print("heard all" if over else "heard a part", "read" if seen else "not read")
"""
"""Prints whether it can read a part of the arrays in what passes over the network of its host."""


@pytest.mark.parametrize(("encryption", "wanted"), [("0", "read"), full("1", "not read")])
def test_an_eavesdropper_reads_the_arrays_without_encryption_only(
    hosts: Hosts, encryption: str, wanted: str
) -> None:
    env = {"LOCKSTEP_ENCRYPTION": encryption}
    program = PROGRAMS / "known_bytes.py"
    with ThreadPoolExecutor(1) as pool:
        reads = pool.submit(hosts.python, 1, EAVESDROPPER)
        processes = [hosts.launch(host, program, hosts.address(1), env=env) for host in range(2)]
        statuses = end(processes, hosts)
        said = everything(hosts, 2)
        assert statuses == [0] * 2, said
        assert said.count("gathered by mpi") == 2, said
        assert_unsaid("lockstep:", said)
        assert reads.result() == f"heard all {wanted}\n"
    assert_nothing_left(hosts)


def test_encryption_on_some_hosts_only_is_an_error_on_all(hosts: Hosts) -> None:
    assert_all_refuse(hosts, "LOCKSTEP_ENCRYPTION", ["0", "1"])
