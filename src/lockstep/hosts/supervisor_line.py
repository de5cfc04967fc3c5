"""The connection of an agent to the supervisor of its job: ``lockstep worker --max-restarts``.

`joined_agents` is the supervisor's side, and has the messages.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from lockstep._errors import LaunchError
from lockstep._run_files import ErrorRecord, Exit
from lockstep.bootstrap import coordinator_address
from lockstep.hosts import lease
from lockstep.hosts.agent_messages import Ended, Ready
from lockstep.hosts.checks import network_probe
from lockstep.processes.console import complain
from lockstep.system.channel import Channel, Message

_PAUSE_SECONDS = 0.2
_FLUSH_SECONDS = 15.0


class Attempt(NamedTuple):
    """An attempt, and the place of a process in it."""

    attempt: int
    """Its number."""
    coordinator: str
    process_id: int
    num_processes: int


class SupervisorLine:
    """The connection, which stays open while this process executes itself for the next attempt."""

    def __init__(
        self,
        connection: socket.socket,
        process: int | None,
        same: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``process``: None until the supervisor gives it a number; ``same``: see `Ready`."""
        connection.settimeout(None)
        self._channel = Channel.of(connection)
        self._lease = lease.Lease(lease.clock())
        self.process, self._same = process, same
        self.attempt = 0
        """The number of the present one."""
        self.is_lost = False
        """Whether the supervisor has ended without a last word."""
        self.fd = self._channel.fileno()
        os.set_inheritable(self.fd, False)

    @classmethod
    def inherited(cls, fd: int, process: int, same: Mapping[str, str]) -> SupervisorLine:
        """That of the agent of the attempt before, which was this process."""
        return cls(socket.socket(fileno=fd), process, same)

    @classmethod
    def connect(
        cls,
        address: str,
        name: str,
        key: bytes,
        process: int,
        timeout: float,
        same: Mapping[str, str] = MappingProxyType({}),
    ) -> SupervisorLine:
        """Connects to the agent of process 0, which may still have to start.

        ``timeout``: after so many seconds it raises `LaunchError`; 0: never.
        """
        host, port = coordinator_address.split(address)
        end = time.monotonic() + (timeout or float("inf"))
        while True:
            try:
                seconds = network_probe.CONNECT_SECONDS
                return cls(network_probe.connect(host, port, name, key, seconds), process, same)
            except OSError as error:
                if time.monotonic() > end:
                    raise LaunchError(
                        f"process {process} does not reach the agent of process 0 at {address} "
                        f"within {timeout:g} s: {error}. Does it run, with --max-restarts and the "
                        "same key (LOCKSTEP_KEY_FILE), and does a firewall let the port pass?"
                    ) from error
            time.sleep(_PAUSE_SECONDS)

    def wait_for_start(self) -> Attempt | None:
        """Reports that this process is ready, and waits for the others; None: the job has ended
        well without it.

        Raises `LaunchError` where the job cannot start.
        """
        ready = Ready(self.process, platform.node(), dict(self._same))
        self._channel.send("ready", **ready._asdict())
        while True:
            try:
                message = self._next(lambda: self.left(runs=False))
            except TimeoutError:
                raise self._not_started(self.over(runs=False)) from None
            if message and message.head.get("well"):
                return None
            if message is None or message.kind == "over":
                why = message.head["why"] if message else "the agent of process 0 has ended"
                raise self._not_started(why)
            if message.kind == "number":
                self.process = int(message.head["process"])
                complain(f"{platform.node()} has joined the job as node {self.process}")
            if message.kind == "start":
                if not self._lease.is_good(lease.clock()):  # the order has arrived late
                    raise self._not_started(self.over(runs=True))
                self.attempt = int(message.head["attempt"])
                place = (int(message.head[name]) for name in ("process_id", "num_processes"))
                return Attempt(self.attempt, str(message.head["coordinator"]), *place)

    def _not_started(self, why: str) -> LaunchError:
        own = platform.node() if self.process is None else f"process {self.process}"
        return LaunchError(f"{own} was not started: {why}")

    def _next(self, left: Callable[[], float]) -> Message | None:
        """The next message that is no sign of life; those are answered.

        ``left``: how many seconds it may still take, asked again after each sign of life, which
        renews the lease. Raises TimeoutError where none comes in that time.
        """
        while True:
            message = self._channel.next(left())
            if message is None:
                return None
            self._lease.heard(lease.clock())
            if message.kind != "ping":
                return message
            self._channel.send("pong", **self._lease.answer(message.head, lease.clock()))

    def left(self, runs: bool) -> float:
        """Seconds until the lease is over; ``runs``: of the program, else of the agent alone."""
        return max(0.0, self._lease.left(runs, lease.clock()))

    def over(self, runs: bool) -> str:
        """Why the program, or the agent, ends when its lease is over."""
        return lease.over(runs, "the agent of process 0")

    def signals(self) -> Sequence[int]:
        """The signals that the program shall get, as far as they have arrived by now."""
        found: list[int] = []
        with contextlib.suppress(TimeoutError):
            while message := self._next(lambda: 0.0):
                if message.kind == "signal":
                    found.append(int(message.head["number"]))
            self.is_lost = True
        return found

    def ended(
        self, ending: Exit, record: ErrorRecord | None, was_stopped: bool, was_killed: bool
    ) -> None:
        """Reports how the program has ended, and the error that it had recorded.

        ``was_stopped``, ``was_killed``: see `Ended`.
        """
        assert self.process is not None
        ended = Ended(self.process, ending, record, was_stopped, was_killed)
        self._channel.send("exit", **ended.values(time.monotonic()))
        # A long traceback does not fit into the socket, and nothing is written while this waits.
        with contextlib.suppress(OSError):  # the supervisor is lost: `decision` finds that
            self._channel.flush(_FLUSH_SECONDS)

    def decision(self, seconds: float) -> bool | None:
        """Whether the job starts again; None: not decided within ``seconds``."""
        end = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            while True:
                message = self._next(lambda: max(0.0, end - time.monotonic()))
                if message is None or message.kind == "over":
                    return False
                if message.kind == "again":
                    return True
        return None

    def close(self) -> None:
        """The supervisor takes this agent for lost."""
        self._channel.close()
