"""The connections of agents to the supervisor of their job, over loopback."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator

import pytest

from lockstep._run_files import Exit
from lockstep.hosts import network_probe
from lockstep.hosts.agent_messages import Ended
from lockstep.hosts.joined_agents import JoinedAgent, JoinedAgents
from lockstep.hosts.supervisor_line import SupervisorLine

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
        self.agents.attach(self.selector, self._on_exit, lambda agent, at: self.lost.append(agent))

    def _on_exit(self, agent: JoinedAgent, ended: Ended) -> None:
        if self.is_at_fault:
            raise LookupError("a fault of the supervisor")
        self.ended.append(ended)

    def line(self, process: int) -> SupervisorLine:
        return SupervisorLine.connect(f"127.0.0.1:{self.port}", "job", KEY, process, TIMEOUT)

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
