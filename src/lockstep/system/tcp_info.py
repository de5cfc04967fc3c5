"""The TCP connections of this process, also those of C++ libraries, and their state in the kernel.

A library such as gloo does not expose its sockets, so they are found in /proc. The library owns
them: this module neither closes nor duplicates one. (If the library closes a socket and its number
is reused by a file, closing a duplicate would release the locks of that file.)
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

_PROBES = 6
"""Keep-alive probes within the limit: several, because probes and answers may get lost."""
_UNANSWERED = 2
"""Unanswered probes that count as silence: clocks may jump after a machine was suspended."""
_ESTABLISHED = 1
_LAST_RECEIVED, _BYTES_ACKNOWLEDGED = 52, 120
"""Where struct tcp_info (linux/tcp.h) has the ms since the last data and the last acknowledgement,
which are neighbours, and how much has been acknowledged; it begins with bytes: state, _,
retransmits, probes."""
_LENGTH = 128

Address = tuple[str, int]


_LEFT_AS_IT_IS = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
"""A type for which Python does not make a socket follow ``socket.setdefaulttimeout``."""


def tcp_sockets() -> Iterator[socket.socket]:
    """Iterates over the TCP sockets. Each is valid until the next step, and must not be closed."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            borrowed = socket.socket(type=_LEFT_AS_IT_IS, fileno=int(name))
        except OSError:  # the listing's own, or closed since
            continue
        try:
            internet = borrowed.family in (socket.AF_INET, socket.AF_INET6)
            if internet and _is_stream(borrowed):
                yield borrowed
        finally:
            borrowed.detach()


def _is_stream(borrowed: socket.socket) -> bool:
    try:
        return borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
    except OSError:  # closed since
        return False


def listening() -> set[Address]:
    """The addresses on which this process accepts connections."""
    found = set()
    for each in tcp_sockets():
        with contextlib.suppress(OSError):
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.add(local(each))
    return found


def local(connection: socket.socket) -> Address:
    return _plain(connection.getsockname())


def remote(connection: socket.socket) -> Address:
    return _plain(connection.getpeername())


def _plain(name: tuple[str, int]) -> Address:
    """The address without the name of an interface, which is different on the other end."""
    return name[0].partition("%")[0], name[1]


def enable_keep_alive(connection: socket.socket, limit: float) -> bool:
    """Enables TCP keep-alive: the kernel sends probes while no data is sent.

    So `silence` grows only when the other host does not answer. After twice ``limit`` seconds the
    kernel closes the connection. A process that is stopped or busy has no effect: its kernel
    answers. Returns False if keep-alive was enabled already.
    """
    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        return False
    pause = max(1, round(limit / _PROBES))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2 * _PROBES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return True


def has_answered(connection: socket.socket) -> bool:
    """Whether the other end has acknowledged any data, besides the handshake."""
    [count] = struct.unpack_from("=Q", _tcp_info(connection), _BYTES_ACKNOWLEDGED)
    return count > 1


def silence(connection: socket.socket) -> float:
    """Seconds for which the other kernel has not answered data or probes; 0: it has."""
    info = _tcp_info(connection)
    state, _, retransmits, probes = info[:4]
    if state != _ESTABLISHED or max(retransmits, probes) < _UNANSWERED:
        return 0.0
    return min(struct.unpack_from("=II", info, _LAST_RECEIVED)) / 1000


def _tcp_info(connection: socket.socket) -> bytes:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
    if len(info) < _LENGTH:
        raise OSError("TCP_INFO of this kernel is too short")
    return info
