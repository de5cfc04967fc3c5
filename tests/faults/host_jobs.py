"""Jobs on two hosts: how they are started and waited for, and what they said."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from faults.harness import PROGRAMS
from faults.hosts import Hosts
from support import marked, wait_until

PROGRAM = PROGRAMS / "between_hosts.py"
TIMEOUT = 90


def run(hosts: Hosts, *args: str, **env: str) -> list[int]:
    """Runs the program on both hosts to its end; returns how its processes ended."""
    return end([hosts.launch(host, PROGRAM, *args, env=env) for host in range(2)], hosts)


def end(
    processes: list[subprocess.Popen[bytes]], hosts: Hosts, timeout: float = TIMEOUT
) -> list[int]:
    """How the processes end; ``timeout`` is for all of them."""
    deadline = time.monotonic() + timeout
    try:
        return [process.wait(max(0.0, deadline - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        raise AssertionError(f"hangs\n{everything(hosts, len(processes))}") from None


def everything(hosts: Hosts, processes: int) -> str:
    """What the processes have said, one after another."""
    per_host = processes // 2
    said = [hosts.said(host, local) for host in range(2) for local in range(per_host)]
    return "\n".join(f"--- process {process}\n{text}" for process, text in enumerate(said))


def start_four(
    hosts: Hosts, program: Path, *args: str, agent: bool = True, **env: str
) -> list[subprocess.Popen[bytes]]:
    """Two processes on each host: 0 and 1, 2 and 3."""
    return [
        hosts.launch(host, program, *args, local=local, per_host=2, env=env, agent=agent)
        for host in range(2)
        for local in range(2)
    ]


def assert_nothing_left(hosts: Hosts) -> None:
    wait_until(lambda: not marked(hosts.mark), "a process is left behind")


def assert_all_refuse(hosts: Hosts, variable: str, values: Sequence[str], **env: str) -> None:
    """That two processes with different values of a variable both end, and name it."""
    own = [env | {variable: value} for value in values]
    processes = [hosts.launch(host, PROGRAM, "none", env=each) for host, each in enumerate(own)]
    assert 0 not in end(processes, hosts)
    for host in range(2):
        assert f"the processes of this job differ in {variable}" in hosts.said(host)


def line_of(text: str) -> int:
    """Of the program: the first line with that text, from the faults on."""
    whole = PROGRAM.read_text()
    return whole.count("\n", 0, whole.index(text, whole.index("total = over_all"))) + 1
