"""``lockstep worker --max-restarts``: decides, for all agents of a job, when an attempt starts.

All processes have to start again together, because the survivors of a failure hold communicators of
the failed job. The agent of process 0 has a child, this server, which listens on the job's
coordinator address; JAX's coordination service gets a free port of that host for each attempt, so
late messages of an earlier attempt reach nothing. Each agent keeps a connection to the server for
the whole job (`restart_line`):

    agent   ready (process)              it can start its program
    server  start (attempt, coordinator) all agents are ready
    agent   ended (status, stopped,      how its program has ended, and whether it has done so
                   consequence)          because another has failed
    server  failed                       another program has failed: end within the grace period
    server  again or over (why)          all have ended: be ready once more, or leave

An agent that is lost, or stopped alone (its pod was evicted), counts as failed. Another one in its
place may become ready within the start timeout, also before the others have ended. A signal that
stops the agent of process 0, or all agents, ends the job.

Both sides prove that they have the job's key (`lockstep.hosts.network_probe`). A job without one is
as open as JAX's coordination service is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from lockstep._errors import InitializationError, LaunchError
from lockstep._words import counted, processes, signal_name
from lockstep.bootstrap import cluster_env, coordinator_address
from lockstep.hosts import network_probe
from lockstep.processes.console import complain
from lockstep.processes.restart_decision import Restarts
from lockstep.system import fd_limit, port_reservation, process_tree
from lockstep.system.channel import Channel, ChannelError

_LATE_SECONDS = 15.0
"""How long after the grace period an agent may take to report its end."""
_KEEPALIVE = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 11_000,  # while data is not acknowledged the kernel sends no probes
}
"""A host that is lost without a word is noticed within 11 s."""


def keep_alive(connection: socket.socket) -> None:
    """Notices a peer that is gone without a word."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def start(
    address: str, size: int, name: str, key: bytes, restarts: int, grace: float, timeout: float
) -> None:
    """Starts the server of a job of ``size`` processes as a child, which ends with this process.

    ``timeout``: seconds that the agents may take to become ready; 0: no limit. Raises `LaunchError`
    where it cannot listen on ``address``.
    """
    host, port = coordinator_address.split(address)
    bound, _ = coordinator_address.split(coordinator_address.choose(f"0.0.0.0:{port}", address))
    try:
        # `listen` shares a port with another listener of this user; two jobs must not.
        coordinator_address.wait_until_free(f"{cluster_env.bracketed(bound)}:{port}")
        listener = network_probe.listen(bound, port, size)
    except (OSError, InitializationError) as error:
        raise LaunchError(
            f"--max-restarts: the agent of process 0 cannot listen on {address}: {error}. End the "
            "process that listens there (ss -ltnp shows it), or set LOCKSTEP_COORDINATOR=HOST:PORT "
            "on all processes."
        ) from error
    if os.fork() != 0:
        listener.close()
        return
    _serve(
        listener, lambda: Server(listener, (host, bound), size, name, key, restarts, grace, timeout)
    )


def _serve(listener: socket.socket, make: Callable[[], Server]) -> NoReturn:
    status = 1
    try:
        process_tree.end_with_parent()
        # It ends with the agent, and not by what a launcher sends to the agent's process group.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        fd_limit.close_all_but({listener.fileno()})
        make().run()
        signal.pause()  # until the agent has read the last message
        status = 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            print(f"lockstep: restarts: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


class _Ending(NamedTuple):
    """How the program of an agent has ended."""

    status: int
    """Its exit code, below 0 a signal."""
    stopped: bool
    """A signal to the agent has ended it."""
    consequence: bool
    """Another program's failure has ended it."""
    host: str


class _Agent:
    """The connection to the agent of one process."""

    def __init__(self, connection: socket.socket) -> None:
        self.channel = Channel.of(connection)
        self.is_ready = False
        self.is_gone = False
        """The connection has ended."""
        self.ended: _Ending | None = None
        """How its program has ended in this attempt."""

    @property
    def is_lost(self) -> bool:
        """It is gone before it has reported how its program has ended."""
        return self.is_gone and self.ended is None

    def close(self) -> None:
        """Its thread reads the end of the connection."""
        self.channel.break_off()


class Server:
    """A thread for each agent reads its messages; the main thread decides. The condition guards all
    state."""

    def __init__(
        self,
        listener: socket.socket,
        hosts: tuple[str, str],
        size: int,
        name: str,
        key: bytes,
        restarts: int,
        grace: float,
        timeout: float,
    ) -> None:
        """``hosts``: what the coordinator's host is called, and where it listens."""
        self._hosts = hosts
        self._size = size
        self._restarts = Restarts(restarts)
        self._grace = grace
        self._timeout = timeout
        self._changed = threading.Condition()
        self._agents: dict[int, _Agent] = {}
        """The last to connect for each process; its program runs, or waits for the next attempt."""
        self._running: dict[int, _Agent] = {}
        """Those that have started a program in this attempt."""
        self._listening = network_probe.Listener(listener, name, key, self._on_agent, size)

    def close(self) -> None:
        """Ends all connections and threads."""
        with self._changed:
            for agent in self._agents.values():
                agent.close()
        self._listening.close()

    # Messages of agents

    def _on_agent(self, connection: socket.socket) -> None:
        keep_alive(connection)
        agent = _Agent(connection)
        try:
            with contextlib.suppress(OSError, ValueError, ChannelError):
                while message := agent.channel.next():
                    self._take(agent, *_parsed(message.head, self._size))
        finally:
            with self._changed:
                agent.is_gone = True
                for process in [p for p, known in self._agents.items() if known is agent]:
                    del self._agents[process]
                agent.channel.close()
                self._changed.notify_all()

    def _take(self, agent: _Agent, process: int, ended: _Ending | None) -> None:
        with self._changed:
            known = self._agents.get(process)
            if known is not None and known is not agent:
                known.close()  # another has its place: it is lost, whatever the network still says
            self._agents[process] = agent
            agent.is_ready, agent.ended = ended is None, ended
            self._changed.notify_all()

    # Decisions

    def run(self) -> None:
        """Runs attempts until one succeeds, or none may follow."""
        attempt = 0
        while self._all_ready():
            held = port_reservation.reserve(self._hosts[1])
            port = held.getsockname()[1]
            coordinator = f"{cluster_env.bracketed(self._hosts[0])}:{port}"
            with held:
                self._send_all("start", attempt=attempt, coordinator=coordinator)
                failure = self._end_of_attempt()
            if not failure:
                return self._end("the job has ended")
            if not self._restarts.follow(failed=True, stopped=self._was_stopped()):
                return self._end(f"the job has failed, and does not start again: {failure}")
            complain(self._restarts.words(attempt, failure))
            self._restarts.left -= 1
            attempt += 1
            self._send_all("again")

    def _end(self, why: str) -> None:
        """No attempt follows: an agent that comes now finds the port closed."""
        self._send_all("over", why=why)
        self._listening.close()

    def _wait(self, done: Callable[[], bool], seconds: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(done, seconds)

    def _all_ready(self) -> bool:
        """Waits for all agents; tells those that are there when others do not come."""

        def ready() -> list[int]:
            return [process for process, agent in self._agents.items() if agent.is_ready]

        if self._wait(lambda: len(ready()) == self._size, self._timeout or None):
            with self._changed:
                self._running = dict(self._agents)
                for agent in self._running.values():
                    agent.is_ready, agent.ended = False, None
            return True
        with self._changed:
            missing = sorted({*range(self._size)} - {*ready()})
        agents = f"agent{'s' * (len(missing) > 1)} of {processes(missing)}"
        self._end(
            f"the {agents} did not come within {self._timeout:g} s (--start-timeout). Each has to "
            f"run with the same --max-restarts and key, and has to reach {self._hosts[0]}."
        )
        return False

    def _end_of_attempt(self) -> str:
        """Waits for the end of all programs; how the first has failed, "" where none has.

        A program that another's failure has ended may be the first to be gone: it is named only
        where no other has failed by itself.
        """
        self._wait(lambda: bool(self._lost() or self._failed()) or self._all_ended(), None)
        with self._changed:
            first_lost, first = self._lost(), self._failed()
        if not first_lost and not first:
            return ""
        self._send_all("failed")
        all_there = self._wait(self._all_ended, self._grace + _LATE_SECONDS)
        with self._changed:
            late_lost, last = self._lost(), self._failed()
        if not all_there:
            self._drop_silent()
        if first_lost:
            return first_lost
        if first[0][1].consequence:
            first = last
            # Silence of a lost host is noticed later than the errors that it causes.
            if first[0][1].consequence and late_lost:
                return late_lost
        return _described(*first[0])

    # These need the lock.

    def _lost(self) -> str:
        gone = (process for process, agent in sorted(self._running.items()) if agent.is_lost)
        return next((f"the agent of process {process} was lost" for process in gone), "")

    def _failed(self) -> list[tuple[int, _Ending]]:
        """Those that have failed, first by themselves, then by another's failure."""
        endings = [(process, agent.ended) for process, agent in self._running.items()]
        found = [(process, ended) for process, ended in endings if ended and ended.status]
        return sorted(found, key=lambda each: (each[1].consequence, each[0]))

    def _all_ended(self) -> bool:
        return all(agent.ended or agent.is_gone for agent in self._running.values())

    def _drop_silent(self) -> None:
        with self._changed:
            for agent in self._running.values():
                if not agent.ended:
                    agent.close()

    def _was_stopped(self) -> bool:
        """Whether a signal to the agents, of their launcher or the user, has ended the job."""
        with self._changed:
            endings = {process: agent.ended for process, agent in self._running.items()}
        stopped = {process for process, ending in endings.items() if ending and ending.stopped}
        return 0 in stopped or stopped == {process for process, e in endings.items() if e} != set()

    def _send_all(self, kind: str, **values: Any) -> None:
        """Process 0 comes last: this server ends with its agent."""
        with self._changed:
            for _, agent in sorted(self._agents.items(), reverse=True):
                agent.channel.send(kind, **values)


def _parsed(values: Mapping[str, Any], size: int) -> tuple[int, _Ending | None]:
    """The process that a message is of, and its end; None: it is ready. Raises ValueError."""
    try:
        kind, process = values["kind"], values["process"]
        if kind == "ended":
            stopped, consequence = bool(values["stopped"]), bool(values["consequence"])
            ended = _Ending(int(values["status"]), stopped, consequence, str(values["host"]))
        else:
            ended = None
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a message of an agent: {values!r}") from error
    if kind not in ("ready", "ended") or type(process) is not int or not 0 <= process < size:
        raise ValueError(f"not a message of an agent of {counted(size, 'process')}: {values!r}")
    return process, ended


def _described(process: int, ending: _Ending) -> str:
    status = ending.status
    how = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
    return f"process {process} on {ending.host} {how}"
