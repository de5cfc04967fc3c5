"""The attempts of a job whose agents a cluster's launcher has started: on which nodes each runs."""

from __future__ import annotations

import dataclasses
import selectors
import socket
import time
from collections.abc import Collection

from lockstep._errors import LaunchError
from lockstep._stderr import complain
from lockstep._words import counted, processes
from lockstep.bootstrap import cluster_env
from lockstep.hosts import host_changes, returning_hosts
from lockstep.hosts.agent_messages import Ended
from lockstep.hosts.agent_processes import AgentProcesses
from lockstep.hosts.host_list import Host, Placed
from lockstep.hosts.joined_agents import JoinedAgent, JoinedAgents
from lockstep.hosts.membership import Membership
from lockstep.hosts.node_range import NodeRange
from lockstep.processes.job_processes import Loop
from lockstep.processes.job_spec import LaunchSpec
from lockstep.system import port_reservation

JOIN_SECONDS = 30.0
"""How long a job waits for more nodes once it has enough (``--nnodes``), and for others where it is
to start again because one has come (``--grow``)."""


class AgentAttempts:
    """The attempts of a job: `lockstep.launch.restarts.Placement`.

    With ``--nnodes`` it may have fewer nodes than the launcher has, or spares. The first node has
    what the launcher calls processes 0 to L - 1, where it starts L on each; they have other numbers
    in the job where nodes are missing. A node takes part when all of its agents are ready.
    The seat of node 0 is never empty, because the supervisor ends with the agent of process 0.
    """

    def __init__(
        self,
        agents: JoinedAgents,
        hosts: tuple[str, str],
        job: LaunchSpec,
        nodes: NodeRange | None = None,
        each: int = 1,
        joins: bool = False,
    ) -> None:
        """``hosts``: what the coordinator's host is called, and where it listens; ``each``: how
        many processes the launcher starts on a node, one after the other; ``joins``: there is no
        launcher, and nodes get their numbers as they come (`joining`)."""
        self._joins = joins
        self._agents, self._hosts, self._timeout = agents, hosts, job.config.start_timeout
        self._is_elastic = nodes is not None
        self._each = each if nodes else 1
        count = job.processes // self._each
        self._nodes = nodes or NodeRange(count, count)
        every = [Host(f"node {number}", slots=self._each) for number in range(count)]
        used = enumerate(every[: self._nodes.most])
        seats = [Placed(host, number * self._each, self._each) for number, host in used]
        self._membership = Membership(seats, every[self._nodes.most :], max_losses=0)
        self._before = self._membership.in_use
        """The nodes of the last attempt."""
        self._grows = job.grow is not None
        self._grow_at = float("inf")
        """When the program is asked to end, for the nodes that have come."""
        self._held: socket.socket | None = None
        """Keeps the port of the present attempt."""

    def first(self, job: LaunchSpec) -> LaunchSpec:
        """``job`` with its coordinator, once enough agents are ready. Raises `LaunchError`."""
        job = self._placed(job, is_first=True)
        return self._with_coordinator(job)

    def again(self, job: LaunchSpec) -> LaunchSpec:
        self._agents.send_all("again")
        return self._with_coordinator(self._placed(job, is_first=False))

    def _with_coordinator(self, job: LaunchSpec) -> LaunchSpec:
        if self._held:
            self._held.close()
        self._held = port_reservation.reserve(self._hosts[1])
        port = self._held.getsockname()[1]
        coordinator = f"{cluster_env.bracketed(self._hosts[0])}:{port}"
        config = dataclasses.replace(job.config, coordinator=coordinator)
        return dataclasses.replace(job, config=config)

    def processes(self, job: LaunchSpec, loop: Loop) -> AgentProcesses:
        self._grow_at = float("inf")
        used = [self._membership.hosts.index(placed.host) for placed in self._membership.places]
        numbers = [number for node in used for number in self._of(node)]
        return AgentProcesses(job, loop, self._agents, numbers, self)

    def _of(self, node: int) -> range:
        """What the launcher calls the processes of a node."""
        return range(node * self._each, (node + 1) * self._each)

    def _node(self, agent: JoinedAgent) -> Host:
        return self._membership.hosts[agent.process // self._each]

    def _complete(self, numbers: Collection[int]) -> list[int]:
        """The nodes of which all processes are among these."""
        nodes = range(len(self._membership.hosts))
        return [node for node in nodes if all(number in numbers for number in self._of(node))]

    # Before an attempt

    def _placed(self, job: LaunchSpec, is_first: bool) -> LaunchSpec:
        """``job`` on the nodes that are there."""
        own = self._membership
        self._wait_until_ready()
        ready = self._complete(self._agents.ready)
        for number, host in enumerate(own.hosts):
            (own.returned if number in ready else own.lose)(host)
        changes = own.plan()
        if not self._is_elastic:
            return job
        before, self._before = self._before, own.in_use
        count = len(own.in_use)
        job = dataclasses.replace(job, processes=count * self._each)
        if not is_first:
            for line in host_changes.described(changes, own):
                complain(line)
            made = host_changes.summed_up(before, changes, own)
            return dataclasses.replace(job, changes=made)
        if not own.is_full():
            absent = ", ".join(host.label for host in own.absent)
            complain(f"starting on {count} of {own.seats} nodes, without {absent}")
        return job

    def _wait_until_ready(self) -> None:
        """Waits for enough agents, and until no program of a lost one can run any more; tells those
        that are there when others do not come."""
        now = time.monotonic()
        end = now + (self._timeout or float("inf"))
        ended, why = self._agents.last_end(now)
        if why:
            complain(why)
        # Agents of the last attempt are there already, and will be ready soon.
        known = len(self._complete(self._agents.of))
        last_call = ended if known >= self._nodes.least else float("inf")
        with selectors.PollSelector() as selector:
            self._agents.attach(selector, self._refuse_exit, lambda agent, at: None)
            while now < ended or (now < end and not self._may_start(now >= last_call)):
                due = [at - now for at in (end, last_call, ended) if at > now]
                for key, _ in selector.select(min(1.0, *due)):
                    key.data()
                now = time.monotonic()
                self._agents.tick(now)
                if self._has_enough and last_call == float("inf"):
                    last_call = now + JOIN_SECONDS
                    end = max(end, last_call + 1.0)
                    self._tell_of_wait()
            self._agents.detach()
        if not self._has_enough:
            self._give_up()

    def _tell_of_wait(self) -> None:
        count, most = len(self._complete(self._agents.ready)), self._nodes.most
        if count < most:
            there = f"{count} of at most {most} are there (--nnodes {self._nodes})"
            complain(f"waiting {JOIN_SECONDS:g} s for more nodes: {there}")

    @property
    def _has_enough(self) -> bool:
        ready = self._complete(self._agents.ready)
        return 0 in ready and len(ready) >= self._nodes.least

    def _may_start(self, after_last_call: bool) -> bool:
        """Whether enough agents are ready, and no others are to be waited for."""
        all_ready = len(self._agents.ready) == len(self._agents.of)
        is_full = len(self._complete(self._agents.ready)) >= self._nodes.most
        return self._has_enough and all_ready and (is_full or after_last_call)

    def _give_up(self) -> None:
        missing = self._agents.missing
        agents = f"agent{'s' * (len(missing) > 1)} of {processes(missing)}"
        if self._joins:
            count = self._nodes.least - len(self._complete(self._agents.ready))
            agents = f"agents of {counted(count, 'other node')}"
        needed = f", and --nnodes needs {self._nodes.least} nodes" if self._is_elastic else ""
        why = (
            f"the {agents} did not come within {self._timeout:g} s (--start-timeout){needed}. Each "
            f"has to run with the same --max-restarts and key, and has to reach {self._hosts[0]}."
        )
        self._agents.end(why)
        raise LaunchError(why)

    def _refuse_exit(self, agent: JoinedAgent, ended: Ended) -> None:
        self._agents.refuse(agent, "an end of what was not started")

    # While an attempt runs

    def lost(self, agent: JoinedAgent) -> None:
        """An agent was lost, one of the attempt or a spare."""
        if agent.process >= 0:
            self._membership.lose(self._node(agent))

    def has_come(self, agent: JoinedAgent, loop: Loop) -> None:
        """An agent has become ready that runs nothing."""
        own, host = self._membership, self._node(agent)
        if own.hosts.index(host) not in self._complete(self._agents.ready):
            return
        own.returned(host)
        if not self._is_elastic:
            return
        grows = own.can_grow()
        if grows and self._grows and not loop.is_stopping:
            # Others may come: to start again for each would take longer.
            seconds = 0.0 if own.planned().is_full() else JOIN_SECONDS
            self._grow_at = min(self._grow_at, time.monotonic() + seconds)
            if not seconds:
                return
        what = returning_hosts.what_becomes(grows, asked=False)
        loop.console.report(f"{host.label} ({agent.label}) is there: {what}")

    def tick(self, now: float, loop: Loop) -> None:
        """Asks the program to end when nodes have come, and others had time to."""
        if now < self._grow_at:
            return
        self._grow_at = float("inf")
        came = ", ".join(host.label for host in self._membership.spares)
        if self._membership.can_grow():
            what = returning_hosts.what_becomes(True, asked=loop.grow())
            loop.console.report(f"{came} answers: {what}")
