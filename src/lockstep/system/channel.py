"""Messages between processes: of launcher and agents, of a pool, of restarts, of ``lockstep top``.

A message is a head in JSON and a body of bytes, behind their two lengths (4 and 8 bytes,
big-endian). Both ends use a `Channel`, over a socket or over two pipes. It never blocks: what
cannot be written is kept until the descriptor takes it, and callers that may wait call `flush` and
`next`. Sizes are bounded, because the other side may be another program; `TRUSTED` lifts the
bounds for sockets in the private directory of a run. What differs stands above: how a peer proves
itself (`lockstep.hosts.checks.network_probe`), and what a body means (`lockstep.pool.messages`).

An agent begins with `GREETING`. What comes before it (a shell's start-up files may print) is left
out.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import select
import selectors
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from lockstep._errors import LaunchError

GREETING = b"\0lockstep agent 2\n"
MAX_HEAD = 1 << 22
MAX_BODY = 1 << 26
_MAX_NOISE = 1 << 16
"""Bytes before the greeting."""
_CHUNK = 1 << 18
_LENGTHS = struct.Struct(">IQ")


class Bounds(NamedTuple):
    """How long head and body of a message may be, in bytes."""

    head: int = MAX_HEAD
    body: int = MAX_BODY

    def check(self, what: str, head: int, body: int) -> None:
        """Raises `ChannelError` for a message that is longer."""
        if head > self.head or body > self.body:
            raise ChannelError(f"{what} of {head} + {body} bytes is too long")


BOUNDED = Bounds()
TRUSTED = Bounds((1 << 32) - 1, 1 << 63)


class ChannelError(LaunchError):
    """The other side has sent something that is not a message."""


class Message(NamedTuple):
    """What has been received."""

    kind: str
    head: Mapping[str, Any]
    body: bytes = b""


class Decoder:
    """Makes messages of the bytes of a stream. Pure."""

    def __init__(self, after_greeting: bool = False, bounds: Bounds = BOUNDED) -> None:
        """``after_greeting``: messages begin behind `GREETING`, else at once."""
        self._data = bytearray()
        self._bounds = bounds
        self.greeted = not after_greeting
        """Whether the other side has shown that it is an agent."""
        self.noise = b""
        """What came before the greeting."""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete with ``data``. Raises `ChannelError`."""
        self._data += data
        if not self.greeted:
            self._find_greeting()
        found: list[Message] = []
        while self.greeted and (message := self._next()) is not None:
            found.append(message)
        return found

    def _find_greeting(self) -> None:
        at = self._data.find(GREETING)
        self.noise = bytes(self._data if at < 0 else self._data[:at])
        if len(self.noise) > _MAX_NOISE + len(GREETING):
            raise ChannelError("the agent did not start: something else writes to its output")
        if at >= 0:
            self.greeted = True
            del self._data[: at + len(GREETING)]

    def _next(self) -> Message | None:
        if len(self._data) < _LENGTHS.size:
            return None
        head_size, body_size = _LENGTHS.unpack_from(self._data)
        self._bounds.check("a message", head_size, body_size)
        middle = _LENGTHS.size + head_size
        end = middle + body_size
        if len(self._data) < end:
            return None
        with memoryview(self._data) as view:
            text, body = bytes(view[_LENGTHS.size : middle]), bytes(view[middle:end])
        del self._data[:end]
        return _message(text, body)


def _message(text: bytes, body: bytes) -> Message:
    try:
        head = json.loads(text)
        kind = head["kind"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ChannelError("a message has no head with a kind") from None
    if not isinstance(kind, str):
        raise ChannelError("the kind of a message is no text")
    return Message(kind, head, body)


def encode(kind: str, body: bytes = b"", bounds: Bounds = BOUNDED, /, **values: Any) -> bytes:
    """A message as bytes. Raises `ChannelError` where it would be refused."""
    head = json.dumps({"kind": kind, **values}).encode()
    bounds.check(f"a message ({kind})", len(head), len(body))
    return b"".join((_LENGTHS.pack(len(head), len(body)), head, body))


class Channel:
    """One side of a connection. The descriptors belong to it, and do not block.

    One thread may send while another one receives.
    """

    def __init__(
        self, reads: int, writes: int, after_greeting: bool = False, bounds: Bounds = BOUNDED
    ) -> None:
        self.reads = reads
        self.writes = writes
        self.ended = False
        """Whether the end of the other side's messages has been read."""
        self._unread = False
        """Whether the other side does not read any more."""
        self._decoder = Decoder(after_greeting, bounds)
        self._bounds = bounds
        self._pending = bytearray()
        self._received: collections.deque[Message] = collections.deque()
        for fd in (reads, writes):
            os.set_blocking(fd, False)

    @classmethod
    def of(cls, connected: socket.socket, bounds: Bounds = BOUNDED) -> Channel:
        """The channel over a socket, which it takes over."""
        fd = connected.detach()
        return cls(fd, fd, bounds=bounds)

    def fileno(self) -> int:
        """The descriptor that is readable when something has arrived."""
        return self.reads

    @property
    def greeted(self) -> bool:
        return self._decoder.greeted

    @property
    def noise(self) -> bytes:
        """What the other side wrote before its greeting."""
        return self._decoder.noise

    @property
    def closed(self) -> bool:
        """Whether the other side has ended, or does not read any more."""
        return self.ended or self._unread

    # Receiving

    def receive(self) -> list[Message]:
        """The messages that have arrived; `ended` is set when the other side has ended.

        Raises `ChannelError` for anything that is no message.
        """
        try:
            data = os.read(self.reads, _CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.ended |= not data
        return self._decoder.feed(data)

    def next(self, seconds: float | None = None) -> Message | None:
        """The next message; None: there are no more. Waits ``seconds``, or without a limit.

        Raises TimeoutError, and `ChannelError` for anything that is no message.
        """
        while not self._received and not self.ended:
            if not is_ready(self.reads, select.POLLIN, seconds):
                raise TimeoutError
            self._received += self.receive()
        return self._received.popleft() if self._received else None

    # Sending

    @property
    def backlog(self) -> int:
        """Bytes that still have to be written."""
        return len(self._pending)

    def send(self, kind: str, body: bytes = b"", /, **values: Any) -> None:
        """Queues a message, and writes what the descriptor takes at once."""
        self.send_raw(encode(kind, body, self._bounds, **values))

    def send_raw(self, data: bytes) -> None:
        self._pending += data
        self.write_some()

    def write_some(self) -> None:
        """Writes what the descriptor takes."""
        while self._pending and self.writes >= 0 and not self._unread:
            try:
                written = os.write(self.writes, self._pending[:_CHUNK])
            except BlockingIOError:
                return
            except OSError:
                self._unread = True
            else:
                del self._pending[:written]
        if self._unread:
            self._pending.clear()

    def write_by(self, selector: selectors.BaseSelector) -> None:
        """Has ``selector``, the data of whose keys is called, write what is queued."""

        def write() -> None:
            self.write_some()
            if not self._pending:
                selector.unregister(self.writes)

        if self._pending and self.writes not in selector.get_map():
            selector.register(self.writes, selectors.EVENT_WRITE, write)

    def flush(self, seconds: float) -> None:
        """Writes all that is queued. Raises OSError where the other side has closed, or reads
        nothing for ``seconds``."""
        while self._pending:
            if not is_ready(self.writes, select.POLLOUT, seconds):
                raise TimeoutError(f"nothing was read for {seconds:g} s")
            self.write_some()
        if self._unread:
            raise BrokenPipeError

    # The end

    def close_input(self) -> None:
        """Lets the other side read the end of its input."""
        self._pending.clear()
        if self.writes < 0:
            return
        if self.writes == self.reads:
            self._shut(socket.SHUT_WR)
        else:
            os.close(self.writes)
            self.writes = -1

    def break_off(self) -> None:
        """Ends the connection of a socket in both directions: both sides read its end."""
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.reads)) as own:
            own.shutdown(how)

    def close(self) -> None:
        """Closes both descriptors: the other side reads the end of its input."""
        self.ended = self._unread = True
        self._pending.clear()
        fds, self.reads, self.writes = {self.reads, self.writes}, -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def is_ready(fd: int, event: int, seconds: float | None) -> bool:
    """Whether ``fd`` can be read or written, or has been closed, within so many seconds."""
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
