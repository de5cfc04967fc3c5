"""Connections of a host's processes to sockets of the launcher's machine, carried as messages.

The agent listens on Unix sockets in the private directory of its host. What a process sends to one
of them goes through the agent's connection to the launcher, which has connected to a socket of its
own machine for it, and the other way round. So nothing listens on a port, and the bytes are as
secret as the connection.

The connection also carries the signs of life, so what one stream may have in flight is bounded: a
side sends at most `WINDOW` bytes that the other has not written into its socket yet, in pieces of
`PIECE`. A process that does not read stops its own stream alone.

Messages: ``stream_open`` (of the agent), ``stream_data``, ``stream_taken`` (so many bytes are
written), ``stream_end`` (nothing more comes), ``stream_broken`` (the stream is closed).
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from lockstep.system import unix_socket
from lockstep.system.channel import Message

WINDOW = 1 << 18
PIECE = 1 << 16
KINDS = ("stream_open", "stream_data", "stream_taken", "stream_end", "stream_broken")

Connect = Mapping[str, Callable[[], socket.socket]]
"""Name of an agent's socket -> connects to what serves it on the launcher's machine."""


class Relay:
    """The streams of one host, on either side."""

    def __init__(
        self, selector: selectors.BaseSelector, send: Callable[..., None], connect: Connect
    ) -> None:
        """``selector`` calls its keys' data; ``send`` sends a message; ``connect`` is for the
        launcher's side."""
        self._selector = selector
        self._send = send
        self._connect = connect
        self._streams: dict[int, _Stream] = {}
        self._listeners: list[socket.socket] = []
        self._opened = 0

    def listen(self, folder: Path, names: Iterable[str]) -> None:
        """Listens on sockets of these names in ``folder``. Raises OSError."""
        for name in names:
            listener = unix_socket.listen(folder, name)
            listener.setblocking(False)
            self._listeners.append(listener)
            accept = functools.partial(self._accept, listener, name)
            self._selector.register(listener, selectors.EVENT_READ, accept)

    def _accept(self, listener: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):  # the process may be gone
            connected, _ = listener.accept()
            self._opened += 1
            self._send("stream_open", stream=self._opened, name=name)
            self._add(self._opened, connected)

    def _add(self, number: int, connected: socket.socket) -> None:
        def send(kind: str, body: bytes = b"", **values: int) -> None:
            self._send(kind, body, stream=number, **values)

        self._streams[number] = _Stream(
            connected, self._selector, send, lambda: self._streams.pop(number, None)
        )

    def on_message(self, message: Message) -> None:
        """Takes a message of the other side. Raises what a head that is none raises."""
        number = int(message.head["stream"])
        if message.kind == "stream_open":
            self._open(number, str(message.head["name"]))
        elif stream := self._streams.get(number):
            stream.on_message(message)

    def _open(self, number: int, name: str) -> None:
        try:
            connected = self._connect[name]()
        except OSError:  # the program that served it has ended
            self._send("stream_broken", stream=number)
        else:
            self._add(number, connected)

    def close(self) -> None:
        """Closes all streams and listeners; both ends of each stream read its end."""
        for stream in list(self._streams.values()):
            stream.close()
        for listener in self._listeners:
            with contextlib.suppress(KeyError):
                self._selector.unregister(listener)
            listener.close()
        self._listeners.clear()


class _Stream:
    """One side of a stream: a connected socket."""

    def __init__(
        self,
        connected: socket.socket,
        selector: selectors.BaseSelector,
        send: Callable[..., None],
        forget: Callable[[], object],
    ) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._selector = selector
        self._send = send
        self._forget = forget
        self._pending = bytearray()
        """Bytes of the other side that the socket has not taken yet."""
        self._credit = WINDOW
        """Bytes that the other side takes before it has written any."""
        self._reads = True
        self._is_ending = False
        """Whether the other side sends no more."""
        self._is_closed = False
        self._watched = 0
        self._watch()

    def on_message(self, message: Message) -> None:
        match message.kind:
            case "stream_data":
                self._pending += message.body
                self._write()
            case "stream_taken":
                self._credit += int(message.head["bytes"])
            case "stream_end":
                self._is_ending = True
                self._write()
            case "stream_broken":
                self.close()
        self._watch()

    def _turn(self) -> None:
        self._write()
        self._read()
        self._watch()

    def _watch(self) -> None:
        wanted = selectors.EVENT_READ if self._reads and self._credit > 0 else 0
        wanted |= selectors.EVENT_WRITE if self._pending else 0
        if self._is_closed or wanted == self._watched:
            return
        if not self._watched:
            self._selector.register(self._socket, wanted, self._turn)
        elif wanted:
            self._selector.modify(self._socket, wanted, self._turn)
        else:
            self._selector.unregister(self._socket)
        self._watched = wanted

    def _read(self) -> None:
        if self._is_closed or not self._reads or self._credit <= 0:
            return
        try:
            data = self._socket.recv(min(PIECE, self._credit))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._credit -= len(data)
            self._send("stream_data", data)
        else:
            self._reads = False
            self._send("stream_end")
            self._close_if_done()

    def _write(self) -> None:
        if self._is_closed:
            return
        try:
            while self._pending:
                written = self._socket.send(self._pending[:PIECE])
                del self._pending[:written]
                self._send("stream_taken", bytes=written)
            if self._is_ending:
                self._socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:  # the socket's other end is closed
            self._send("stream_broken")
            self.close()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_ending and not self._pending and not self._reads:
            self.close()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._watched:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._socket)
        self._socket.close()
        self._forget()
