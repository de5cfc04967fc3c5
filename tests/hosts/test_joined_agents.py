"""Agents that have joined the supervisor of their job, over loopback."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hosts.quiet_loop import Loop
from lockstep._config import Config
from lockstep._errors import LaunchError
from lockstep._run_files import Exit
from lockstep.hosts import lease
from lockstep.hosts.agent_attempts import AgentAttempts
from lockstep.hosts.agent_messages import Ended, Ready
from lockstep.hosts.checks import network_probe
from lockstep.hosts.joined_agents import JoinedAgent, JoinedAgents
from lockstep.processes.job_spec import LaunchSpec
from lockstep.processes.program import GRACE_AFTER_SIGTERM
from worker.supervised import Line

KEY = b"k" * 32
TIMEOUT = 60.0


class Joined:
    """The agents of a job of two, and what they have reported."""

    def __init__(self) -> None:
        listener = network_probe.listen("127.0.0.1")
        self.port: int = listener.getsockname()[1]
        self.agents = JoinedAgents(listener, 2, "job", KEY)
        self.ended: list[Ended] = []
        self.lost: list[JoinedAgent] = []
        self.is_at_fault = False
        self.selector = selectors.PollSelector()
        self.attach()

    def attach(self) -> None:
        self.agents.attach(self.selector, self._on_exit, lambda agent, at: self.lost.append(agent))

    def _on_exit(self, agent: JoinedAgent, ended: Ended) -> None:
        if self.is_at_fault:
            raise LookupError("a fault of the supervisor")
        self.ended.append(ended)

    def connect(self) -> socket.socket:
        """A connection of a program that has the key."""
        return network_probe.connect("127.0.0.1", self.port, "job", KEY, TIMEOUT)

    def line(self, process: int) -> Line:
        return Line(self.connect(), process)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + TIMEOUT
        while not holds():
            assert time.monotonic() < end
            for key, _ in self.selector.select(0.1):
                key.data()


@pytest.fixture
def joined() -> Iterator[Joined]:
    made = Joined()
    yield made
    made.agents.end("the test ends")
    made.selector.close()


def test_a_fault_of_the_supervisor_is_not_taken_for_one_of_the_agent(joined: Joined) -> None:
    joined.is_at_fault = True
    joined.line(1).ended(Exit.of(1), None, False, False)
    with pytest.raises(LookupError, match="a fault of the supervisor"):
        joined.wait_until(lambda: bool(joined.lost))
    assert not joined.lost


def test_the_first_reason_for_the_end_is_the_one_that_an_agent_names(joined: Joined) -> None:
    """Both messages would be there when the agent reads."""
    line = joined.line(1)
    line.send("ready", **Ready(1, "here", {})._asdict())
    joined.wait_until(lambda: joined.agents.ready == [1])
    joined.agents.end("the agent of process 0 did not come")
    joined.agents.end("the job has failed")
    with pytest.raises(LaunchError, match="the agent of process 0 did not come"):
        line.wait_for_start()


@pytest.fixture
def no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of a later clock are given while the agents answer nothing."""
    monkeypatch.setattr(lease, "SILENCE_SECONDS", 1000.0)
    monkeypatch.setattr(lease, "IDLE_SECONDS", 1000.0)


@pytest.mark.usefixtures("no_silence")
def test_a_program_that_saves_after_sigterm_is_waited_for(joined: Joined, tmp_path: Path) -> None:
    """It has the grace period of its own agent, which begins later."""
    lines = [joined.line(process) for process in range(2)]
    waiting = [threading.Thread(target=line.wait_for_start) for line in lines]
    for thread in waiting:
        thread.start()
    joined.wait_until(lambda: not joined.agents.missing)
    joined.agents.detach()
    loop = Loop(may_fail=True)
    job = LaunchSpec(("x.py",), 2, Config(coordinator="127.0.0.1:1"), {}, tmp_path, grace=5.0)
    attempts = AgentAttempts(joined.agents, ("127.0.0.1", "127.0.0.1"), job)
    programs = attempts.processes(job, loop)
    programs.listen()
    programs.start()
    for thread in waiting:
        thread.join(TIMEOUT)
    loop.stopping_at = time.monotonic()
    programs.tick(loop.stopping_at + GRACE_AFTER_SIGTERM)
    assert all(process.lives for process in programs.members)
    programs.tick(loop.stopping_at + 100)
    reason = "its agent was lost: it did not report the end of its program"
    assert [process.exit for process in programs.members] == [Exit(reason=reason)] * 2
    programs.close()
    joined.attach()


def test_so_many_connections_are_taken_and_no_more(joined: Joined) -> None:
    with contextlib.ExitStack() as connections:
        limit = 2 + network_probe.MAX_CLIENTS
        before = len(os.listdir("/proc/self/fd"))
        made = [connections.enter_context(joined.connect()) for _ in range(limit)]
        with pytest.raises(ConnectionError):
            joined.connect()
        joined.wait_until(lambda: joined.agents.connected == limit)
        assert len(os.listdir("/proc/self/fd")) == before + 2 * limit, "one at each end"
        made[0].close()
        joined.wait_until(lambda: joined.agents.connected == limit - 1)
        connections.enter_context(joined.connect())


@pytest.mark.usefixtures("no_silence")
def test_a_connection_over_which_no_agent_becomes_ready_is_closed(joined: Joined) -> None:
    with joined.connect() as silent, ThreadPoolExecutor(1) as threads:
        line = joined.line(1)
        waits = threads.submit(line.wait_for_start)
        joined.wait_until(lambda: joined.agents.connected == 2 and 1 in joined.agents.of)
        joined.agents.tick(time.monotonic())
        assert joined.agents.connected == 2
        joined.agents.tick(time.monotonic() + 100)
        assert silent.recv(1) == b""
        assert joined.agents.connected == 1
        joined.agents.end("the test ends")
        with pytest.raises(LaunchError):
            waits.result(TIMEOUT)


@pytest.mark.parametrize(("head", "body"), [(1 << 20, 0), (100, 1)])
def test_a_message_that_is_longer_than_any_of_an_agent_is_refused(
    joined: Joined, head: int, body: int
) -> None:
    """The lengths end the connection, before the bytes are there."""
    with joined.connect() as other:
        other.sendall(struct.pack(">IQ", head, body))
        joined.wait_until(lambda: bool(joined.lost))
        assert other.recv(1) == b""
    assert f"a message of {head} + {body} bytes is too long" in joined.lost[0].lost
