"""The loop of an agent: its supervisor's messages, and the lease under which processes run.

An agent starts processes, reports how they end, and ends them when its supervisor is out of reach
(`lease`). There are two, because parent, streams and end of the processes differ:

- `host_agent`: the launcher of ``lockstep run --hosts`` starts one on each host, the parent of all
  processes there. It carries their output, and ends with the connection, its stdin and stdout.
- `worker_agent`: a cluster's launcher starts one for each program and takes it for the program. The
  program has its streams, maybe a terminal, and can go on without it. With ``--max-restarts`` a
  socket connects it to the supervisor; else it acts alone.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import Any

from lockstep.hosts import lease
from lockstep.system.channel import Channel, ChannelError, Message


class Agent:
    """What both agents do. One thread runs the loop over one selector."""

    supervisor = "the launcher"
    """What its supervisor is called in errors."""

    def __init__(self, channel: Channel | None) -> None:
        """``channel``: to its supervisor; None: it acts alone."""
        self.selector = selectors.PollSelector()
        self.lease = lease.Lease(lease.clock())
        self.channel = channel
        if channel:
            self.watch(channel.reads, self._read)

    @property
    def runs(self) -> bool:
        """Whether it may have something running."""
        raise NotImplementedError

    def on_message(self, message: Message) -> None:
        """Does what the supervisor says."""
        raise NotImplementedError

    def on_loss(self, why: str) -> None:
        """The supervisor has ended its side of the connection, or ``why`` it is of no use."""
        raise NotImplementedError

    def on_lease_over(self, why: str) -> None:
        """What runs may run elsewhere by now, or no sign of life comes while nothing runs."""
        raise NotImplementedError

    def watch(self, fd: int, action: Callable[[], object]) -> None:
        """Calls ``action`` whenever ``fd`` is readable."""
        self.selector.register(fd, selectors.EVENT_READ, action)

    def turn(self, longest: float) -> None:
        """Waits for events, at most ``longest`` seconds, and handles them."""
        for key, _ in self.selector.select(max(0.0, min(longest, self.left, 60.0))):
            key.data()
        if self.left <= 0:
            self.on_lease_over(lease.over(self.runs, self.supervisor))

    @property
    def left(self) -> float:
        """Seconds until the lease is over."""
        return self.lease.left(self.runs, lease.clock()) if self.channel else float("inf")

    def _read(self) -> None:
        assert self.channel
        try:
            messages = self.channel.receive()
        except ChannelError as error:
            self.on_loss(str(error))
            return
        self.lease.heard(lease.clock())
        for message in messages:
            if message.kind == "ping":
                answer = self.lease.answer(message.head, lease.clock())
                self.send("pong", **answer, at=time.monotonic_ns())
            else:
                self.on_message(message)
        if self.channel.closed:
            self.on_loss("")

    def send(self, kind: str, body: bytes = b"", **values: Any) -> None:
        """Sends a message, as soon as the connection takes it."""
        assert self.channel
        self.channel.send(kind, body, **values)
        self.channel.write_by(self.selector)
