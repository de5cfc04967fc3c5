"""``lockstep worker --nnodes MIN:MAX``: agents that are lost, come late, or wait as spares."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from worker.nodes import TIMEOUT, Nodes


@pytest.mark.full
def test_it_starts_with_few_goes_on_with_fewer_and_takes_in_who_comes(
    make: type[Nodes], tmp_path: Path
) -> None:
    nodes = make(tmp_path, 3)
    options = ["--nnodes", "2:3", "--grow"]
    for rank in (0, 2):
        nodes.start(rank, *options)
    assert nodes.runs(0) == {0: "n0", 1: "n2"}
    nodes.said("starting on 2 of 3 nodes, without node 1")
    nodes.start(1, *options)
    # All nodes are there then, so nothing more is waited for.
    assert nodes.runs(1) == {0: "n0", 1: "n1", 2: "n2"}
    nodes.said("node 1 answers: the program is asked to end, to start again with it")
    assert "saves" in nodes.log(0).read_text()
    nodes.kill(2)
    assert nodes.runs(2) == {0: "n0", 1: "n1"}
    nodes.said("going on with 2 hosts, 2 processes, without node 2")
    nodes.finish()
    said = nodes.log(0).read_text()
    assert "attempt 2 starts on 2 of 3 hosts" in said
    assert re.search(r"^  more hosts +1 ", said, re.MULTILINE)


@pytest.mark.full
def test_without_grow_a_late_node_waits_for_the_next_restart(
    make: type[Nodes], tmp_path: Path
) -> None:
    nodes = make(tmp_path, 2)
    nodes.forked = False
    nodes.start(0, "--nnodes", "1:2")
    assert nodes.runs(0) == {0: "n0"}
    nodes.start(1, "--nnodes", "1:2")
    nodes.said("is there: it takes part from the next restart on")
    nodes.kill_program("n0")
    assert nodes.runs(1) == {0: "n0", 1: "n1"}
    nodes.finish()


@pytest.mark.full
def test_too_few_nodes_are_named(make: type[Nodes], tmp_path: Path) -> None:
    nodes = make(tmp_path, 3)
    agent = nodes.start(0, "--nnodes", "2:3", "--start-timeout", "3")
    agent.wait(TIMEOUT)
    assert agent.returncode == 2
    nodes.said("the agents of processes 1-2 did not come within 3 s (--start-timeout)")
    nodes.said("and --nnodes needs 2 nodes")


@pytest.mark.full
def test_a_node_of_several_processes_is_lost_with_one_of_them_and_comes_back_whole(
    make: type[Nodes], tmp_path: Path
) -> None:
    nodes = make(tmp_path, 6, each=2)
    options = ["--nnodes", "1:3", "--grow"]
    for rank in (0, 1, 4, 5, 2):  # the second node has one of its two processes
        nodes.start(rank, *options)
    assert nodes.runs(0) == {0: "n0", 1: "n0", 2: "n2", 3: "n2"}
    nodes.said("starting on 2 of 3 nodes, without node 1")
    nodes.start(3, *options)
    assert nodes.runs(1) == {0: "n0", 1: "n0", 2: "n1", 3: "n1", 4: "n2", 5: "n2"}
    nodes.kill(4)
    assert nodes.runs(2) == {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
    nodes.said("going on with 2 hosts, 4 processes, without node 2")
    nodes.start(4, *options)
    assert nodes.runs(3) == {0: "n0", 1: "n0", 2: "n1", 3: "n1", 4: "n2", 5: "n2"}
    nodes.finish()
