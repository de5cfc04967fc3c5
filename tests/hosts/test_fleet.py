"""The agents of many hosts, started and asked together: real processes in the place of ssh."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest

from lockstep import __version__
from lockstep._finding import OK
from lockstep.hosts import fleet as fleets
from lockstep.hosts import starters
from lockstep.hosts.checks import host_check, network_probe
from lockstep.hosts.checks.request import Request
from lockstep.hosts.fleet import Fleet
from lockstep.hosts.host_list import Host
from own_address import networked, own_address

STUB = """
import os, select, sys, time
from lockstep.system.channel import GREETING, Channel

delay, patience = float(sys.argv[1]), float(sys.argv[2])
time.sleep(delay)
channel = Channel(0, 1, after_greeting=False)
channel.send_raw(GREETING)
channel.send("hello", version="")
while select.select([0], [], [], patience)[0] and not channel.closed:
    channel.receive()
"""
"""An agent that answers after so many seconds, and ends when nothing comes for so many."""

TROUBLED = """
import sys
from lockstep.hosts import host_agent
from lockstep.hosts.checks import network_probe

probe, times = network_probe.probe, int(sys.argv.pop(1))
def first_in_vain(*args, **options):
    global times
    times -= 1
    if times < 0:
        return probe(*args, **options)
    late = {"reason": network_probe.SLOW, "detail": "no answer for 3 s"}
    return {peer["name"]: late for peer in args[0]}
network_probe.probe = first_in_vain
sys.exit(host_agent.main())
"""
"""An agent whose first probes, so many, are answered too late."""

Make = Callable[..., Fleet]


def stub(delay: float, patience: float) -> list[str]:
    return [sys.executable, "-c", STUB, str(delay), str(patience)]


@pytest.mark.full
def test_hosts_that_answer_one_after_the_other_are_waited_for(fleet: Make) -> None:
    """The last answers after a multiple of what is waited for one."""
    delays = {f"h{i}": 1.0 + 1.5 * i for i in range(4)}
    made = fleet(lambda host: stub(delays[host.name], 60.0), reach_seconds=4.0)
    assert [each.lost for each in made.connect([Host(name) for name in delays])] == [""] * 4


def test_so_many_commands_are_started_at_a_time(
    fleet: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "MAX_STARTING", 2)
    starting = []

    def command(host: Host) -> list[str]:
        starting.append(sum(not each.facts for each in made.connections))
        return stub(0.1, 60.0)

    made = fleet(command)
    agents = made.connect([Host(f"h{i}") for i in range(6)])
    assert [each.lost for each in agents] == [""] * 6
    assert [each.label for each in agents] == [f"h{i}" for i in range(6)]
    assert max(starting) == 1


@pytest.mark.full
def test_hosts_that_do_not_answer_make_room_for_the_next(
    fleet: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "MAX_STARTING", 2)
    silent = ("h0", "h1")
    made = fleet(lambda host: stub(60.0 * (host.name in silent), 60.0), reach_seconds=4.0)
    agents = made.connect([Host(f"h{i}") for i in range(4)])
    assert ["no agent answered" in each.lost for each in agents] == [True, True, False, False]
    assert [bool(each.facts) for each in agents] == [False, False, True, True]


def test_commands_that_cannot_be_started_use_up_no_room(
    fleet: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "MAX_STARTING", 2)
    made = fleet(lambda host: ["/no/such/command"])
    agents = made.connect([Host(f"h{i}") for i in range(5)])
    assert ["could be started" in each.lost for each in agents] == [True] * 5


def test_a_pass_over_all_connections_is_not_made_with_each_message(
    fleet: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fleet(lambda host: stub(0.0, 60.0))
    [agent] = made.connect([Host("h")])
    passes: list[float] = []
    monkeypatch.setattr(agent, "tick", passes.append)
    now = time.monotonic() + 1.0
    for message in range(1000):
        made.tick(now + message / 1000)
    assert 9 <= len(passes) <= 10


@pytest.mark.full
def test_an_agent_that_has_started_hears_of_the_launcher_while_others_are_started(
    fleet: Make,
) -> None:
    def command(host: Host) -> list[str]:
        time.sleep(1.5)  # a machine with many commands to start
        return stub(0.0, 4.0)

    agents = fleet(command).connect([Host(f"h{i}") for i in range(6)])
    assert [each.lost for each in agents] == [""] * 6


def test_a_host_that_never_answers_is_named_with_the_limit_to_raise(fleet: Make) -> None:
    [silent] = fleet(lambda host: ["sleep", "300"], reach_seconds=1.0).connect([Host("h")])
    assert "no agent answered on h within 1 s" in silent.lost
    assert "--reach-timeout 4 gives it more time" in silent.lost


def troubled(times: int) -> Callable[[Host], list[str]]:
    """``a`` answers too late so many times."""
    own = own_address()

    def command(host: Host) -> list[str]:
        variables = ["env", f"SSH_CONNECTION={own} 1 {own} 22"]
        if host.name == "a":
            return [*variables, sys.executable, "-c", TROUBLED, str(times)]
        return [*variables, sys.executable, "-P", "-m", starters.AGENT]

    return command


@networked
def test_a_connection_that_came_too_late_is_tried_again_before_it_is_judged(fleet: Make) -> None:
    made = fleet(troubled(times=1))
    checked = host_check.check_hosts(made, [Host("a"), Host("b")], Request(version=__version__))
    assert [each.status for each in checked.found["a"] if each.name == "network"] == [OK]
    assert checked.states["a"].probed["b"]["reason"] == ""
    assert checked.states["a"].cores > 0


@networked
def test_what_fails_twice_is_judged(fleet: Make) -> None:
    made = fleet(troubled(times=2))
    checked = host_check.check_hosts(made, [Host("a"), Host("b")], Request(version=__version__))
    assert checked.states["a"].probed["b"]["reason"] == network_probe.SLOW
    [finding] = [each for each in checked.found["b"] if each.name == "network"]
    assert "b took the connections of a but did not answer" in finding.found
