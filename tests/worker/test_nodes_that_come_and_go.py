"""``lockstep worker --nnodes MIN:MAX``: agents that are lost, come late, or wait as spares."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import free_port
from support import MARK, marked, wait_until
from worker.test_worker_command import CLEAN

TIMEOUT = 60.0
WORKER = """
import sys
from lockstep.hosts import agent_attempts
agent_attempts.JOIN_SECONDS = 2.0
from lockstep import cli
sys.exit(cli.main())
"""
"""The command, which waits less."""
PROGRAM = """
import os, pathlib, time
import jax, lockstep
jax.distributed.initialize()
from jax.experimental import multihost_utils

attempt, me = os.environ["LOCKSTEP_ATTEMPT"], jax.process_index()
count, node = jax.process_count(), os.environ["LOCKSTEP_HOST_ID"]
folder = pathlib.Path({folder!r})
ranks = multihost_utils.process_allgather(jax.numpy.array([me])).ravel().tolist()
assert ranks == list(range(count)), ranks
(folder / f"up_{{attempt}}_{{me}}_{{count}}_{{node}}").touch()
while not (folder / "end").exists():
    time.sleep(0.02)
    if lockstep.should_stop():
        print("saves", flush=True)
        break
"""


class Nodes:
    """Nodes of this machine, as a launcher would start them that has ``size`` processes in all, and
    ``each`` on a node: one agent for each process."""

    def __init__(self, folder: Path, size: int, each: int = 1) -> None:
        self.folder = folder
        self.size = size
        self.each = each
        self.port = free_port()
        self.key = folder / "key"
        self.key.write_text("k" * 64)
        self.key.chmod(0o600)
        (folder / "tmp").mkdir()
        (folder / "program.py").write_text(PROGRAM.format(folder=str(folder)))
        self.agents: dict[int, subprocess.Popen[str]] = {}

    def start(self, rank: int, *options: str) -> subprocess.Popen[str]:
        node, local = divmod(rank, self.each)
        place = {"RANK": str(rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": str(local)}
        at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
        at["LOCAL_WORLD_SIZE"] = str(self.each)
        names = {"LOCKSTEP_HOST_ID": f"n{node}", "LOCKSTEP_KEY_FILE": str(self.key)}
        own = {"TMPDIR": str(self.folder / "tmp"), MARK: str(self.folder)}
        words = ["--max-restarts", "3", "--grace", "2", *options, str(self.folder / "program.py")]
        with self.log(rank).open("ab") as log:
            self.agents[rank] = subprocess.Popen(
                [sys.executable, "-P", "-c", WORKER, "worker", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                env={**CLEAN, **place, **at, **names, **own},
            )
        return self.agents[rank]

    def log(self, rank: int) -> Path:
        return self.folder / f"{rank}.txt"

    def said(self, words: str, rank: int = 0) -> None:
        wait_until(lambda: words in self.log(rank).read_text(), f"{rank} says: {words}", TIMEOUT)

    def runs(self, attempt: int) -> dict[int, str]:
        """The node of each process of an attempt, once all of them have met."""

        def ups() -> list[list[str]]:
            return [path.name.split("_") for path in self.folder.glob(f"up_{attempt}_*")]

        wait_until(
            lambda: bool(ups()) and len(ups()) == int(ups()[0][3]), f"attempt {attempt}", TIMEOUT
        )
        return {int(me): node for _, _, me, _, node in sorted(ups())}

    def kill(self, rank: int) -> None:
        """Loses a node: its agent, and its program with it."""
        self.agents[rank].kill()
        self.agents[rank].wait()

    def finish(self) -> None:
        """Lets the program end: all agents that are there end well."""
        (self.folder / "end").touch()
        for rank, agent in self.agents.items():
            if agent.returncode is None:
                agent.wait(TIMEOUT)
                assert agent.returncode == 0, (rank, self.log(rank).read_text())


@pytest.fixture
def make(tmp_path: Path) -> Iterator[type[Nodes]]:
    try:
        yield Nodes
    finally:
        for pid in marked(str(tmp_path)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


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
def test_a_spare_takes_the_place_of_a_lost_node(make: type[Nodes], tmp_path: Path) -> None:
    nodes = make(tmp_path, 3)
    for rank in range(2):
        nodes.start(rank, "--nnodes", "2:2")
    assert nodes.runs(0) == {0: "n0", 1: "n1"}
    nodes.start(2, "--nnodes", "2:2")
    nodes.said("is there: it is a spare from now on")
    nodes.kill(1)
    assert nodes.runs(1) == {0: "n0", 1: "n2"}
    nodes.said("node 2 takes the place of node 1, which was lost, with process 1")
    nodes.start(1, "--nnodes", "2:2")
    nodes.said("node 1 (")
    nodes.finish()
    nodes.said("process 1 has run nothing, as a spare: the job has ended well", 1)


@pytest.mark.full
def test_without_grow_a_late_node_waits_for_the_next_restart(
    make: type[Nodes], tmp_path: Path
) -> None:
    nodes = make(tmp_path, 2)
    nodes.start(0, "--nnodes", "1:2")
    assert nodes.runs(0) == {0: "n0"}
    nodes.start(1, "--nnodes", "1:2")
    nodes.said("is there: it takes part from the next restart on")
    [program] = [pid for pid in marked(str(tmp_path)) if is_program_of(pid, "n0")]
    os.kill(program, signal.SIGKILL)
    assert nodes.runs(1) == {0: "n0", 1: "n1"}
    nodes.finish()


def is_program_of(pid: int, node: str) -> bool:
    with contextlib.suppress(OSError):
        folder = Path(f"/proc/{pid}")
        words = (folder / "cmdline").read_bytes().split(b"\0")
        environ = (folder / "environ").read_bytes().split(b"\0")
        named = f"LOCKSTEP_HOST_ID={node}".encode() in environ
        return named and b"lockstep.processes.child_main" in words
    return False


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
