"""Seconds until many hosts are reached and checked before a start, with all agents on this machine.

    .venv/bin/python benchmarks/many_hosts.py 32 64 128

In the place of ssh the agents start here, so all of them share these cores: hosts of their own
are faster. Each number of hosts is checked twice with the same agents: by the sample of
`lockstep.hosts.checks.host_pairs`, and with a connection of each host to each other.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
import unittest.mock
from collections.abc import Sequence

from launcher_on_hosts import own_address
from lockstep import __version__
from lockstep._finding import OK
from lockstep.hosts import starters
from lockstep.hosts.checks import host_check, host_pairs
from lockstep.hosts.checks.request import Request
from lockstep.hosts.connection import Connection
from lockstep.hosts.fleet import Fleet
from lockstep.hosts.host_list import Host
from lockstep.system import fd_limit


def check(fleet: Fleet, agents: Sequence[Connection]) -> str:
    request = Request(version=__version__, answer_seconds=120.0)
    began = time.monotonic()
    checked = host_check.check_agents(fleet, agents, request)
    taken = time.monotonic() - began
    bad = collections.Counter(
        f"{each.status} {each.name}: {each.found[:70]}"
        for own in checked.found.values()
        for each in own
        if each.status != OK
    )
    tried = sum(len(state.probed) for state in checked.states.values())
    what = "; ".join(f"{n} x {text}" for text, n in bad.most_common(2)) or "no problem"
    return f"{tried} connections, {taken:.1f} s, {what}"


def measure(count: int, address: str) -> None:
    fd_limit.make_room_in_launcher(0, count)
    agent = [sys.executable, "-P", "-m", starters.AGENT]
    fleet = Fleet(lambda host: ["env", f"SSH_CONNECTION={address} 1 {address} 22", *agent])
    try:
        began = time.monotonic()
        agents = fleet.connect([Host(f"host{i}") for i in range(count)])
        print(f"{count} hosts, reached in {time.monotonic() - began:.1f} s", flush=True)
        print("  sample:   ", check(fleet, agents), flush=True)
        with unittest.mock.patch.object(host_pairs, "ALL_PAIRS", count):
            print("  all pairs:", check(fleet, agents), flush=True)
    finally:
        fleet.end()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("counts", type=int, nargs="+")
    for count in parser.parse_args().counts:
        measure(count, own_address())


if __name__ == "__main__":
    main()
