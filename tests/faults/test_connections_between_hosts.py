"""Several connections to each process of another host, which carry stripes of large messages."""

from __future__ import annotations

import pytest

import ucx
from faults.harness import PROGRAMS
from faults.host_jobs import PROGRAM, assert_all_refuse, assert_nothing_left, end, everything, run
from faults.hosts import NEEDED, Hosts
from support import assert_unsaid

pytestmark = NEEDED


@pytest.mark.full
@pytest.mark.parametrize("encryption", ["1", "0"])
@pytest.mark.parametrize("connections", [3, 1])
def test_large_sums_over_several_connections_are_right(
    hosts: Hosts, encryption: str, connections: int
) -> None:
    env = {"LOCKSTEP_CONNECTIONS": str(connections), "LOCKSTEP_ENCRYPTION": encryption}
    program = PROGRAMS / "large_sums.py"
    started = [
        hosts.launch(host, program, hosts.address(1 - host), env=env, agent=False)
        for host in range(2)
    ]
    statuses = end(started, hosts)
    said = everything(hosts, 2)
    assert statuses == [0, 0], said
    counts = [line.split()[1:] for line in said.splitlines() if line.startswith("bytes ")]
    # 80 MiB in each direction, in equal stripes. What has carried less is JAX's.
    least = 60 * 2**20 // connections
    carry = [sum(int(bytes_) > least for bytes_ in of_process) for of_process in counts]
    assert carry == [2 * connections] * 2, said
    assert_unsaid("lockstep:", said)
    assert_nothing_left(hosts)


@pytest.mark.full
@pytest.mark.parametrize("fault", ["kill", "raise", "exit"])
def test_a_fault_while_stripes_are_sent_is_reported(hosts: Hosts, fault: str) -> None:
    statuses = run(hosts, fault, str(1 << 20), LOCKSTEP_CONNECTIONS="4")
    words = {
        "kill": "was killed by SIGKILL (signal 9)",
        "raise": "failed: RuntimeError: no more of this",
        "exit": "ended by sys.exit() at between_hosts.py:79 after 24 collectives",
    }
    assert words[fault] in hosts.said(0), everything(hosts, 2)
    assert statuses[0] != 0
    assert_nothing_left(hosts)


@pytest.mark.full
def test_another_number_of_connections_on_one_host_is_an_error_on_all(hosts: Hosts) -> None:
    assert_all_refuse(hosts, "LOCKSTEP_CONNECTIONS", ["1", "2"])


@pytest.mark.full
def test_ucx_takes_no_number_of_connections(hosts: Hosts) -> None:
    env = ucx.OVER_UCX | {"LOCKSTEP_CONNECTIONS": "2"}
    processes = [hosts.launch(host, PROGRAM, "none", env=env) for host in range(2)]
    assert 0 not in end(processes, hosts)
    for host in range(2):
        assert "--connections (LOCKSTEP_CONNECTIONS) is for --transport tcp" in hosts.said(host)
