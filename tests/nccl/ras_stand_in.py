"""Stands in for NCCL's RAS port: a real listener that answers as NCCL does, by a script."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
Behaviour = Callable[[socket.socket, bytes], None]


def rank(number: int, pid: int, host: str = "127.0.0.1", **counts: int) -> dict[str, Any]:
    """A rank as NCCL describes it."""
    status = {"init_state": 0, "async_error": 0, "finalize_called": False}
    status |= {"destroy_flag": False, "abort_flag": False}
    known = {name: counts.get(name, 0) for name in OPERATIONS}
    own = {"rank": number, "host": host, "pid": pid, "cuda_dev": 0, "nvml_dev": 0}
    return {**own, "status": status, "collective_counts": known}


def missing(
    number: int, pid: int, host: str = "127.0.0.1", dead: bool = False, silent: bool = True
) -> dict[str, Any]:
    own = {"rank": number, "host": host, "pid": pid, "cuda_dev": 0, "nvml_dev": 0}
    return {**own, "status": {"unresponsive": silent, "considered_dead": dead}}


def answer(
    *communicators: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    version: str = "2.30.7",
) -> bytes:
    """NCCL's answer for communicators of these ranks and missing ranks."""
    found = [
        {
            "hash": f"0x{7 + index:x}",
            "secondary_hash": "0x1:0x2",
            "size": len(ranks) + len(gone),
            "ranks_count": len(ranks),
            "missing_ranks_count": len(gone),
            "ranks": list(ranks),
            "missing_ranks": list(gone),
        }
        for index, (ranks, gone) in enumerate(communicators)
    ]
    whole = {
        "nccl_version": version,
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-27 04:13:40",
        "communicators_count": len(found),
        "communicators": found,
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }
    return json.dumps(whole, indent=2).encode() + b"\n"


def sends(text: bytes) -> Behaviour:
    """Sends the whole answer to STATUS, as NCCL does."""
    return lambda connection, asked: connection.sendall(text)


def slowly(text: bytes) -> Behaviour:
    """Sends a byte now and then, without an end."""

    def send(connection: socket.socket, asked: bytes) -> None:
        for at in range(len(text)):
            connection.sendall(text[at : at + 1])
            time.sleep(0.1)

    return send


class RasPort:
    """Listens on a free port; the k-th connection meets ``behaviours[k]``, then the last one.

    None: the process of that connection is stopped, so it accepts and says nothing.
    """

    def __init__(
        self,
        *behaviours: Behaviour | None,
        hello: bytes = b"SERVER PROTOCOL 2\n",
        acknowledges: bytes = b"OK\n",
    ) -> None:
        self._behaviours = behaviours
        self._hello = hello
        self._acknowledges = acknowledges
        self._silent: list[socket.socket] = []
        self.asked: list[bytes] = []
        """What was said on each connection."""
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()[:2]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                position = min(self.connections, len(self._behaviours) - 1)
                self.connections += 1
                if (behaviour := self._behaviours[position]) is None:
                    self._silent.append(connection)
                    continue
                one = (connection, behaviour)
                threading.Thread(target=self._answer, args=one, daemon=True).start()

    def _answer(self, connection: socket.socket, behaviour: Behaviour) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(20)
            lines = connection.makefile("rb")
            said = b""
            while line := lines.readline():
                said += line
                if line.startswith(b"CLIENT PROTOCOL"):
                    connection.sendall(self._hello)
                elif line == b"STATUS\n":
                    self.asked.append(said)
                    behaviour(connection, said)
                    return
                else:
                    connection.sendall(self._acknowledges)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends a thread that waits in accept, too
        self._listener.close()
        for connection in self._silent:
            connection.close()

    def __enter__(self) -> RasPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
