"""Notebooks whose processes run on hosts with a real sshd."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ssh_hosts import NEEDED, SshHosts, hosts_of_module

pytestmark = NEEDED

TIMEOUT = 200.0
hosts = hosts_of_module("ab")
CELLS = Path(__file__).with_name("cells.py")
SETUP = """%%lockstep
import os, time
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
rank = jax.process_index()
def meet(): return multihost_utils.process_allgather(jnp.arange(3) + rank).sum()
"""
RESTART = "%lockstep restart starts the processes again, without their variables."
Cells = Sequence[str | tuple[str, str]]


def start(hosts: SshHosts, names: str = "a,b") -> str:
    return f'%load_ext lockstep\n%lockstep start -d 2 --hosts {names} --ssh "{hosts.ssh()}"'


def run(hosts: SshHosts, folder: Path, cells: Cells) -> list[str]:
    """What the cells show in a kernel of host a; a cell may have text to interrupt it after."""
    pairs = [(cell, None) if isinstance(cell, str) else cell for cell in cells]
    command = [sys.executable, str(CELLS), str(folder), json.dumps(pairs)]
    found = hosts.run("a", command, timeout=TIMEOUT)
    hosts.assert_nothing_left()
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.full
def test_a_notebook_on_two_hosts(hosts: SshHosts, tmp_path: Path) -> None:
    shown = run(
        hosts,
        tmp_path,
        [
            start(hosts, "a,nowhere"),
            start(hosts),
            SETUP,
            "%%lockstep\nprint('same')\nprint(rank, os.uname().nodename)\nint(meet())",
            "x = {'a': 1}\n%lockstep push x",
            "%%lockstep\nx['b'] = rank",
            "%lockstep pull x --on 0-1\nprint(x)",
            "%lockstep status",
            ("%%lockstep\nprint('sleeping')\ntime.sleep(300)", "sleeping"),
            "%%lockstep\nint(meet())",
            "%%lockstep\nif rank == 1:\n    raise ValueError('boom')\nmeet()",
            "%lockstep stop",
        ],
    )
    bad, began, _, met, _, _, pulled, status, interrupted, again, culprit, stopped = shown
    assert "nothing was started: 1 problem on 1 of 2 hosts" in bad
    assert "the name nowhere is not known" in bad
    assert "2 processes on 2 hosts, 4 devices (cpu), jax" in began
    assert met == "[0-1] same\n[0] 0 a\n[1] 1 b\n9"
    assert pulled == "[{'a': 1, 'b': 0}, {'a': 1, 'b': 1}]"
    for line in ("[0] pid", "on a: idle", "[1] pid", "on b: idle", "in no collective"):
        assert line in status
    assert "[0-1] KeyboardInterrupt" in interrupted
    assert again == "9"
    assert culprit.startswith("[1] failed:")
    assert "process 1 left the cell by ValueError: boom, and process 0 waits for it" in culprit
    assert culprit.endswith(RESTART)
    assert stopped == "the processes have ended"


@pytest.mark.full
def test_a_death_on_another_host_a_restart_and_the_end_of_the_kernel(
    hosts: SshHosts, tmp_path: Path
) -> None:
    *_, died, next_cell, restarted, met = run(
        hosts,
        tmp_path,
        [
            start(hosts),
            SETUP,
            "%%lockstep\nif rank == 1:\n    os.kill(os.getpid(), 9)\nmeet()",
            "%%lockstep\n1",
            "%lockstep restart",
            f"{SETUP}\nint(meet())",
        ],
    )
    assert "process 1 of 2 on b failed first: killed by SIGKILL (signal 9)" in died
    assert died.endswith(RESTART)
    assert "process 1 of 2 on b failed first" in next_cell
    assert "2 processes on 2 hosts" in restarted
    assert met == "9"
