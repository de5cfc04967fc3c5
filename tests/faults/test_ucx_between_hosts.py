"""The engine over UCX between two hosts, and what it says where it cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

import lockstep
import ucx
from faults.host_jobs import PROGRAM, assert_all_refuse, assert_nothing_left, end, everything
from faults.hosts import NEEDED, Hosts
from lanes import full, needs
from support import assert_unsaid

pytestmark = NEEDED
NOT_UCX = str(Path(lockstep.__file__).parent / "liblockstep_linalg.so")

needs_ucx = needs(ucx.is_here(), ucx.WHY)


@needs_ucx
def test_collectives_over_ucx_are_right(hosts: Hosts) -> None:
    env = ucx.OVER_UCX | {"UCX_LOG_LEVEL": "info"}
    processes = [hosts.launch(host, PROGRAM, "none", env=env) for host in range(2)]
    statuses = end(processes, hosts)
    said = everything(hosts, 2)
    assert statuses == [0] * 2, said
    assert said.count("checked mpi") == 2, said
    assert_unsaid("lockstep:", said)
    for host in range(2):  # UCX names the transport of each connection that it makes
        assert "am(tcp/eth0" in hosts.said(host), said
        assert "tcp/lo" not in hosts.said(host), said
    assert_nothing_left(hosts)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            {"LOCKSTEP_TRANSPORT": "ucx"},
            "--transport ucx (LOCKSTEP_TRANSPORT) sends data without encryption",
        ),
        full(
            ucx.OVER_UCX | {"LOCKSTEP_UCX_LIBRARY": "/nowhere/libucp.so.0"},
            "--transport ucx needs UCX, and its library libucp was not found. Tried: "
            "/nowhere/libucp.so.0: cannot open shared object file: No such file or directory. "
            "Install UCX 1.12 or newer on every host (Debian and Ubuntu: apt install libucx0; or "
            "pip install libucx-cu12), set LOCKSTEP_UCX_LIBRARY to the path of a libucp.so.0, or "
            "use --transport tcp.",
        ),
        full(
            ucx.OVER_UCX | {"LOCKSTEP_UCX_LIBRARY": NOT_UCX},
            "has no ucp_get_version, so it is older than 1.12",
        ),
    ],
)
def test_where_ucx_cannot_be_used_all_raise(hosts: Hosts, env: dict[str, str], words: str) -> None:
    processes = [hosts.launch(host, PROGRAM, "none", env=env) for host in range(2)]
    statuses = end(processes, hosts)
    for host in range(2):
        assert statuses[host] != 0, hosts.said(host)
        assert words in hosts.said(host), hosts.said(host)
    assert_nothing_left(hosts)


@pytest.mark.full
def test_another_transport_on_one_host_is_an_error_on_all(hosts: Hosts) -> None:
    assert_all_refuse(hosts, "LOCKSTEP_TRANSPORT", ["tcp", "ucx"], LOCKSTEP_ENCRYPTION="0")
