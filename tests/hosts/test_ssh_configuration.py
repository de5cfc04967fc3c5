"""``lockstep run --hosts`` through the user's ssh configuration: ports, a jump host; and over IPv6
and gloo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ssh_hosts import DEVICE, NEEDED, SshHosts, ssh_hosts

pytestmark = [NEEDED, pytest.mark.full]

TIMEOUT = 120.0
NAMES = "abc"
SUM = """
import os, sys, jax, lockstep
from jax.experimental import multihost_utils

lockstep.initialize()
ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
used = jax.config.jax_cpu_collectives_implementation
sys.stdout.write(f"{ranks.ravel().tolist()} {used} {os.environ['LOCKSTEP_COORDINATOR']}\\n")
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """The sshd of b has another port, and c is reached through b."""
    folder = tmp_path_factory.mktemp("hosts")
    with ssh_hosts(folder, NAMES, ports={"b": 2222}, jumps={"c": "b"}) as made:
        for number, name in enumerate(NAMES, 1):
            address = ["address", "add", f"fd09::{number}/64", "dev", DEVICE, "nodad"]
            made.run(name, ["ip", "-6", *address])
        yield made


@pytest.mark.parametrize(
    ("options", "used", "address"),
    [
        ([], "mpi", "10.9.0.1:"),
        (["--interface", "fd09::/64"], "mpi", "[fd09::1]:"),
        (["--collectives", "gloo"], "gloo", "10.9.0.1:"),
    ],
    ids=["jump host and port", "IPv6", "gloo"],
)
def test_a_job(
    hosts: SshHosts, tmp_path: Path, options: list[str], used: str, address: str
) -> None:
    words = hosts.run_command(tmp_path, SUM, "--hosts", ",".join(NAMES), *options)
    found = hosts.run("a", words, timeout=TIMEOUT)
    lines = [line for line in found.stdout.splitlines() if "[Gloo]" not in line]
    said = sorted(line.rpartition(":")[0] + ":" for line in lines)
    assert said == [f"[{i}@{name}] [0, 1, 2] {used} {address}" for i, name in enumerate(NAMES)]
    hosts.assert_nothing_left()
