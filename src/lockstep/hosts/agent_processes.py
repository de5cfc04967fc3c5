"""The programs of agents that a cluster's launcher has started, and their attempts.

The supervisor of `lockstep.launch` sees them by `AgentProcesses` and `AgentAttempts`, as it sees
those of `remote_processes` and `several_hosts`.
"""

from __future__ import annotations

import dataclasses
import selectors
import socket
import time
from collections.abc import Sequence

from lockstep import _run_files
from lockstep._errors import LaunchError
from lockstep._words import processes
from lockstep.bootstrap import cluster_env
from lockstep.hosts.agent_messages import Ended
from lockstep.hosts.joined_agents import JoinedAgent, JoinedAgents
from lockstep.hosts.remote_process import RemoteProcess
from lockstep.processes.console import complain
from lockstep.processes.job_processes import Loop
from lockstep.processes.job_spec import LaunchSpec
from lockstep.processes.program import GRACE_AFTER_SIGTERM
from lockstep.system import port_reservation

_LATE_SECONDS = 15.0
"""How long after the grace period an agent may take to report its end."""


class AgentAttempts:
    """The attempts of a job: `lockstep.launch.restarts.Placement`."""

    def __init__(self, agents: JoinedAgents, hosts: tuple[str, str], timeout: float) -> None:
        """``hosts``: what the coordinator's host is called, and where it listens; ``timeout``:
        seconds that the agents may take to become ready, 0: no limit."""
        self._agents, self._hosts, self._timeout = agents, hosts, timeout
        self._held: socket.socket | None = None
        """Keeps the port of the present attempt."""

    def first(self, job: LaunchSpec) -> LaunchSpec:
        """``job`` with its coordinator, once all agents are ready. Raises `LaunchError`."""
        self._wait_until_ready()
        if self._held:
            self._held.close()
        self._held = port_reservation.reserve(self._hosts[1])
        port = self._held.getsockname()[1]
        coordinator = f"{cluster_env.bracketed(self._hosts[0])}:{port}"
        config = dataclasses.replace(job.config, coordinator=coordinator)
        return dataclasses.replace(job, config=config)

    def again(self, job: LaunchSpec) -> LaunchSpec:
        self._agents.send_all("again")
        return self.first(job)

    def processes(self, job: LaunchSpec, loop: Loop) -> AgentProcesses:
        return AgentProcesses(job, loop, self._agents)

    def _wait_until_ready(self) -> None:
        """Waits for all agents; tells those that are there when others do not come."""
        now = time.monotonic()
        end = now + (self._timeout or float("inf"))
        ended, why = self._agents.last_end(now)
        if why:
            complain(why)
        with selectors.PollSelector() as selector:
            self._agents.attach(selector, self._refuse_exit, lambda agent, at: None)
            while now < ended or ((missing := self._agents.missing) and now < end):
                for key, _ in selector.select(min(1.0, (ended if now < ended else end) - now)):
                    key.data()
                now = time.monotonic()
                self._agents.tick(now)
            self._agents.detach()
        if missing:
            agents = f"agent{'s' * (len(missing) > 1)} of {processes(missing)}"
            why = (
                f"the {agents} did not come within {self._timeout:g} s (--start-timeout). Each has "
                f"to run with the same --max-restarts and key, and has to reach {self._hosts[0]}."
            )
            self._agents.end(why)
            raise LaunchError(why)

    def _refuse_exit(self, agent: JoinedAgent, ended: Ended) -> None:
        self._agents.refuse(agent, "an end of what was not started")


class AgentProcesses:
    """The programs of one attempt: `lockstep.processes.job_processes.Processes`.

    Their output goes to the cluster's launcher, and their agents keep the records.
    """

    not_stored = ""

    def __init__(self, job: LaunchSpec, loop: Loop, agents: JoinedAgents) -> None:
        self._job = job
        self._loop = loop
        self._agents = agents
        self.members: list[RemoteProcess] = []
        self._running = dict(sorted(agents.of.items()))
        self._stopped: set[int] = set()
        """Processes whose agent was asked to end by a signal."""

    def listen(self) -> None:
        self._agents.attach(self._loop.selector, self._on_exit, self._on_loss)

    def close(self) -> None:
        self._agents.detach()

    def start(self) -> None:
        console = self._loop.console
        attempt, coordinator = self._job.config.attempt, self._job.config.coordinator
        for process_id, agent in self._running.items():
            process = RemoteProcess(self._job, process_id, agent, console, (b"", b""))
            process.stdout.close()
            process.stderr.close()
            self.members.append(process)
            agent.is_ready, agent.runs = False, True
            agent.channel.send("start", attempt=attempt, coordinator=coordinator)

    def _on_exit(self, agent: JoinedAgent, ended: Ended) -> None:
        process, ending = self._process_of(agent), ended.exit
        if process is None or not process.lives:
            self._agents.refuse(agent, "an end of what does not run")
            return
        if ended.record:
            process.on_error(ended.record)
        if ended.was_stopped:
            self._stopped.add(agent.process)
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

    def _on_loss(self, agent: JoinedAgent, heard_at: float) -> None:
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
        # A program that has got SIGTERM has a grace period of its own.
        grace = max(self._job.grace, GRACE_AFTER_SIGTERM)
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
        """The guard of each agent ends what its program has left running."""
        return 0

    def collect(self) -> None:
        """Each host keeps its records."""
