"""``lockstep worker --nnodes`` without ranks, on hosts with a network and a name each."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.journal import JOIN, PORT, PROGRAM, TIMEOUT, JobOfAgents
from ssh_hosts import NEEDED, ssh_hosts
from support import wait_until

pytestmark = [NEEDED, pytest.mark.timeout(240), pytest.mark.full]


class Job(JobOfAgents):
    """A job of two hosts that join at host a's address."""

    def start(self, name: str) -> None:
        place = {"LOCKSTEP_COORDINATOR": f"{self.hosts.address('a')}:{PORT}"}
        self.start_agent(name, place, "--nnodes", "2:2", "--grace", "2")

    def says(self, name: str, words: str) -> None:
        path = self.folder / f"{name}.txt"
        wait_until(lambda: path.exists() and words in path.read_text(), f"{name}: {words}", TIMEOUT)


def test_a_host_that_is_cut_off_is_replaced_and_comes_back_with_its_number(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "abc") as hosts:
        job = Job(hosts, tmp_path, PROGRAM.replace("# joins", JOIN))
        job.start("b")  # before there is a job
        job.start("a")
        job.says("a", f"a begins the job at {hosts.address('a')}:29500, as node 0")
        job.says("b", "b has joined the job as node 1")
        for name in "ab":
            job.wait(0, name, "steps")
        job.start("c")
        job.says("c", "c has joined the job as node 2")
        job.says("a", "node 2 (c) is there: it is a spare from now on")
        hosts.cut("b")
        job.says("a", "node 2 takes the place of node 1, which was lost, with process 1")
        for name in "ac":
            job.wait(1, name, "steps")
        job.agents["b"].communicate(timeout=TIMEOUT)
        assert job.agents["b"].returncode != 0
        hosts.mend("b")
        job.start("b")
        wait_until(
            lambda: job.said_by("b").count("b has joined the job as node 1") == 2,
            "b has its number again",
            TIMEOUT,
        )
        job.finish("abc")
        job.assert_one_at_a_time()
