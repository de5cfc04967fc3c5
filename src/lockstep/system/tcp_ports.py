"""The TCP ports of this network namespace: whether a service may listen on one. Linux only."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lockstep.system import process_tree

_ESTABLISHED, _LISTENING = "01", "0A"
_MAX_COMMAND = 80


class _Socket(NamedTuple):
    """A socket of this namespace, as /proc/net/tcp has it."""

    address: str
    port: int
    peer: str
    peer_port: int
    state: str
    user: int
    inode: str


def taken(address: str, port: int) -> str:
    """Which process listens on ``port`` of ``address``; "": none."""
    for found in _sockets(port):
        if found.state == _LISTENING and _overlaps(address, found.address):
            at = f"[{found.address}]" if ":" in found.address else found.address
            return f"the port is taken by {_holder(found)}, which listens on {at}:{port}"
    return ""


def problem(address: str, port: int, shared: bool) -> str:
    """Why no service can listen on ``port`` of ``address``; "": it can.

    ``shared``: a port that another socket of this user has bound, and does not listen on, is free
    (see `port_reservation`).
    """
    if by := taken(address, port):
        return by
    with socket.socket(family(address), socket.SOCK_STREAM) as probe:
        # gRPC does the same: what is left of closed connections does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        try:
            probe.bind((address, port))
        except OverflowError:
            return "the port is not between 1 and 65535"
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"the port is taken by a socket that does not listen ({error.strerror})"
            return "" if error.errno == errno.EAFNOSUPPORT else error.strerror or str(error)
    return ""


def established(port: int) -> int:
    """How many TCP connections to ``port`` of this machine are established."""
    return sum(found.state == _ESTABLISHED for found in _sockets(port))


def clients(port: int) -> list[str]:
    """The other ends of connections to a service at ``port``, as far as this host knows them.

    A process of this host, except this one, by its pid; other hosts' processes, where the service
    is on this host, by their addresses.
    """
    sockets = [found for found in _all_sockets() if found.state == _ESTABLISHED]
    here = {(found.address, found.port) for found in sockets}
    own = set(process_tree.open_files(os.getpid()))
    local = [
        _holder(found)
        for found in sockets
        if found.peer_port == port and f"socket:[{found.inode}]" not in own
    ]
    remote = [
        found.peer
        for found in sockets
        if found.port == port and (found.peer, found.peer_port) not in here
    ]
    return list(dict.fromkeys([*local, *remote]))


def family(address: str) -> socket.AddressFamily:
    """The family of an address without a name."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _sockets(port: int) -> Iterator[_Socket]:
    return (found for found in _all_sockets() if found.port == port)


def _all_sockets() -> Iterator[_Socket]:
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            yield _Socket(
                *_end_from_hex(fields[1]),
                *_end_from_hex(fields[2]),
                fields[3],
                int(fields[7]),
                fields[9],
            )


def _end_from_hex(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    return _from_hex(address), int(port, 16)


def _from_hex(text: str) -> str:
    """An address as /proc/net/tcp has it: words of four bytes in the machine's byte order."""
    words = (bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    found = ipaddress.ip_address(b"".join(words))
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def _overlaps(one: str, other: str) -> bool:
    """Whether two sockets at these addresses would share a port."""
    if "::" in (one, other):  # gRPC's sockets, and most others, take IPv4 there too
        return True
    same_family = (":" in one) == (":" in other)
    return one == other or (same_family and "0.0.0.0" in (one, other))


def _holder(found: _Socket) -> str:
    """The process that has the socket, as far as this user may know."""
    link = f"socket:[{found.inode}]"
    for pid in process_tree.parents():
        if link in process_tree.open_files(pid):
            words = re.sub(r"\s+", " ", process_tree.command(pid))[:_MAX_COMMAND]
            return f"process {pid}" + (f" ({words})" if words else "")
    return f"a process of user {found.user}"
