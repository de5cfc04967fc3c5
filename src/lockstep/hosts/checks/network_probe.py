"""Whether hosts reach each other: each listens on one address, and the others connect to it.

Both sides prove that they have the key of this check, and the listener also that it has the name
that was meant: the same private address (a bridge of containers) may exist on several hosts, and
then a host reaches itself.

    client    MAGIC, nonce
    listener  nonce, HMAC(key, "listener", name, nonces)
    client    HMAC(key, "client", nonces), then one request of one byte, as often as it likes:
              PING: one byte comes back
              FLOOD: bytes until the client ends its side; then the time that they took comes back
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAGIC = b"LOCKSTEP-PROBE-1"
_PING, _FLOOD = b"p", b"f"
_NONCE, _DIGEST = 32, 32
_RESULT = struct.Struct(">Qd")
"""Received bytes, seconds."""
CONNECT_SECONDS = 3.0
"""How long a connection and its proof may take, unless the caller says another limit."""
FLOOD_SECONDS = 0.3
_FLOOD_LIMIT = 5.0
_PINGS = 20
_CHUNK = bytes(1 << 18)
MAX_CLIENTS = 64
"""Connections that a listener serves at the same time, besides one for each expected client."""

REFUSED, UNREACHABLE, TIMEOUT, SLOW, FOREIGN, BROKEN = (
    "refused",
    "unreachable",
    "timeout",
    "slow",
    "foreign",
    "broken",
)
"""Why a host is not reached. TIMEOUT: no connection in time. SLOW: the host's kernel took the
connection, but its agent did not answer in time. FOREIGN: something else answers at its address."""


class _NoAnswerError(TimeoutError):
    """There is a connection, over which nothing comes in time."""


def _proof(key: bytes, role: str, name: str, nonces: bytes) -> bytes:
    return hmac.digest(key, f"lockstep probe {role} {name}\0".encode() + nonces, "sha256")


def _read(peer: socket.socket, size: int) -> bytes:
    """So many bytes. Raises OSError, also at an early end."""
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
        data += part
    return data


def listen(
    address: str, port: int = 0, backlog: int = MAX_CLIENTS, shared: bool = True
) -> socket.socket:
    """A socket that listens there; port 0: on a free one. Raises OSError.

    With ``shared`` a reservation of this user's (`port_reservation`) does not keep it from the
    port, and neither does another listener.
    """
    [(family, _, _, _, where), *_] = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    return socket.create_server(
        where[:2],
        family=family,
        backlog=backlog,
        reuse_port=shared and port != 0,
    )


class Listener:
    """Answers the probes of other hosts until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        name: str,
        key: bytes,
        answer: Callable[[socket.socket], None] | None = None,
        clients: int = 0,
        seconds: float = CONNECT_SECONDS,
    ) -> None:
        """Takes the socket over, which listens (`listen`).

        ``answer`` serves a client that has the key, in a thread of its own; None: probes. If it
        detaches the connection, that one counts until `left` is called. As many as ``clients`` stay
        connected. A client that is silent for ``seconds`` is left.
        """
        self._name, self._key, self._seconds = name, key, seconds
        self._socket = listener
        self.port: int = self._socket.getsockname()[1]
        self._answer = answer or _answer_probes
        self._serving: list[threading.Thread] = []
        self._free = threading.BoundedSemaphore(MAX_CLIENTS + clients)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def left(self) -> None:
        """A connection has ended that ``answer`` had detached."""
        self._free.release()

    def close(self) -> None:
        """Returns when its threads have ended: the agent forks afterwards."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes up accept()
        self._socket.close()
        end = time.monotonic() + self._seconds
        for thread in (self._thread, *self._serving):
            thread.join(max(0.0, end - time.monotonic()))

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            if not self._free.acquire(blocking=False):
                peer.close()
                continue
            thread = threading.Thread(target=self._serve, args=(peer,), daemon=True)
            self._serving = [*filter(threading.Thread.is_alive, self._serving), thread]
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        is_detached = False
        try:
            with peer, contextlib.suppress(OSError):
                peer.settimeout(self._seconds)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._authenticate(peer):
                    self._answer(peer)
                    is_detached = peer.fileno() < 0
        finally:
            if not is_detached:
                self._free.release()

    def _authenticate(self, peer: socket.socket) -> bool:
        hello = _read(peer, len(MAGIC) + _NONCE)
        if hello[: len(MAGIC)] != MAGIC:
            return False
        nonces = hello[len(MAGIC) :] + os.urandom(_NONCE)
        peer.sendall(nonces[_NONCE:] + _proof(self._key, "listener", self._name, nonces))
        given = _read(peer, _DIGEST)
        return hmac.compare_digest(given, _proof(self._key, "client", "", nonces))


def _answer_probes(peer: socket.socket) -> None:
    while request := peer.recv(1):
        if request == _PING:
            peer.sendall(_PING)
        elif request == _FLOOD:
            peer.sendall(_RESULT.pack(*_receive_flood(peer)))
            return
        else:
            return


def _receive_flood(peer: socket.socket) -> tuple[int, float]:
    """Received bytes, and the seconds from the first to the last of them."""
    buffer = bytearray(len(_CHUNK))
    total, first, last = 0, 0.0, 0.0
    while size := peer.recv_into(buffer):
        last = time.monotonic()
        first = first or last
        total += size
    return total, last - first


def connect(address: str, port: int, name: str, key: bytes, seconds: float) -> socket.socket:
    """A connection to the listener of host ``name``, which has shown its key. Raises OSError."""
    peer = socket.create_connection((address, port), timeout=seconds)
    try:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own = os.urandom(_NONCE)
        peer.sendall(MAGIC + own)
        answer = _read(peer, _NONCE + _DIGEST)
        nonces = own + answer[:_NONCE]
        if not hmac.compare_digest(answer[_NONCE:], _proof(key, "listener", name, nonces)):
            raise PermissionError(errno.EPERM, "another host answers")
        peer.sendall(_proof(key, "client", "", nonces))
        return peer
    except TimeoutError as error:
        slow = _no_answer(peer)
        peer.close()
        raise slow from error
    except OSError:
        peer.close()
        raise


def _no_answer(peer: socket.socket) -> _NoAnswerError:
    return _NoAnswerError(errno.ETIMEDOUT, f"no answer for {peer.gettimeout():g} s")


def _reason(error: OSError) -> str:
    if isinstance(error, _NoAnswerError):
        return SLOW
    if isinstance(error, TimeoutError):
        return TIMEOUT
    if isinstance(error, ConnectionRefusedError):
        return REFUSED
    if isinstance(error, PermissionError) and str(error).endswith("another host answers"):
        return FOREIGN
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EINVAL):
        return UNREACHABLE  # EACCES and EINVAL: routes that prohibit, or swallow, what is sent
    return BROKEN


def probe(
    peers: Sequence[Mapping[str, Any]],
    key: bytes,
    *,
    measure: bool = False,
    seconds: float = CONNECT_SECONDS,
) -> dict[str, dict[str, Any]]:
    """Connects to the listeners of other hosts, to all at the same time.

    ``peers`` have ``name``, ``address`` and ``port``; a connection and its proof may take
    ``seconds``, and all of them twice as long. Returns for each name ``reason``, "" when it was
    reached, ``detail``, and ``latency``, the shortest of some round trips in seconds; with
    ``measure`` also ``bandwidth`` in bytes per second over one TCP connection, 0 when it failed.
    """
    results: dict[str, dict[str, Any]] = {}

    def run(peer: Mapping[str, Any]) -> None:
        try:
            results[str(peer["name"])] = _probe_one(peer, key, measure, seconds)
        except OSError as error:
            detail = error.strerror or str(error)
            results[str(peer["name"])] = {"reason": _reason(error), "detail": detail}

    threads = [threading.Thread(target=run, args=(peer,), daemon=True) for peer in peers]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 2 * seconds + (_FLOOD_LIMIT if measure else 0)
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = {"reason": SLOW, "detail": f"no end of the probe in {2 * seconds:g} s"}
    return {str(peer["name"]): results.get(str(peer["name"]), late) for peer in peers}


def _probe_one(
    peer: Mapping[str, Any], key: bytes, measure: bool, seconds: float
) -> dict[str, Any]:
    address, port = str(peer["address"]), int(peer["port"])
    with connect(address, port, str(peer["name"]), key, seconds) as connection:
        result = {
            "reason": "",
            "detail": "",
            "latency": _ping(connection, _PINGS if measure else 2),
        }
        if measure:
            result["bandwidth"] = _flood(connection)
    return result


def _ping(connection: socket.socket, times: int) -> float:
    """Seconds of the shortest round trip. Raises OSError."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        try:
            connection.sendall(_PING)
            _read(connection, 1)
        except TimeoutError as error:
            raise _no_answer(connection) from error
        best = min(best, time.perf_counter() - start)
    return best


def _flood(connection: socket.socket) -> float:
    """Bytes per second, as the other side has received them."""
    with contextlib.suppress(OSError):
        connection.settimeout(_FLOOD_LIMIT)
        connection.sendall(_FLOOD)
        end = time.monotonic() + FLOOD_SECONDS
        while time.monotonic() < end:
            connection.sendall(_CHUNK)
        connection.shutdown(socket.SHUT_WR)
        received, seconds = _RESULT.unpack(_read(connection, _RESULT.size))
        return received / seconds if seconds > 0 else 0.0
    return 0.0
