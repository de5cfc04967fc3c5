"""What a live job does on other hosts, for ``lockstep report`` and ``lockstep top``.

The files that they read are those of one host. An agent, which is in the network between hosts,
asks the others for theirs and passes the answer on, over a socket in the host's private directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep.flight_recorder import model
from lockstep.watchdog import messages

SOCKET = "agent.sock"
_TIMEOUT_SECONDS = 10.0
_CHUNK = 1 << 20


def pack(processes: Sequence[model.Process], clock_error_ns: int) -> bytes:
    """What is passed on: processes of other hosts, their times as of a clock of this host's."""
    reports, body = messages.pack_processes(processes)
    return messages.pack({"processes": reports, "clock_error_ns": clock_error_ns}, body)


class QueryServer(threading.Thread):
    """Sends what ``scan`` returns to each client that connects."""

    def __init__(self, folder: Path, scan: Callable[[], bytes]) -> None:
        """Raises OSError where there can be no socket: the path may be too long."""
        super().__init__(name="lockstep-inquiries", daemon=True)
        self._scan = scan
        self._listener = socket.socket(socket.AF_UNIX)
        (folder / SOCKET).unlink(missing_ok=True)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()

    def run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            # The client does without an answer.
            with connection, contextlib.suppress(Exception):
                connection.settimeout(_TIMEOUT_SECONDS)
                connection.sendall(self._scan())


def complete(found: model.Run, folder: Path) -> model.Run:
    """``found``, with the processes of other hosts if an agent is there to ask. Raises nothing."""
    if not (folder / SOCKET).exists() or all(process.record for process in found.processes):
        return found
    try:
        head, body = messages.unpack(_request(folder / SOCKET))
        there = {one.index: one for one in messages.unpack_processes(head["processes"], body)}
        error = int(head["clock_error_ns"])
    except Exception:  # the job ends just now
        return found
    nonces = {process.record.nonce for process in found.processes if process.record}
    reports = {i: one for i, one in there.items() if one.record and one.record.nonce in nonces}
    processes = tuple(p if p.record else reports.get(p.index, p) for p in found.processes)
    error += found.clock_error_ns
    return dataclasses.replace(found, processes=processes, clock_error_ns=error)


def _request(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_TIMEOUT_SECONDS)
        connection.connect(str(path))
        received = bytearray()
        while chunk := connection.recv(_CHUNK):
            received += chunk
        return bytes(received)
