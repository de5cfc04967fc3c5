"""Lets ``lockstep report`` and ``lockstep top`` see a running job of several hosts.

They read the launcher's private directory, as on one host. A client connects to a socket there, and
writes how much it needs; the launcher has all agents send the records of their processes, and
answers with a byte when they are in the directory.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
from pathlib import Path
from typing import Protocol

from lockstep.system import unix_socket

SOCKET = "hosts.sock"
_TIMEOUT_SECONDS = 10.0
_DONE = b"!"
_ALL, _LATEST = b"a", b"l"
LATEST = 1
"""Entries of each device in a request for the latest."""


class Collector(Protocol):
    """The processes of the job."""

    def begin_collecting(self, latest: int | None = None) -> int: ...
    def has_collected(self, number: int) -> bool: ...


class QueryServer:
    """The launcher's side, in the loop of its supervisor."""

    def __init__(
        self, folder: Path, selector: selectors.BaseSelector, collector: Collector
    ) -> None:
        """Raises OSError where there can be no socket."""
        self._selector = selector
        self._collector = collector
        self._asking: list[socket.socket] = []
        self._waiting: list[tuple[int, socket.socket]] = []
        self._path = folder / SOCKET
        self._listener = unix_socket.listen(folder, SOCKET)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._asking.append(connection)
            read = functools.partial(self._read, connection)
            self._selector.register(connection, selectors.EVENT_READ, read)

    def _read(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._asking.remove(connection)
        with contextlib.suppress(OSError):
            latest = LATEST if connection.recv(1) == _LATEST else None
            self._waiting.append((self._collector.begin_collecting(latest), connection))
            self.check()

    def check(self) -> None:
        """Answers the clients whose records have come."""
        for number, connection in list(self._waiting):
            if self._collector.has_collected(number):
                self._waiting.remove((number, connection))
                with connection, contextlib.suppress(OSError):
                    connection.send(_DONE)

    def close(self) -> None:
        self._selector.unregister(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for connection in self._asking:
            self._selector.unregister(connection)
            connection.close()
        for _, connection in self._waiting:
            connection.close()


def refresh(folder: Path, latest: bool = False, seconds: float = _TIMEOUT_SECONDS) -> bool:
    """Has the launcher of the run in ``folder`` bring its records up to date. Raises nothing.

    Returns whether it has, within ``seconds``. ``latest``: the last entry of each device is enough;
    then the older ones are gone from ``folder`` until the next request for all.
    """
    if not (folder / SOCKET).exists():
        return False
    with contextlib.suppress(OSError), unix_socket.connect(folder, SOCKET, seconds) as connection:
        connection.send(_LATEST if latest else _ALL)
        return connection.recv(1) == _DONE
    return False
