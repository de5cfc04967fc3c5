"""Asks the RAS port of NCCL: on which communicator has which rank started how many collectives.

Each process that uses NCCL listens on one address (``NCCL_RAS_ADDR``, else localhost:28028) and
answers for all processes of its job. The protocol is text: commands are lines, and the answer to
STATUS ends with the connection. Whatever listens there may be another job, or no NCCL at all, so
every answer has limits.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping

DEFAULT = ("localhost", 28028)
VARIABLE = "NCCL_RAS_ADDR"
MAX_BYTES = 32 << 20
"""512 ranks of one communicator answer with 1.2 MB."""
_GREETING = b"CLIENT PROTOCOL 2\n"
_HELLO = b"SERVER PROTOCOL "
_COMMANDS = ("SET FORMAT json\n", "TIMEOUT {}\n")
"""NCCL acknowledges each by a line, which comes before the answer to STATUS."""
_HELLO_SECONDS = 1.0
_ATTEMPTS = 6
"""All processes of a host share the port, so Linux may choose one that is stopped: try again."""


class Unsupported(Exception):
    """What listens there cannot answer in JSON: an NCCL before 2.28.7, or no NCCL."""


def address(environ: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Host and port, as NCCL reads them; those of NCCL where the variable is none."""
    host, colon, port = environ.get(VARIABLE, "").rpartition(":")
    host = host.strip("[]").partition("%")[0]
    valid = host and colon and port.isdigit() and 0 < int(port) < 65536
    return (host, int(port)) if valid else DEFAULT


def ask(where: tuple[str, int], seconds: float) -> bytes:
    """The answer to STATUS in JSON, after at most about ``seconds``.

    Raises OSError where no answer comes in time, and `Unsupported`.
    """
    end = time.monotonic() + seconds
    error: OSError = TimeoutError("no answer")
    for family, kind, number, _, to in _addresses(where):
        left = end - time.monotonic()
        if left <= 0:
            break
        try:
            with socket.socket(family, kind, number) as connection:
                connection.settimeout(min(_HELLO_SECONDS, left))
                connection.connect(to)
                connection.sendall(_GREETING)
                _greeted(connection, min(end, time.monotonic() + _HELLO_SECONDS))
                wait = max(1, int(left / 2))
                connection.sendall("".join((*_COMMANDS, "STATUS\n")).format(wait).encode())
                return _json(_until_end(connection, end))
        except OSError as failure:
            error = failure
    raise error


def _addresses(where: tuple[str, int]) -> Iterator[tuple[int, int, int, str, tuple[object, ...]]]:
    found = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)
    for _ in range(_ATTEMPTS):
        yield from found  # type: ignore[misc]


def _greeted(connection: socket.socket, end: float) -> None:
    """Reads the first line. Raises `Unsupported` for another one than NCCL's."""
    line = b""
    while not line.endswith(b"\n"):
        line += _received(connection, end, 1)
        if not _HELLO.startswith(line[: len(_HELLO)]) or len(line) > 100:
            raise Unsupported("it is not NCCL's RAS")


def _until_end(connection: socket.socket, end: float) -> bytes:
    parts, size = [], 0
    with contextlib.suppress(ConnectionAbortedError):
        while True:
            parts.append(_received(connection, end, 1 << 16))
            size += len(parts[-1])
            if size > MAX_BYTES:
                raise OSError(f"the answer has more than {MAX_BYTES} bytes")
    return b"".join(parts)


def _received(connection: socket.socket, end: float, most: int) -> bytes:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("the answer does not end")
    connection.settimeout(left)
    if not (part := connection.recv(most)):
        raise ConnectionAbortedError("the answer has ended")
    return part


def _json(answer: bytes) -> bytes:
    """The answer without the lines that acknowledge the commands before."""
    for _ in _COMMANDS:
        if not answer.startswith((b"OK\n", b"ERROR")):
            break
        line, _, answer = answer.partition(b"\n")
        if line.startswith(b"ERROR: Unknown command SET FORMAT"):
            raise Unsupported("NCCL before 2.28.7 answers in no JSON")
    return answer
