"""``lockstep worker --nnodes MIN:MAX`` without ranks: hosts get their numbers as they come."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from processes import write_key
from support import assert_unsaid
from worker.nodes import TIMEOUT, WORKER, Nodes

OTHER_JAX = """
from lockstep.hosts.checks import facts
own = facts.versions()
facts.versions = lambda: own | {"jax": "0.1"}
"""


class Joiners(Nodes):
    """Agents that have an address and no rank. What a test calls them is not their number."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 0)
        self.own: dict[int, dict[str, str]] = {}
        """The variables of one of them."""

    def place(self, rank: int) -> dict[str, str]:
        return {"LOCKSTEP_COORDINATOR": f"127.0.0.1:{self.port}"} | self.own.get(rank, {})

    def begin(self, *options: str) -> None:
        """Starts the agent 0, and waits until it is node 0."""
        self.start(0, *options)
        self.said("begins the job at 127.0.0.1")

    def number(self, rank: int) -> int:
        """The number that an agent got."""
        said = "has joined the job as node "
        self.said(said, rank)
        return int(re.findall(rf"{said}(\d+)", self.log(rank).read_text())[-1])

    def fails(self, rank: int) -> str:
        """What an agent has said that ends with an error."""
        assert self.agents[rank].wait(TIMEOUT) == 2
        return self.log(rank).read_text()


@pytest.fixture
def hosts(make: type[Nodes], tmp_path: Path) -> Joiners:
    return Joiners(tmp_path)


def test_of_hosts_that_come_at_once_one_begins_the_job(hosts: Joiners) -> None:
    for rank in range(3):
        hosts.start(rank, "--nnodes", "3:3")
    found = hosts.runs(0)
    assert sorted(found.values()) == ["n0", "n1", "n2"]
    first = int(found.pop(0)[1:])
    hosts.said("begins the job at 127.0.0.1", first)
    assert {hosts.number(int(node[1:])): node for node in found.values()} == found
    hosts.finish()


@pytest.mark.full
def test_a_host_that_comes_gets_the_number_of_a_lost_one(hosts: Joiners) -> None:
    options = ["--nnodes", "2:3", "--grow"]
    hosts.begin(*options)
    hosts.start(1, *options)
    assert hosts.runs(0) == {0: "n0", 1: "n1"}
    hosts.said("waiting 2 s for more nodes: 2 of at most 3 are there (--nnodes 2:3)")
    hosts.said("starting on 2 of 3 nodes, without node 2")
    hosts.start(2, *options)
    assert hosts.number(2) == 2
    assert hosts.runs(1) == {0: "n0", 1: "n1", 2: "n2"}
    hosts.kill(1)
    assert hosts.runs(2) == {0: "n0", 1: "n2"}
    hosts.start(3, *options)
    assert hosts.number(3) == 1
    assert hosts.runs(3) == {0: "n0", 1: "n3", 2: "n2"}
    hosts.finish()


@pytest.mark.full
def test_more_than_the_most_wait_as_spares(hosts: Joiners) -> None:
    hosts.begin("--nnodes", "2:2")
    hosts.start(1, "--nnodes", "2:2")
    assert hosts.runs(0) == {0: "n0", 1: "n1"}
    hosts.start(2, "--nnodes", "2:2")
    assert hosts.number(2) == 2
    hosts.said("is there: it is a spare from now on")
    hosts.kill(1)
    assert hosts.runs(1) == {0: "n0", 1: "n2"}
    hosts.said("node 2 takes the place of node 1, which was lost, with process 1")
    hosts.start(3, "--nnodes", "2:2")
    assert hosts.number(3) == 1
    hosts.finish()
    hosts.said("process 1 has run nothing, as a spare: the job has ended well", 3)


@pytest.mark.full
def test_the_end_of_node_0_ends_the_job_and_the_next_first_host_begins_another(
    hosts: Joiners,
) -> None:
    hosts.begin("--nnodes", "2:2")
    hosts.start(1, "--nnodes", "2:2")
    assert hosts.runs(0) == {0: "n0", 1: "n1"}
    hosts.kill(0)
    assert hosts.agents[1].wait(TIMEOUT) != 0
    hosts.said("the agent of process 0 has ended, so the program is asked to end", 1)
    hosts.start(2, "--nnodes", "2:2")
    hosts.said("begins the job at 127.0.0.1", 2)
    hosts.start(3, "--nnodes", "2:2")
    assert hosts.number(3) == 1
    hosts.finish()


@pytest.mark.full
def test_too_few_hosts(hosts: Joiners) -> None:
    hosts.start(0, "--nnodes", "2:3", "--start-timeout", "2")
    said = hosts.fails(0)
    assert "the agents of 1 other node did not come within 2 s (--start-timeout), and" in said
    assert "--nnodes needs 2 nodes" in said


def test_a_host_with_another_key_or_other_options_is_told(hosts: Joiners) -> None:
    hosts.begin("--nnodes", "2:2")
    other = write_key(hosts.folder / "other", "o" * 64)
    hosts.own[1] = {"LOCKSTEP_KEY_FILE": str(other)}
    hosts.start(1, "--nnodes", "2:2", "--start-timeout", "2")
    hosts.start(2, "--nnodes", "1:2")
    hosts.command = f"{OTHER_JAX}{WORKER}"
    hosts.start(4, "--nnodes", "2:2")
    hosts.command = WORKER
    said = hosts.fails(1)
    assert "has another key, or is of another job: give all hosts the same LOCKSTEP_KEY" in said
    why = "it has --nnodes 1:2, and the host of process 0 has 2:2"
    assert f"the job has refused {socket.gethostname()}: {why}" in hosts.fails(2)
    hosts.said(f"{socket.gethostname()} is refused: {why}")
    said = hosts.fails(4)
    assert "it has jax 0.1, and the host of process 0 has " in said
    assert_unsaid("has joined", said)
    hosts.start(3, "--nnodes", "2:2")
    assert hosts.runs(0) == {0: "n0", 1: "n3"}
    hosts.finish()


def test_another_program_on_the_port_is_told(hosts: Joiners) -> None:
    with socket.create_server(("127.0.0.1", hosts.port)):
        hosts.start(0, "--nnodes", "1:2", "--start-timeout", "1")
        assert "Another program has this port (ss -ltnp shows it)" in hosts.fails(0)
