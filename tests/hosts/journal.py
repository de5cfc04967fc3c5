"""A job on namespace hosts that notes in one file of all hosts when it does what.

The hosts are namespaces of one machine, so they have one clock.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from processes import write_key
from ssh_hosts import SshHosts
from support import wait_until

TIMEOUT = 40.0
PORT = "29500"
"""The port of JAX's service in jobs whose agents the test starts."""
PROGRAM = """
import os, pathlib, signal, time

attempt, me = int(os.environ["LOCKSTEP_ATTEMPT"]), os.environ["LOCKSTEP_PROCESS_ID"]
journal = os.open("journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def note(what):
    words = time.monotonic(), attempt, os.uname().nodename, os.getpid(), what
    os.write(journal, (" ".join(map(str, words)) + "\\n").encode())

def save(*_):
    for _ in range(50):
        note("saves")
        time.sleep(0.01)
    os._exit(1)

note("starts")
# joins
signal.signal(signal.SIGINT, save)
while not pathlib.Path(f"end_{attempt}").exists():
    note("steps")
    # a step
    time.sleep(0.01)
note("ends")
"""
JOIN = """
import jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
note("joined")
"""
STEP = "multihost_utils.process_allgather(jax.numpy.array([attempt]))"
JOINED = PROGRAM.replace("# joins", JOIN).replace("# a step", STEP)


class Entry(NamedTuple):
    """What a process has noted."""

    at: float
    attempt: int
    host: str
    pid: int
    what: str


class Journal:
    """What the processes of a job have noted, and what the job has said in the file ``said``."""

    def __init__(self, hosts: SshHosts, folder: Path, program: str) -> None:
        self.hosts = hosts
        self.folder = folder
        self.said_at = folder / "said"
        (folder / "program.py").write_text(program)

    @property
    def journal(self) -> list[Entry]:
        path = self.folder / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [line.split() for line in lines]
        return [Entry(float(at), int(n), host, int(p), what) for at, n, host, p, what in found]

    @property
    def said(self) -> str:
        return self.said_at.read_text()

    def wait(self, attempt: int, host: str, what: str) -> Entry:
        """The first note of that kind."""

        def found() -> list[Entry]:
            return [e for e in self.journal if (e.attempt, e.host, e.what) == (attempt, host, what)]

        wait_until(lambda: bool(found()), f"{host} {what} in attempt {attempt}", TIMEOUT)
        return found()[0]

    def wait_said(self, words: str) -> None:
        wait_until(lambda: words in self.said, f"said: {words}", TIMEOUT)

    def fail(self, host: str, names: str) -> None:
        """Kills the process of a host once those of ``names`` have made steps in attempt 0."""
        for name in names:
            self.wait(0, name, "steps")
        [pid] = self.hosts.matching(host, "lockstep.processes.child_main")
        os.kill(pid, signal.SIGKILL)

    def let_last_end(self) -> None:
        last = max(each.attempt for each in self.journal)
        (self.folder / f"end_{last}").touch()

    def assert_one_at_a_time(self) -> None:
        """That no attempt had a process left when the next one began."""
        journal = self.journal
        for attempt in range(1, max(each.attempt for each in journal) + 1):
            before = max((e for e in journal if e.attempt < attempt), key=lambda e: e.at)
            first = min((e for e in journal if e.attempt >= attempt), key=lambda e: e.at)
            assert before.at < first.at, f"{before} after {first}\n{self.said}"


class JobOfAgents(Journal):
    """A job of agents of ``lockstep worker``, one on a host, each with a file of what it says."""

    def __init__(self, hosts: SshHosts, folder: Path, program: str) -> None:
        super().__init__(hosts, folder, program)
        self.said_at.touch()
        self.key = write_key(folder / "key")
        self.agents: dict[str, subprocess.Popen[bytes]] = {}

    def start_agent(self, name: str, place: Mapping[str, str], *options: str) -> None:
        """The agent of a host, with the variables of its place in the job."""
        own = {"LOCKSTEP_HOST_ID": name, "LOCKSTEP_KEY_FILE": str(self.key)}
        words = [sys.executable, "-P", "-m", "lockstep", "worker", "--max-restarts", "5", *options]
        to_file = ["sh", "-c", f'exec "$@" >>{self.folder}/{name}.txt 2>&1', "sh", *words]
        command = ["env", "-C", str(self.folder), *to_file, str(self.folder / "program.py")]
        self.agents[name] = self.hosts.start(name, command, {**place, **own})

    def said_by(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text()

    def finish(self, names: str) -> None:
        """Lets the last attempt end: these agents end well."""
        self.let_last_end()
        for name in names:
            self.agents[name].communicate(timeout=TIMEOUT)
            assert self.agents[name].returncode == 0, self.said_by(name)
