"""Nodes of this machine that have an agent of ``lockstep worker`` each, or several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import fork_server
from cluster_environs import torchrun
from lockstep.system import process_tree
from processes import free_port, write_key
from support import MARK, wait_until, with_variables
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


def mark_of(folder: Path) -> str:
    """That of all processes of the nodes with this folder."""
    return uuid.uuid5(uuid.NAMESPACE_URL, str(folder)).hex


class Nodes:
    """Nodes of this machine, as a launcher would start them that has ``size`` processes in all, and
    ``each`` on a node: one agent for each process."""

    def __init__(self, folder: Path, size: int, each: int = 1) -> None:
        self.folder = folder
        self.size = size
        self.each = each
        self.port = free_port()
        self.key = write_key(folder / "key")
        (folder / "tmp").mkdir()
        (folder / "program.py").write_text(PROGRAM.format(folder=str(folder)))
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.command = WORKER
        self.forked = fork_server.WANTED

    def start(self, rank: int, *options: str) -> subprocess.Popen[bytes]:
        names = {"LOCKSTEP_HOST_ID": f"n{rank // self.each}", "LOCKSTEP_KEY_FILE": str(self.key)}
        own = {"TMPDIR": str(self.folder / "tmp"), MARK: mark_of(self.folder)}
        words = ["--max-restarts", "3", "--grace", "2", *options, str(self.folder / "program.py")]
        command = [sys.executable, "-P", "-c", self.command, "worker", *words]
        environ = {**CLEAN, **names, **own, **self.place(rank)}
        log = self.log(rank)
        if self.forked:
            self.agents[rank] = fork_server.start(command, environ, log, log)
        else:
            with log.open("ab") as file:
                self.agents[rank] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ
                )
        return self.agents[rank]

    def place(self, rank: int) -> dict[str, str]:
        """The variables of a launcher."""
        return torchrun(rank, self.size, self.each, self.port)

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

    def kill_program(self, node: str) -> None:
        """Kills the program of a node whose processes are not forked."""
        pids = with_variables(f"{MARK}={mark_of(self.folder)}", f"LOCKSTEP_HOST_ID={node}")
        main = "lockstep.processes.child_main"
        [program] = [pid for pid in pids if main in process_tree.command(pid)]
        os.kill(program, signal.SIGKILL)

    def finish(self) -> None:
        """Lets the program end: all agents that are there end well."""
        (self.folder / "end").touch()
        for rank, agent in self.agents.items():
            if agent.returncode is None:
                agent.wait(TIMEOUT)
                assert agent.returncode == 0, (rank, self.log(rank).read_text())
