"""Hosts that are lost, replaced by spares, and come back: agents of this machine alone.

`tests/hosts/test_restart_on_hosts.py` has the same on hosts with an sshd, a network and a power
switch of their own.
"""

from __future__ import annotations

import os
import signal
import textwrap
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from own_address import networked, own_address
from support import Run, assert_unsaid, start_lockstep, wait_until

pytestmark = networked

WRAPPER = """#!/bin/bash
# In the place of ssh: the last words are a host's name and a command, which runs on this machine.
host="${{@: -2:1}}"
[ -e {folder}/down_$host ] && {{ echo "$host is down" >&2; exit 255; }}
[ -e {folder}/env_$host ] && source {folder}/env_$host
exec env LOCKSTEP_HOST_ID=$host SSH_CONNECTION="{address} 1 {address} 22" sh -c "${{@: -1}}"
"""
PROGRAM = """
import os, pathlib, signal, time
number, attempt = os.environ["LOCKSTEP_PROCESS_ID"], os.environ["LOCKSTEP_ATTEMPT"]
count, host = os.environ["LOCKSTEP_NUM_PROCESSES"], os.environ["LOCKSTEP_HOST_ID"]
folder = pathlib.Path({folder!r})
(folder / f"up_{{attempt}}_{{number}}_{{count}}_{{host}}_{{os.getppid()}}").touch()
while not (folder / f"end_{{attempt}}").exists():
    time.sleep(0.02)
"""


class Hosts:
    """Agents of this machine as hosts, which can be killed and kept down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ssh = folder / "ssh"
        self.ssh.write_text(WRAPPER.format(folder=folder, address=own_address()))
        self.ssh.chmod(0o755)

    def start(self, *options: str, program: str = PROGRAM) -> AbstractContextManager[Run]:
        words = ["--ssh", str(self.ssh), "--grace", "1", *options]
        return start_lockstep(words, textwrap.dedent(program.format(folder=str(self.folder))))

    def ups(self, attempt: int) -> dict[int, tuple[str, int]]:
        """The host and the agent's pid of each process of an attempt, which has started them."""
        found = (path.name.split("_") for path in self.folder.glob(f"up_{attempt}_*"))
        return {int(number): (host, int(pid)) for _, _, number, _, host, pid in found}

    def wait_for(self, attempt: int, count: int) -> dict[int, tuple[str, int]]:
        what = f"{count} processes of attempt {attempt}"
        wait_until(lambda: len(self.ups(attempt)) == count, what, 60)
        return self.ups(attempt)

    def lose(self, agent: int, name: str, down: bool = True) -> None:
        """Kills an agent, and lets none start there if the host is to stay ``down``."""
        if down:
            (self.folder / f"down_{name}").touch()
        os.kill(agent, signal.SIGKILL)

    def back(self, name: str) -> None:
        (self.folder / f"down_{name}").unlink()

    def end(self, attempt: int) -> None:
        (self.folder / f"end_{attempt}").touch()


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def ran(ups: dict[int, tuple[str, int]]) -> dict[int, str]:
    return {number: host for number, (host, _) in sorted(ups.items())}


def test_a_spare_takes_the_processes_of_a_lost_host(hosts: Hosts) -> None:
    options = ["--hosts", "a:2,b,c,d:2", "--spares", "1", "--max-restarts", "3"]
    with hosts.start(*options) as run:
        first = hosts.wait_for(0, 4)
        assert ran(first) == {0: "a", 1: "a", 2: "b", 3: "c"}
        hosts.lose(first[2][1], "b")
        assert ran(hosts.wait_for(1, 4)) == {0: "a", 1: "a", 2: "d", 3: "c"}
        hosts.end(1)
        result = run.finish(60)
        run.assert_nothing_left()
    assert result.status == 0, result.stderr
    assert "d takes the place of b, which was lost, with process 2" in result.stderr
    assert_unsaid("going on with", result.stderr)


def test_a_spare_that_is_lost_too_leaves_fewer_hosts(hosts: Hosts) -> None:
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "3", "--min-hosts", "1"]
    with hosts.start(*options) as run:
        first = hosts.wait_for(0, 2)
        hosts.lose(first[1][1], "b")
        second = hosts.wait_for(1, 2)
        assert ran(second) == {0: "a", 1: "c"}
        hosts.lose(second[0][1], "a")
        assert ran(hosts.wait_for(2, 1)) == {0: "c"}
        hosts.end(2)
        result = run.finish(60)
        run.assert_nothing_left()
    assert result.status == 0, result.stderr
    assert "going on with 1 host, 1 process, without\n" in result.stderr


def test_all_hosts_are_checked_before_the_start_and_spares_too(hosts: Hosts) -> None:
    (hosts.folder / "down_c").touch()
    options = ["--hosts", "a,b,c", "--spares", "1", "--max-restarts", "3"]
    with hosts.start(*options) as run:
        result = run.finish(60)
    assert result.status == 1
    assert "nothing was started: 1 problem on 1 of 3 hosts" in result.stderr
    assert "c is down" in result.stderr
    assert hosts.ups(0) == {}
