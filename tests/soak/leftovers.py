"""What a job has left on its hosts, of which nothing may be there."""

from __future__ import annotations

from collections.abc import Iterable

from soak.chaos_job import wait
from ssh_hosts import SshHosts

LEASE = 45.0
"""Within which a host that was cut off has ended its processes and its agent."""


def left_over(hosts: SshHosts, names: Iterable[str]) -> list[str]:
    """Processes, run directories in use, shared memory and ports, after the longest lease."""
    wait(lambda: not hosts.running(), LEASE)
    found = [f"left: {each}" for each in hosts.leftovers() if "lockstep-run-" not in each]
    for name in names:
        found += [f"left, in use: {path}" for path in hosts.held_run_dirs([name])]
        listening = hosts.run(name, ["ss", "-Hltn"]).stdout.splitlines()
        found += [f"left on {name}: {line}" for line in listening if ":22 " not in line]
    return found
