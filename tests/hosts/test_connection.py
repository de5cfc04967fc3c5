"""How the end of a host is told: real agents, and a launcher that is asked why one is lost."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from lockstep.hosts.connection import Connection
from lockstep.hosts.fleet import Fleet
from lockstep.hosts.host_list import Host
from support import wait_until

Start = Callable[[list[str], str], tuple[Fleet, Connection]]


@pytest.fixture
def start(fleet: Callable[..., Fleet]) -> Start:
    """Starts a command as the one that leads to the agent of a host."""

    def make(command: list[str], name: str) -> tuple[Fleet, Connection]:
        made = fleet(lambda host: command)
        [connection] = made.connect([Host(name)])
        assert not connection.lost
        return made, connection

    return make


def loss(made: Fleet, connection: Connection) -> str:
    """Why the host is lost, once it is."""

    def is_lost() -> bool:
        made.ask("ping", "none", {connection: {"t": 0}}, 0.1)
        return bool(connection.lost)

    wait_until(is_lost, "the host is not lost", 30)
    return connection.lost


def agent(code: str = "") -> list[str]:
    """A real agent, which runs some code before."""
    start = "import sys; from lockstep.hosts import host_agent; sys.exit(host_agent.main())"
    return [sys.executable, "-P", "-c", f"{code}\n{start}"]


def test_the_local_end_of_a_connection_that_is_killed_is_not_called_the_agent(start: Start) -> None:
    made, connection = start(agent(), "f")
    os.kill(connection.pid, signal.SIGKILL)
    program = os.path.basename(sys.executable)
    assert loss(made, connection) == (
        f"its host was lost: {program} to f (process {connection.pid} on this machine) was killed "
        "by SIGKILL"
    )


def test_an_agent_of_this_machine_that_is_killed_is_the_agent(start: Start) -> None:
    made, connection = start(agent(), "localhost")
    os.kill(connection.pid, signal.SIGKILL)
    expected = "its host was lost: the agent on localhost has ended: killed by SIGKILL"
    assert loss(made, connection) == expected


def test_an_agent_that_hears_nothing_says_so(start: Start) -> None:
    short = "from lockstep.hosts import lease; lease.IDLE_SECONDS = 1.0"
    made, connection = start(agent(short), "f")
    wait_until(lambda: not _lives(connection), "the agent lives on", 30)
    assert loss(made, connection) == (
        "its host was lost: the agent on f has ended: it received nothing from the launcher for 1 s"
    )


def test_a_launcher_that_stood_still_is_named(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = "from lockstep.hosts import lease; lease.IDLE_SECONDS = 1.0"
    made, connection = start(agent(short), "f")
    made.ask("ping", "none", {connection: {"t": 0}}, 0.1)
    wait_until(lambda: not _lives(connection), "the agent lives on", 30)
    clock, now = time.CLOCK_BOOTTIME, time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda id: now(id) + 20.0 * (id == clock))
    said = loss(made, connection)
    assert "it received nothing from the launcher for 1 s. The launcher stood still for 2" in said
    assert "was its machine suspended" in said


def test_an_agent_that_gets_a_signal_says_so(start: Start) -> None:
    made, connection = start(agent(), "f")
    inner = int(connection.facts["pid"])
    os.kill(inner, signal.SIGTERM)
    assert loss(made, connection).endswith("the agent on f has ended: it got SIGTERM")


def _lives(connection: Connection) -> bool:
    found = os.waitid(os.P_PID, connection.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is None
