"""The agents of all hosts of a job: started together, asked together."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lockstep._config import DEFAULT_REACH_TIMEOUT
from lockstep._errors import LaunchError
from lockstep._words import signal_name
from lockstep.hosts.connection import Connection
from lockstep.hosts.host_list import Host, labels
from lockstep.system.channel import Message

_END_SECONDS = 3.0
"""How long the agents may take to end when the job has ended."""
MAX_STARTING = 32
"""So many commands may be on their way to an answer at the same time: a jump host, a directory of
users and the cores of this machine take only so many logins at once (sshd's MaxStartups)."""
_TICK_SECONDS = 0.1
"""Between two passes over all connections: with many hosts messages come faster than that."""
_STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Interrupted(LaunchError):
    """The signal ``number`` came while the hosts were being asked."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"stopped by {signal_name(number)}")


class Fleet:
    """The connections to the hosts of a job."""

    def __init__(
        self,
        command: Callable[[Host], Sequence[str]],
        lifeline: int | None = None,
        reach_seconds: float = DEFAULT_REACH_TIMEOUT,
    ) -> None:
        """``command`` starts the agent of a host (`starters`), which may take ``reach_seconds``
        until it answers. ``lifeline`` is readable once this process has to end at once."""
        self._command = command
        self.reach_seconds = reach_seconds
        self._lifeline = lifeline
        self.connections: list[Connection] = []
        self._next_tick = 0.0

    @property
    def alive(self) -> list[Connection]:
        """Those to hosts that are not lost."""
        return [each for each in self.connections if not each.lost]

    def connect(self, hosts: Sequence[Host]) -> list[Connection]:
        """Starts an agent on each of ``hosts``, and waits until each has answered or has failed.

        At most `MAX_STARTING` are being started at a time, and one that has not answered in time
        makes room for the next. Failed ones say why in `Connection.lost`. Raises OSError where a
        command of this host (ssh) cannot be started, and `Interrupted`.
        """
        fresh: list[Connection] = []
        waiting = collections.deque(zip(hosts, labels(hosts), strict=True))
        with self._attached(_take_hello) as selector:
            settled, end = -1, 0.0
            while starting := self._start_some(waiting, fresh, selector):
                now = time.monotonic()
                if len(fresh) - len(starting) > settled:
                    settled, end = len(fresh) - len(starting), now + self.reach_seconds
                elif now >= end:
                    self._give_up(starting)
                self._turn(selector, end)
        return fresh

    def _start_some(
        self,
        waiting: collections.deque[tuple[Host, str]],
        fresh: list[Connection],
        selector: selectors.BaseSelector,
    ) -> list[Connection]:
        """Starts commands of ``waiting`` hosts; all of ``fresh`` that have not answered yet."""
        starting = [each for each in fresh if not each.lost and not each.facts]
        while waiting and len(starting) < MAX_STARTING:
            host, label = waiting.popleft()
            fresh.append(self.begin(host, label))
            self.connections.append(fresh[-1])
            fresh[-1].attach(selector, _take_hello, lambda connection: None)
            starting += [] if fresh[-1].lost else [fresh[-1]]
            # To start many commands takes long, and an agent ends when nothing comes for long.
            self._turn(selector, 0.0)
        return starting

    def _give_up(self, starting: Sequence[Connection]) -> None:
        for connection in starting:
            connection.lose(
                f"no agent answered on {connection.host.name} within {self.reach_seconds:g} s: is "
                "the machine up, and does the network let ssh pass? --reach-timeout "
                f"{4 * self.reach_seconds:g} gives it more time"
            )

    def begin(self, host: Host, label: str) -> Connection:
        """Starts an agent on a host, and waits for nothing. The caller adds it to `connections`.

        Raises OSError where the command cannot be started.
        """
        return Connection(host, label, self._command(host))

    def ask(
        self,
        kind: str,
        answer: str,
        values: Mapping[Connection, Mapping[str, Any]],
        seconds: float = DEFAULT_REACH_TIMEOUT,
    ) -> dict[Connection, Message]:
        """Sends a message to hosts, each with its own ``values``, and waits for their answers.

        ``seconds``: how long to wait after the last answer: with many hosts this machine, or what
        they share, may be the one that takes time. Hosts that are lost or too late are not in the
        result. Raises `Interrupted`.
        """
        found: dict[Connection, Message] = {}

        def on_message(connection: Connection, message: Message) -> None:
            if message.kind == answer:
                found.setdefault(connection, message)

        for connection, own in values.items():
            connection.send(kind, **own)
        with self._attached(on_message) as selector:
            answered, end = 0, time.monotonic() + seconds
            while time.monotonic() < end:
                if all(each.lost or each in found for each in values):
                    break
                self._turn(selector, end)
                if len(found) > answered:
                    answered, end = len(found), time.monotonic() + seconds
        return found

    def wait(self, until: float) -> None:
        """Lets time pass while all hosts are looked after. Raises `Interrupted`."""
        with self._attached(lambda connection, message: None) as selector:
            while time.monotonic() < until:
                self._turn(selector, until)

    def _turn(self, selector: selectors.BaseSelector, end: float) -> None:
        for key, _ in selector.select(max(0.0, min(end - time.monotonic(), 0.1))):
            key.data()
        self._check_signals()
        self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        """Sends signs of life that are due, and notices hosts that answer nothing."""
        if now >= self._next_tick:
            self._next_tick = now + _TICK_SECONDS
            for each in self.alive:
                if each.greeted:
                    each.tick(now)

    @contextlib.contextmanager
    def _attached(
        self, on_message: Callable[[Connection, Message], None]
    ) -> Iterator[selectors.BaseSelector]:
        """All of them, because each has to be heard while one of them is asked."""
        with selectors.PollSelector() as selector:
            for each in self.connections:
                each.attach(selector, on_message, lambda connection: None)
            try:
                yield selector
            finally:
                for each in self.connections:
                    each.detach()

    def _check_signals(self) -> None:
        """Signals are blocked while there is no supervisor, and stay pending for it."""
        if pending := signal.sigpending() & _STOPS:
            raise Interrupted(min(pending))
        if self._lifeline is not None:
            with selectors.PollSelector() as selector:
                selector.register(self._lifeline, selectors.EVENT_READ)
                if selector.select(0):
                    raise Interrupted(signal.SIGKILL)

    def drop(self, gone: Sequence[Connection]) -> None:
        """Forgets hosts that take no part any more."""
        for each in gone:
            each.detach_for_good()
        self.connections = [each for each in self.connections if each not in gone]

    def end(self) -> None:
        """Ends all agents, and waits a little, so that each removes its directory."""
        for each in self.connections:
            each.close_input()
        end = time.monotonic() + _END_SECONDS
        while not all(_has_ended(each) for each in self.connections) and time.monotonic() < end:
            time.sleep(0.01)
        for each in self.connections:
            each.detach_for_good()


def _take_hello(connection: Connection, message: Message) -> None:
    if message.kind == "hello":
        connection.facts = message.head


def _has_ended(connection: Connection) -> bool:
    """Reaps the command of a connection; its pid may belong to another process afterwards."""
    if connection.exit_code is None:
        try:
            pid, status = os.waitpid(connection.pid, os.WNOHANG)
        except ChildProcessError:  # it was never started, or was reaped with all children
            pid, status = connection.pid, 0
        if pid:
            connection.exit_code = os.waitstatus_to_exitcode(status)
    return connection.exit_code is not None
