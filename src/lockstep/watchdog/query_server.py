"""What a live job does on other hosts, for ``lockstep report`` and ``lockstep top``.

The files that they read are those of one host. An agent, which is in the network between hosts,
asks the others for theirs and passes the answer on, over a socket in the host's private directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep.flight_recorder import run_records
from lockstep.system import channel, unix_socket
from lockstep.watchdog import messages

SOCKET = "agent.sock"
_TIMEOUT_SECONDS = 10.0


def pack(processes: Sequence[run_records.Process], clock_error_ns: int) -> bytes:
    """What is passed on: processes of other hosts, their times as of a clock of this host's."""
    reports, body = messages.pack_processes(processes)
    values = {"processes": reports, "clock_error_ns": clock_error_ns}
    return channel.encode("processes", body, channel.TRUSTED, **values)


class QueryServer(threading.Thread):
    """Sends what ``scan`` returns to each client that connects."""

    def __init__(self, folder: Path, scan: Callable[[], bytes]) -> None:
        """Raises OSError where there can be no socket."""
        super().__init__(name="lockstep-inquiries", daemon=True)
        self._scan = scan
        self._listener = unix_socket.listen(folder, SOCKET)

    def run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            # The client does without an answer.
            with connection, contextlib.suppress(Exception):
                connection.settimeout(_TIMEOUT_SECONDS)
                connection.sendall(self._scan())


def complete(found: run_records.Run, folder: Path) -> run_records.Run:
    """``found``, with the processes of other hosts if an agent is there to ask. Raises nothing."""
    if not (folder / SOCKET).exists() or all(process.record for process in found.processes):
        return found
    try:
        _, head, body = _answer(folder)
        there = {one.index: one for one in messages.unpack_processes(head["processes"], body)}
        error = int(head["clock_error_ns"])
    except Exception:  # the job ends just now
        return found
    nonces = {process.record.nonce for process in found.processes if process.record}
    reports = {i: one for i, one in there.items() if one.record and one.record.nonce in nonces}
    processes = tuple(p if p.record else reports.get(p.index, p) for p in found.processes)
    error += found.clock_error_ns
    return dataclasses.replace(found, processes=processes, clock_error_ns=error)


def _answer(folder: Path) -> channel.Message:
    """What the agent sends. Raises OSError and `ChannelError`."""
    connected = unix_socket.connect(folder, SOCKET, _TIMEOUT_SECONDS)
    with contextlib.closing(channel.Channel.of(connected, channel.TRUSTED)) as agent:
        if found := agent.next(_TIMEOUT_SECONDS):
            return found
    raise ConnectionResetError
