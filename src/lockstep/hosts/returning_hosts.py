"""Follows the hosts of a job while an attempt runs: notes losses, and tries lost hosts again.

A lost host is tried until the run ends, with pauses that grow to `MAX_PAUSE`. One that answers has
its facts judged beside those of the other hosts (`host_check.problem_of`), and is a spare then: the
whole check, which needs all hosts, comes before the next attempt, as it does for every host. Where
the job runs on fewer hosts than it has seats, ``--grow`` asks for that attempt at once.

All of it is driven by the supervisor's loop: nothing here waits. Between two attempts a try that
has begun rests, and goes on with the next attempt.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from lockstep._stderr import complain
from lockstep.hosts.connection import Connection
from lockstep.hosts.fleet import Fleet
from lockstep.hosts.host_list import Host
from lockstep.hosts.membership import Membership
from lockstep.processes.job_processes import Loop
from lockstep.system.channel import Message

FIRST_PAUSE = 1.0
MAX_PAUSE = 30.0
"""Seconds between two tries: a host that returns is seen within a minute."""

Adopt = Callable[[Connection], None]
"""Has the processes of the attempt take the messages of a new connection."""
Facts = Mapping[str, Any]
Judge = Callable[[Connection, Facts | None], str]
"""Why a host that answers cannot take part, as far as its greeting and its facts tell, None: no
facts yet; "": it can."""


@dataclasses.dataclass
class _Try:
    """A lost host that is tried again."""

    host: Host
    """The host, with as many slots as it would run processes."""
    label: str
    next_at: float
    pause: float = FIRST_PAUSE
    connection: Connection | None = None
    until: float = 0.0
    """When the connection has to have answered."""
    refused: str = ""
    """Why it was refused the last time."""


class ReturningHosts:
    """See `remote_processes.RemoteProcesses`, which calls it."""

    def __init__(
        self, fleet: Fleet, membership: Membership, judge: Judge, grow: bool, seconds: float
    ) -> None:
        """``seconds``: how long a host may take to answer."""
        self._fleet = fleet
        self._membership = membership
        self._judge = judge
        self._grow = grow
        self._seconds = seconds
        self._tries: dict[str, _Try] = {}
        """The attempts to reach each lost host, by its name."""
        self._replaced: list[Connection] = []
        """Lost connections to hosts that have answered again since."""
        self._left_out: set[str] = set()
        """The hosts that were reported as left out."""
        self._loop: Loop | None = None
        self._adopt: Adopt = lambda connection: None
        self.question: Facts = {}
        """What the message ``facts`` asks an agent."""
        self.agents: dict[str, Connection] = {}
        """The agents by the names of their hosts; a lost one stays until the next attempt is
        planned."""

    # An attempt

    def listen(self, loop: Loop, adopt: Adopt) -> None:
        """Goes on with this attempt."""
        self._loop, self._adopt = loop, adopt
        for each in self._tries.values():
            if each.connection:
                each.until = time.monotonic() + self._seconds
                each.connection.attach(loop.selector, self._on_message, self._on_loss)

    def close(self) -> None:
        """The attempt has ended."""
        self._loop = None
        for each in self.connections:
            each.detach()

    def tick(self, now: float) -> None:
        """Begins the tries that are due, and gives up those that took too long."""
        if self._loop and not self._loop.is_stopping:
            self.report_left_out()
        for each in list(self._tries.values()):
            if each.connection is None:
                if now >= each.next_at and not self._is_left_out(each):
                    self._begin(each, now)
            elif now > each.until:
                each.connection.lose("no answer in time")

    @property
    def connections(self) -> list[Connection]:
        """The connections by which lost hosts are tried again."""
        return [each.connection for each in self._tries.values() if each.connection]

    def end(self) -> None:
        """Ends the tries; the fleet waits for their commands."""
        for each in self.connections:
            if not each.greeted:  # ssh would try on for some seconds
                each.detach_for_good()
            self._fleet.connections.append(each)
        self._tries.clear()

    # Losses

    def lost(self, connection: Connection, why: str = "") -> None:
        """A host of the job is lost, one in use or a spare, and is tried again from now on.

        ``why``: its connection is good, and this is wrong with it.
        """
        name, label, own = connection.host.name, connection.label, self._membership
        host = self._host(name)
        if host in own.spares:
            self._report(f"spare {label}: {why or connection.lost}")
        own.lose(host)
        due = time.monotonic() + FIRST_PAUSE
        self._tries.setdefault(name, _Try(connection.host, label, due))

    def take_replaced(self) -> list[Connection]:
        """The lost connections to hosts that have answered again since the last call: the processes
        of the agents before may still run there."""
        found, self._replaced = self._replaced, []
        return found

    def report_left_out(self) -> None:
        """Names hosts that were lost too often, once.

        While a job stops, losses may still be forgiven (`Membership.forgive`), so this comes later.
        """
        tries = {name: each for name, each in self._tries.items() if self._is_left_out(each)}
        for name, each in tries.items():
            if name not in self._left_out:
                self._report(f"{each.label} {self._why_absent(each)}")
        self._left_out = set(tries)

    @property
    def absent(self) -> dict[str, str]:
        """Why each lost host is not there, by its label."""
        return {each.label: self._why_absent(each) for each in self._tries.values()}

    def _why_absent(self, each: _Try) -> str:
        if self._is_left_out(each):
            losses = self._membership.losses(self._host(each.host.name))
            return f"was lost {losses} times, and is not used any more"
        if each.refused:
            return f"was lost, and is refused: {each.refused}"
        return "was lost, and has not answered since"

    def _is_left_out(self, each: _Try) -> bool:
        return self._membership.is_left_out(self._host(each.host.name))

    def forget(self, name: str) -> None:
        """Tries a host no more."""
        each = self._tries.pop(name, None)
        if each and each.connection:
            each.connection.detach_for_good()

    def _host(self, name: str) -> Host:
        return next(each for each in self._membership.hosts if each.name == name)

    def _report(self, text: str) -> None:
        report = self._loop.console.report if self._loop else complain
        report(text)

    # Tries

    def _begin(self, each: _Try, now: float) -> None:
        if self._loop is None:
            return
        try:
            each.connection = self._fleet.begin(each.host, each.label)
        except OSError:  # no descriptors or processes left, just now
            self._pause(each, now)
            return
        each.until = now + self._seconds
        if each.connection.lost:
            self._on_loss(each.connection)
        else:
            each.connection.attach(self._loop.selector, self._on_message, self._on_loss)

    def _pause(self, each: _Try, now: float) -> None:
        each.connection = None
        each.next_at = now + each.pause
        each.pause = min(2 * each.pause, MAX_PAUSE)

    def _on_loss(self, connection: Connection) -> None:
        self._pause(self._tries[connection.host.name], time.monotonic())

    def _on_message(self, connection: Connection, message: Message) -> None:
        if message.kind == "hello":
            connection.facts = message.head
            # An agent of another version may say other things: it is asked nothing.
            if why := self._judge(connection, None):
                self._refuse(connection, why)
            else:
                connection.send("facts", **self.question)
        elif message.kind == "facts":
            if why := self._judge(connection, message.head):
                self._refuse(connection, why)
            else:
                self._accept(connection)

    def _refuse(self, connection: Connection, why: str) -> None:
        each = self._tries[connection.host.name]
        if why != each.refused:
            self._report(f"{each.label} answers again, and is refused: {why}")
        each.refused = why
        each.pause = MAX_PAUSE
        connection.lose("it is refused")

    def _accept(self, connection: Connection) -> None:
        name, label = connection.host.name, connection.label
        del self._tries[name]
        connection.detach()
        self._fleet.connections.append(connection)
        if lost := self.agents.get(name):
            self._fleet.drop([lost])
            self._replaced.append(lost)
        self.agents[name] = connection
        self._adopt(connection)
        self._membership.returned(self._host(name))
        grows = self._membership.can_grow()
        asked = grows and self._grow and self._loop is not None and self._loop.grow()
        self._report(f"{label} answers again: {what_becomes(grows, asked)}")


def what_becomes(grows: bool, asked: bool) -> str:
    """What is said of a host that comes to a job; ``grows``: to one that has an empty seat;
    ``asked``: the program was asked to end for it."""
    if not grows:
        return "it is a spare from now on"
    if asked:
        return "the program is asked to end, to start again with it"
    return "it takes part from the next restart on"
