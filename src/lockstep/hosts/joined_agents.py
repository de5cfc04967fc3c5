"""The agents of a job under ``lockstep worker --max-restarts``, as its supervisor sees them.

A cluster's launcher has started them, one for each process, and each is the parent of its program.
The agent of process 0 has a child that runs the supervisor of ``lockstep run``
(`lockstep.launch.worker_job`). It listens on the job's coordinator address; JAX's coordination
service gets a free port of that host for each attempt, so late messages of an earlier attempt reach
nothing. Each agent keeps a connection for the whole job (`worker_agent`):

    agent       ready (process, host, same)    it can start its program; `same` has to be equal on
                                               all hosts (`joining`)
    supervisor  number (process)               to one that was ready without a process: its own
    supervisor  start (attempt, coordinator,   all agents are ready, or with --nnodes enough of
                      process_id,              them: the number of its process in this attempt, and
                      num_processes)           of how many
    supervisor  signal (number)                for the program: another one has failed
    agent       exit (exit, record,            how its program has ended (`agent_messages`)
                      was_stopped, was_killed)
    supervisor  again or over (why, well)      all have ended: be ready once more, or leave
    supervisor  ping (t, heard)                a sign of life, every second (`lease`)
    agent       pong (t)                       the answer

An agent that is lost, or stopped alone (its pod was evicted), counts as failed. Another one in its
place may become ready within the start timeout, also before the others have ended; the next attempt
begins when the program of the lost one has ended, at the latest by its lease. A signal that stops
the agent of process 0, or all agents, ends the job.

Both sides prove that they have the job's key (`lockstep.hosts.checks.network_probe`). A job without
one is as open as JAX's coordination service.
"""

from __future__ import annotations

import functools
import os
import queue
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from lockstep import _run_files
from lockstep._stderr import complain
from lockstep._words import printable
from lockstep.hosts import agent_messages, joining, lease
from lockstep.hosts.agent_messages import Ended, Pong, Ready
from lockstep.hosts.checks import network_probe
from lockstep.system.channel import Channel, ChannelError

_READY_SECONDS = 10.0
"""How long an agent may take from its connection to its first message, which it sends at once."""
_SHOWN = 200
"""Letters of an error of a message."""


class JoinedAgent:
    """The connection to the agent of one process."""

    def __init__(self, connection: socket.socket) -> None:
        self.channel = Channel.of(connection, agent_messages.BOUNDS)
        self.joined_at = time.monotonic()
        self.answers = lease.Answers(self.joined_at)
        self.process = -1
        """Its process, once it has reported that."""
        self.label = ""
        """Its host."""
        self.is_ready = False
        self.runs = False
        """Whether its program has been ordered, and its end was not reported."""
        self.lost = ""
        """Why it is lost; "": it is not."""

    @property
    def may_run_until(self) -> float:
        """When its program has ended at the latest: the end of a connection is no proof of it."""
        return self.answers.may_run_until

    def close(self) -> None:
        self.channel.break_off()
        self.channel.close()


OnExit = Callable[[JoinedAgent, Ended], None]
OnLoss = Callable[[JoinedAgent, float], None]
OnReady = Callable[[JoinedAgent], None]


class JoinedAgents:
    """All agents of a job of ``size`` processes that have connected, over all attempts.

    ``listener`` is taken over; ``name`` and ``key`` are those that the agents prove to know. At
    most `network_probe.MAX_CLIENTS` others are connected at the same time.
    """

    def __init__(
        self,
        listener: socket.socket,
        size: int,
        name: str,
        key: bytes,
        same: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``same``: what each agent has to have as well."""
        self._size, self._same = size, same
        self._numbers = joining.Numbers(size)
        self._connected: set[JoinedAgent] = set()
        self.of: dict[int, JoinedAgent] = {}
        """The last to connect for each process; its program runs, or waits for an attempt."""
        self._gone: list[JoinedAgent] = []
        """Lost agents whose programs may still run."""
        self._selector: selectors.BaseSelector | None = None
        self._on_exit: OnExit = lambda agent, ended: None
        self._on_loss: OnLoss = lambda agent, at: None
        self._on_ready: OnReady = lambda agent: None
        self._fresh: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._wake, self._woken = os.pipe()
        self._listening = network_probe.Listener(listener, name, key, self._hand_over, size)
        self._has_ended = False

    def _hand_over(self, connection: socket.socket) -> None:
        """Takes a client that has the key. Runs in a thread of the listener."""
        self._fresh.put(socket.socket(fileno=connection.detach()))
        os.write(self._woken, b"\0")

    # Events

    def attach(
        self,
        selector: selectors.BaseSelector,
        on_exit: OnExit,
        on_loss: OnLoss,
        on_ready: OnReady = lambda agent: None,
    ) -> None:
        """Reports to these functions from now on, when ``selector`` calls its keys' data.

        ``on_loss`` gets the time of the last sign of life.
        """
        self._selector, self._on_exit, self._on_loss = selector, on_exit, on_loss
        self._on_ready = on_ready
        selector.register(self._wake, selectors.EVENT_READ, self._accept)
        for agent in self._connected:
            self._watch(agent)

    def detach(self) -> None:
        """Leaves the selector. What arrives meanwhile waits for the next `attach`."""
        assert self._selector
        for fd in (self._wake, *(agent.channel.fileno() for agent in self._connected)):
            self._selector.unregister(fd)
        self._selector = None

    def _accept(self) -> None:
        os.read(self._wake, 1)
        agent = JoinedAgent(self._fresh.get())
        self._connected.add(agent)
        self._watch(agent)

    def _watch(self, agent: JoinedAgent) -> None:
        assert self._selector
        read = functools.partial(self._read, agent)
        self._selector.register(agent.channel.fileno(), selectors.EVENT_READ, read)

    def _read(self, agent: JoinedAgent) -> None:
        try:
            now = time.monotonic()
            found = [agent_messages.read(each, now) for each in agent.channel.receive()]
            agent.answers.heard(now)
        except (ChannelError, ValueError) as error:
            self.refuse(agent, str(error))
            return
        for each in found:
            if isinstance(each, Pong):
                agent.answers.answered(each.question, now)
            elif not agent.lost:
                self._take(agent, each)
        if agent.channel.closed:
            self.lose(agent)

    def _take(self, agent: JoinedAgent, message: Ready | Ended) -> None:
        process = message.process
        if isinstance(message, Ready) and (why := joining.difference(self._same, message.same)):
            self._turn_away(agent, message.host, why)
        elif isinstance(message, Ready) and process is None and agent.process < 0:
            self._join(agent, message)
        elif process is None or not 0 <= process < self._size:
            self.refuse(agent, f"there is no process {process}")
        elif agent.process not in (-1, process):
            self.refuse(agent, f"it is the agent of process {agent.process}, not of {process}")
        elif isinstance(message, Ended):
            agent.runs = False
            self._on_exit(agent, message)
        else:
            self._ready(agent, process, message)

    def _join(self, agent: JoinedAgent, message: Ready) -> None:
        """Gives an agent without a number the first that is free."""
        process = self._numbers.free(message.host, self.of)
        if process is None:
            self._turn_away(agent, message.host, f"all {self._size} numbers of its nodes are taken")
            return
        agent.channel.send("number", process=process)
        self._ready(agent, process, message)

    def _ready(self, agent: JoinedAgent, process: int, message: Ready) -> None:
        known = self.of.get(process)
        if known and known is not agent:
            self.lose(known, f"another one on {message.host} has taken its place")
        agent.answers.begun(time.monotonic())
        self._numbers.take(process, message.host)
        self.of[process], agent.process = agent, process
        agent.label, agent.is_ready = message.host, True
        self._on_ready(agent)

    def _turn_away(self, agent: JoinedAgent, host: str, why: str) -> None:
        """Keeps an agent out of the job, and says why on both sides."""
        host = printable(host, _SHOWN)
        complain(f"{host} is refused: {printable(why, _SHOWN)}")
        agent.channel.send("over", why=f"the job has refused {host}: {why}", well=False)
        self.lose(agent)

    def refuse(self, agent: JoinedAgent, why: str) -> None:
        """Gives up an agent that has sent what is no message at this point."""
        self.lose(agent, f"it has sent a message that is not one: {printable(why, _SHOWN)}")

    def lose(self, agent: JoinedAgent, why: str = "") -> None:
        """Gives an agent up, once. Without ``why`` its connection has ended."""
        if agent.lost:
            return
        agent.lost = _run_files.AGENT_LOST + (f": {why}" if why else "")
        self._connected.discard(agent)
        self._listening.left()
        if self._selector:
            self._selector.unregister(agent.channel.fileno())
        agent.close()
        if agent.runs:
            self._gone.append(agent)
        if self.of.get(agent.process) is agent:
            del self.of[agent.process]
        self._on_loss(agent, min(time.monotonic(), agent.answers.heard_at + lease.PING_SECONDS))

    def tick(self, now: float) -> None:
        """Sends signs of life, and gives up agents that are silent, and connections over which none
        has become ready."""
        for agent in list(self._connected):
            if agent.process < 0:
                if now > agent.joined_at + _READY_SECONDS:
                    self.lose(agent)
                continue
            if ping := agent.answers.ping(now, time.monotonic_ns()):
                agent.channel.send("ping", **ping)
            # Between two attempts an agent ends what its program has left, and reads nothing.
            if agent.answers.is_silent(now, agent.runs):
                limit = lease.SILENCE_SECONDS if agent.runs else lease.IDLE_SECONDS
                self.lose(agent, f"it has answered nothing for {limit:g} s")

    def last_end(self, now: float) -> tuple[float, str]:
        """When no program of a lost agent can run any more: see `lease.last_end`."""
        self._gone = [each for each in self._gone if each.may_run_until > now]
        return lease.last_end(self._gone, now)

    # To all

    @property
    def connected(self) -> int:
        """How many connections there are, also of agents that are not ready yet."""
        return len(self._connected)

    @property
    def ready(self) -> list[int]:
        """The processes whose agents are ready for the next attempt."""
        return [p for p in range(self._size) if p in self.of and self.of[p].is_ready]

    @property
    def missing(self) -> list[int]:
        """The processes whose agents are not ready for the next attempt."""
        ready = self.ready
        return [p for p in range(self._size) if p not in ready]

    def send_all(self, kind: str, **values: Any) -> None:
        """Process 0 comes last: the supervisor ends with its agent."""
        for _, agent in sorted(self.of.items(), reverse=True):
            agent.channel.send(kind, **values)

    def end(self, why: str, well: bool = False) -> None:
        """Has all agents leave. No attempt follows: one that comes now finds the port closed.

        ``well``: the job has ended well, and so does an agent that waits as a spare. The first call
        counts, because an agent that reads two reasons at once would name the later one.
        """
        if self._has_ended:
            return
        self._has_ended = True
        self.send_all("over", why=why, well=well)
        self._listening.close()
