"""``lockstep worker --max-restarts``: decides, for all agents of a job, when an attempt starts.

All processes have to start again together, because the survivors of a failure hold communicators of
the failed job. The agent of process 0 has a child, this server, which listens on the job's
coordinator address; JAX's coordination service gets a free port of that host for each attempt, so
late messages of an earlier attempt reach nothing. Each agent keeps a connection to the server for
the whole job (`restart_line`):

    agent   ready (process)              it can start its program
    server  start (attempt, coordinator) all agents are ready
    agent   ended (status, stopped)      how its program has ended
    server  failed                       another program has failed: end within the grace period
    server  again or over (why)          all have ended: be ready once more, or leave

An agent that is lost (its pod was evicted) counts as failed. Another one in its place may become
ready within the start timeout.

Both sides prove that they have the job's key (`lockstep.hosts.network_probe`). A job without one is
as open as JAX's coordination service is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from lockstep._errors import LaunchError
from lockstep._words import counted, signal_name
from lockstep.bootstrap import cluster_env, coordinator_port
from lockstep.hosts import network_probe
from lockstep.system import fd_limit, port_reservation, process_tree

MAX_LINE = 1 << 12
_LATE_SECONDS = 15.0
"""How long after the grace period an agent may take to report its end."""
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
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
    host, port = coordinator_port.split(address)
    bound, _ = coordinator_port.split(coordinator_port.choose(f"0.0.0.0:{port}", address))
    try:
        listener = network_probe.listen(bound, port, size)
    except OSError as error:
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
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # it ends with the agent
        fd_limit.close_all_but({listener.fileno()})
        make().run()
        signal.pause()  # until the agent has read the last message
        status = 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            print(f"lockstep: restarts: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


class _Agent:
    """The connection to the agent of one process."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.is_ready = False
        self.ended: Mapping[str, Any] | None = None
        """How its program has ended in this attempt."""

    def send(self, kind: str, **values: Any) -> None:
        with contextlib.suppress(OSError):  # its thread reads the end of the connection
            self.connection.sendall(json.dumps({"kind": kind, **values}).encode() + b"\n")

    def close(self) -> None:
        """Its thread reads the end of the connection."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class Server:
    """Threads read what the agents say; the main thread decides. The condition guards all state."""

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
        self._left = restarts
        self._grace = grace
        self._timeout = timeout
        self._changed = threading.Condition()
        self._agents: dict[int, _Agent] = {}
        self._lost: set[int] = set()
        """Processes whose agents were lost in this attempt."""
        self._listening = network_probe.Listener(listener, name, key, self._on_agent, size)

    def close(self) -> None:
        """Ends all connections and threads."""
        with self._changed:
            for agent in self._agents.values():
                agent.close()
        self._listening.close()

    # What agents say

    def _on_agent(self, connection: socket.socket) -> None:
        keep_alive(connection)
        agent, process = _Agent(connection), -1
        with connection.makefile("rb") as lines, contextlib.suppress(OSError, ValueError):
            while line := lines.readline(MAX_LINE):
                said = json.loads(line)
                with self._changed:
                    if process < 0:
                        process = self._number(said["process"])
                        self._agents[process] = agent
                    agent.is_ready = said["kind"] == "ready"
                    agent.ended = said if said["kind"] == "ended" else None
                    self._changed.notify_all()
        with self._changed:
            if self._agents.get(process) is agent:
                del self._agents[process]
                if not agent.ended:
                    self._lost.add(process)
                self._changed.notify_all()

    def _number(self, process: int) -> int:
        if not 0 <= process < self._size:
            raise ValueError(f"there is no process {process}")
        return process

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
                self._send_all("over", why="")
                return
            if self._left == 0 or self._was_stopped():
                self._send_all("over", why="")
                return
            report(
                f"attempt {attempt} has failed: {failure}; starting again "
                f"({counted(self._left, 'restart')} left)"
            )
            self._left -= 1
            attempt += 1
            with self._changed:
                self._lost.clear()
            self._send_all("again")

    def _wait(self, done: Callable[[], bool], seconds: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(done, seconds)

    def _all_ready(self) -> bool:
        """Waits for all agents; tells those that are there when others do not come."""

        def ready() -> list[int]:
            return [process for process, agent in self._agents.items() if agent.is_ready]

        if self._wait(lambda: len(ready()) == self._size, self._timeout or None):
            with self._changed:
                for agent in self._agents.values():
                    agent.is_ready = False
            return True
        with self._changed:
            missing = sorted({*range(self._size)} - {*ready()})
        names = ", ".join(map(str, missing))
        self._send_all(
            "over",
            why=f"the agents of processes {names} have not come within {self._timeout:g} s "
            "(--start-timeout). Do they run, with the same --max-restarts and key, and can they "
            f"reach {self._hosts[0]}?",
        )
        return False

    def _end_of_attempt(self) -> str:
        """Waits for the end of all programs; how the first has failed, "" where none has."""
        first = ""

        def failed() -> str:
            lost = next((f"the agent of process {p} was lost" for p in sorted(self._lost)), "")
            endings = ((p, a.ended) for p, a in sorted(self._agents.items()) if a.ended)
            return lost or next((_described(p, e) for p, e in endings if e["status"]), "")

        def all_ended() -> bool:
            return all(agent.ended for agent in self._agents.values())

        self._wait(lambda: bool(failed()) or all_ended(), None)
        with self._changed:
            first = failed()
        if first:
            self._send_all("failed")
            if not self._wait(all_ended, self._grace + _LATE_SECONDS):
                self._drop_silent()
        return first

    def _drop_silent(self) -> None:
        with self._changed:
            for agent in self._agents.values():
                if not agent.ended:
                    agent.close()

    def _was_stopped(self) -> bool:
        """Whether a signal to an agent, of its launcher or the user, has ended the job."""
        with self._changed:
            endings = [agent.ended for agent in self._agents.values() if agent.ended]
        return any(ending["stopped"] for ending in endings)

    def _send_all(self, kind: str, **values: Any) -> None:
        """Process 0 comes last: this server ends with its agent."""
        with self._changed:
            agents = sorted(self._agents.items(), reverse=True)
        for _, agent in agents:
            agent.send(kind, **values)


def _described(process: int, ending: Mapping[str, Any]) -> str:
    status = int(ending["status"])
    how = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
    return f"process {process} on {ending['host']} {how}"


def report(text: str) -> None:
    """A line on stderr."""
    with contextlib.suppress(OSError):
        print(f"lockstep: {text}", file=sys.stderr, flush=True)
