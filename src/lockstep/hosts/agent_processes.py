"""The programs of agents that a cluster's launcher has started, in one attempt.

The supervisor of `lockstep.launch` sees them by `AgentProcesses`, as it sees those of
`remote_processes`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Protocol

from lockstep import _run_files
from lockstep.hosts.agent_messages import Ended
from lockstep.hosts.joined_agents import JoinedAgent, JoinedAgents
from lockstep.hosts.remote_process import RemoteProcess
from lockstep.processes.job_processes import Loop
from lockstep.processes.job_spec import LaunchSpec
from lockstep.processes.program import GRACE_AFTER_SIGTERM

_LATE_SECONDS = 15.0
"""How long after the grace period an agent may take to report its end."""


class Nodes(Protocol):
    """What has to know of agents that come and go while an attempt runs (`agent_attempts`)."""

    def lost(self, agent: JoinedAgent) -> None:
        """An agent was lost, one of the attempt or a spare."""
        ...

    def has_come(self, agent: JoinedAgent, loop: Loop) -> None:
        """An agent has become ready that runs nothing."""
        ...

    def tick(self, now: float, loop: Loop) -> None:
        """Does what is due at ``now``."""
        ...


class AgentProcesses:
    """The programs of one attempt: `lockstep.processes.job_processes.Processes`.

    Their output goes to the cluster's launcher, and their agents keep the records.
    """

    not_stored = ""

    def __init__(
        self,
        job: LaunchSpec,
        loop: Loop,
        agents: JoinedAgents,
        numbers: Sequence[int],
        nodes: Nodes,
    ) -> None:
        """``numbers``: what the launcher calls the process of each agent that takes part."""
        self._job = job
        self._loop = loop
        self._agents = agents
        self._nodes = nodes
        self.members: list[RemoteProcess] = []
        self._running = {number: agents.of[node] for number, node in enumerate(numbers)}
        self._stopped: set[int] = set()
        """Processes whose agent was asked to end by a signal."""

    def listen(self) -> None:
        self._agents.attach(self._loop.selector, self._on_exit, self._on_loss, self._on_ready)

    def close(self) -> None:
        self._agents.detach()

    def start(self) -> None:
        console = self._loop.console
        attempt, coordinator = self._job.config.attempt, self._job.config.coordinator
        for process_id, agent in self._running.items():
            process = RemoteProcess(self._job, process_id, agent, console, (b"", b""))
            process.close_output()
            self.members.append(process)
            agent.is_ready, agent.runs = False, True
            agent.channel.send(
                "start",
                attempt=attempt,
                coordinator=coordinator,
                process_id=process_id,
                num_processes=len(self._running),
            )

    def _on_exit(self, agent: JoinedAgent, ended: Ended) -> None:
        process, ending = self._process_of(agent), ended.exit
        if process is None or not process.lives:
            self._agents.refuse(agent, "an end of what does not run")
            return
        if ended.record:
            process.on_error(ended.record)
        if ended.was_stopped:
            self._stopped.add(process.process_id)
            ending = dataclasses.replace(ending, reason=_run_files.STOPPED)
        process.on_exit(ending, ended.was_killed, time.monotonic())
        self._check_stopped()
        if ending.status != 0:
            self._loop.failed()

    def _check_stopped(self) -> None:
        """A signal to the agent of process 0, or to all agents, asks for the end of the job."""
        seen = {each.process_id for each in self.members if each.exit and each.exit.is_seen}
        all_ended = not any(each.lives for each in self.members)
        if 0 in self._stopped or (all_ended and seen and seen == self._stopped):
            self._loop.asked_to_stop()

    def _on_ready(self, agent: JoinedAgent) -> None:
        self._nodes.has_come(agent, self._loop)

    def _on_loss(self, agent: JoinedAgent, heard_at: float) -> None:
        self._nodes.lost(agent)
        process = self._process_of(agent)
        if process is not None and process.lives:
            process.lost(agent.lost, heard_at)
            self._check_stopped()
            self._loop.failed()

    def _process_of(self, agent: JoinedAgent) -> RemoteProcess | None:
        """The program of ``agent`` in this attempt; None where it has none."""
        return next((each for each in self.members if each.connection is agent), None)

    def signal(self, number: int) -> None:
        for process in self.members:
            if process.lives:
                self._running[process.process_id].channel.send("signal", number=int(number))

    def tick(self, now: float) -> None:
        """Gives up the agents that do not report the end of their program."""
        self._agents.tick(now)
        self._nodes.tick(now, self._loop)
        # A program that has got SIGTERM has a grace period of its own.
        grace = max(self._job.grace, GRACE_AFTER_SIGTERM) + (self._job.grow or 0.0)
        if now > self._loop.stopping_at + grace + _LATE_SECONDS:
            for process in self.members:
                if process.lives:
                    agent = self._running[process.process_id]
                    self._agents.lose(agent, "it did not report the end of its program")

    def reaped(self, ended: Sequence[tuple[int, int]]) -> None:
        """This process has no children of the job."""

    def hold_output(self, held: bool) -> None:
        """The cluster's launcher gets the output."""

    def sweep(self) -> int:
        """Each agent ends what its program has left running, before it starts it again."""
        return 0

    def collect(self) -> None:
        """Each host keeps its records."""
