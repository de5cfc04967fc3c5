"""A network that parts under ``lockstep worker``: never do two attempts of a program run at once.

Process 0 is on host a, with the supervisor, 1 on b and 2 on c. Host b is cut off, and the launcher
starts another agent of process 1 on d at once, as Kubernetes may for a node that it does not reach.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts.journal import JOINED, PROGRAM, TIMEOUT, Journal
from lanes import full
from processes import write_key
from ssh_hosts import NEEDED, SshHosts, ssh_hosts
from support import wait_until

pytestmark = [NEEDED, pytest.mark.timeout(240)]

PORT = "29500"


class Job(Journal):
    """A job of three processes, each the only one of its host."""

    def __init__(self, hosts: SshHosts, folder: Path, program: str) -> None:
        super().__init__(hosts, folder, program)
        self.said_at.touch()
        self.key = write_key(folder / "key")
        self.agents = {name: self.start(name, rank) for rank, name in enumerate("abc")}

    def start(self, name: str, rank: int) -> subprocess.Popen[bytes]:
        """The agent of a process, which says what it says in a file of its own, too."""
        place = {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        at = {"MASTER_ADDR": self.hosts.address("a"), "MASTER_PORT": PORT}
        names = {"LOCKSTEP_HOST_ID": name, "LOCKSTEP_KEY_FILE": str(self.key)}
        words = [sys.executable, "-P", "-m", "lockstep", "worker", "--max-restarts", "5"]
        # The agent that is cut off would give its program this time after the failure.
        words += ["--grace", "60" if name == "b" else "2", str(self.folder / "program.py")]
        to_file = ["sh", "-c", f'exec "$@" >{self.folder}/{name}.txt 2>&1', "sh", *words]
        in_folder = ["env", "-C", str(self.folder), *to_file]
        return self.hosts.start(name, in_folder, {**place, **at, **names})

    def said_by(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text()

    def finish(self, names: str) -> None:
        self.let_last_end()
        for name in names:
            self.agents[name].communicate(timeout=TIMEOUT)
            assert self.agents[name].returncode == 0, self.said_by(name)


def while_it_runs(job: Job) -> None:
    for name in "abc":
        job.wait(0, name, "steps")


def while_the_rest_is_stopped(job: Job) -> None:
    job.fail("c", "abc")
    job.wait(0, "b", "saves")


def when_the_next_attempt_starts(job: Job) -> None:
    job.fail("c", "abc")
    job.wait(1, "b", "starts")


def in_its_first_step(job: Job) -> None:
    job.fail("c", "abc")
    job.wait(1, "b", "joined")


LATER = [while_the_rest_is_stopped, when_the_next_attempt_starts, in_its_first_step]


@pytest.mark.full
@pytest.mark.parametrize("moment", [while_it_runs, *map(full, LATER)])
def test_an_agent_that_is_cut_off_ends_before_its_replacement_starts(
    tmp_path: Path, moment: Callable[[Job], None]
) -> None:
    with ssh_hosts(tmp_path, "abcd") as hosts:
        job = Job(hosts, tmp_path, JOINED if moment is in_its_first_step else PROGRAM)
        moment(job)
        hosts.cut("b")
        job.agents["d"] = job.start("d", 1)
        wait_until(lambda: any(each.host == "d" for each in job.journal), "d starts", TIMEOUT)
        attempt = next(each.attempt for each in job.journal if each.host == "d")
        for name in "acd":
            job.wait(attempt, name, "steps")
        job.finish("acd")
        job.assert_one_at_a_time()
        if moment is not while_the_rest_is_stopped:  # by which its program has ended, too
            why = "the agent of process 0 has confirmed no answer of this host for 9 s"
            wait_until(lambda: why in job.said_by("b"), "b says why it ends", TIMEOUT)
        if moment in LATER:
            job.agents["b"].communicate(timeout=TIMEOUT)
            assert job.agents["b"].returncode != 0
            assert "it received nothing from the agent of process 0 for 30 s" in job.said_by("b")
