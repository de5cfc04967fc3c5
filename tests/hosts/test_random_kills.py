"""Kills at random moments: of launchers, agents, processes and links. Nothing is left running."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lockstep.system import process_tree
from ssh_hosts import NEEDED, SshHosts, hosts_of_module
from support import wait_until

pytestmark = [NEEDED, pytest.mark.slow]

TIMEOUT = 120.0
KILLS = 50
SEED = 18
LATEST = 6.0
"""Seconds after the launcher's start; a job runs for longer, so each kill meets one."""
LEASE = 40.0
"""Within which a host that is cut off has ended its processes, with room for a busy machine."""
PROGRAM = """
import subprocess, sys, time
import jax, lockstep
import jax.numpy as jnp
from jax.experimental import multihost_utils

if "--child" in sys.argv:
    # A child with a session of its own, which nobody waits for.
    subprocess.Popen(["sleep", "300"], start_new_session=True)
lockstep.initialize()
while True:
    multihost_utils.process_allgather(jnp.array([1]))
    time.sleep(0.05)
"""
hosts = hosts_of_module("abc")
KINDS = ("launcher", "agent", "both of an agent", "process", "ssh", "link")


def victims(hosts: SshHosts, kind: str, name: str, choose: random.Random) -> list[int]:
    if kind == "launcher":
        found = hosts.matching("a", "lockstep run")
    elif kind == "ssh":
        found = hosts.matching("a", "^(?!.*lockstep run).*ssh -F")
    elif kind == "process":
        found = hosts.matching(name, "lockstep.processes.child_main")
    elif kind == "agent":
        found = hosts.agents(name)
    else:
        found = hosts.matching(name, "lockstep.hosts.host_agent")
    if kind == "both of an agent" or not found:
        return found
    return [choose.choice(found)]


def kill(pid: int) -> bool:
    """Whether it was still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(KILLS * TIMEOUT)
@pytest.mark.parametrize("number", range(KILLS))
def test_a_kill_at_a_random_moment_leaves_no_process(
    hosts: SshHosts, tmp_path: Path, number: int
) -> None:
    choose = random.Random(SEED * 1000 + number)
    kind, name = KINDS[number % len(KINDS)], choose.choice("abc")
    name = choose.choice("bc") if kind == "link" else name
    options = ["--hosts", "a,b,c", "--grace", "1", "-d", "1"]
    words = hosts.run_command(tmp_path, PROGRAM, *options)
    if kind != "both of an agent":
        # Without both, the kernel ends the program, and nobody its children (processes/guard.py).
        words.append("--child")
    started = hosts.start("a", words)
    moment = choose.uniform(0.0, LATEST)
    time.sleep(moment)
    killed = [] if kind == "link" else victims(hosts, kind, name, choose)
    try:
        if kind == "link":
            hosts.cut(name)
        reached = [pid for pid in killed if kill(pid)]
        if not reached and kind != "link":
            process_tree.kill({*hosts.matching("a", "lockstep run")}, signal.SIGTERM)
        try:
            _, err = started.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{kind} on {name} after {moment:.2f} s: the launcher did not end")
        wait_until(
            lambda: not hosts.running(),
            f"{kind} on {name} after {moment:.2f} s: an end of {hosts.running()}; {err.decode()}",
            LEASE,
        )
    finally:
        if kind == "link":
            hosts.mend(name)
