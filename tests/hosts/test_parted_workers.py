"""A network that parts under ``lockstep worker``: never do two attempts of a program run at once.

Process 0 is on host a, with the supervisor, 1 on b and 2 on c. Host b is cut off, and the launcher
starts another agent of process 1 on d at once, as Kubernetes may for a node that it does not reach.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster_environs import torchrun
from hosts.journal import JOINED, PORT, PROGRAM, TIMEOUT, JobOfAgents
from lanes import full
from ssh_hosts import NEEDED, ssh_hosts
from support import wait_until

pytestmark = [NEEDED, pytest.mark.timeout(240)]


class Job(JobOfAgents):
    """A job of three processes, each the only one of its host."""

    def start(self, name: str, rank: int) -> None:
        place = torchrun(rank, 3, 1, PORT, self.hosts.address("a"))
        # The agent that is cut off would give its program this time after the failure.
        self.start_agent(name, place, "--grace", "60" if name == "b" else "2")


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
        for rank, name in enumerate("abc"):
            job.start(name, rank)
        moment(job)
        hosts.cut("b")
        job.start("d", 1)
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
