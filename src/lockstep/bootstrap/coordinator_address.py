"""Where JAX's coordination service listens: on the coordinator's address alone, on a free port.

By itself JAX listens on all interfaces of process 0's host. The service is bound to the addresses
that the coordinator's name has on this host, because the other processes connect to that name. Two
cases stay as JAX has them, because a bound service would be out of reach for other hosts:

- The name resolves to loopback addresses only. Debian gives a host's own name the address 127.0.1.1
  in /etc/hosts, while other hosts know the name by its network address. Where the job is known to
  be on one host, or the coordinator is ``localhost`` or a loopback address, loopback is bound.
- No address of the name is one of this host: others reach it through NAT or a container's port.

gRPC lets two services of one user listen on one port, each of which gets some of the connections,
and jaxlib crashes where another user or program has the port. So the port is tried before.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lockstep import _config
from lockstep._errors import InitializationError
from lockstep.bootstrap import cluster_env, endpoints

FREE_SECONDS = 5.0
"""How long to wait for a port: the service of a job that has just ended looks around for a second
before it ends."""
_PAUSE_SECONDS = 0.1
_LISTENING = "0A"
_MAX_COMMAND = 80


def split(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, without gRPC's prefix and brackets."""
    host, _, port = endpoints.without_prefix(address).rpartition(":")
    return host.strip("[]"), int(port)


def choose(default: str, coordinator: str) -> str:
    """The address to bind where the user has chosen none: ``default`` is JAX's choice."""
    host, _ = split(coordinator)
    _, port = split(default)
    own = [each for each in _addresses(host) if _is_local(each)]
    if not own:
        return default
    config = _config.current()
    on_one_host = config.num_processes and config.local_num_processes == config.num_processes
    is_loopback = all(ipaddress.ip_address(each).is_loopback for each in own)
    if is_loopback and not (on_one_host or host == "localhost" or _is_literal(host)):
        return default
    # For a name gRPC listens on each of its addresses that this host has.
    return f"{cluster_env.bracketed(own[0] if len(own) == 1 else host)}:{port}"


def _addresses(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    # A link-local address means something only together with an interface's name.
    return [at for at in dict.fromkeys(str(each[4][0]) for each in found) if "%" not in at]


def _is_local(address: str) -> bool:
    try:
        with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def wait_until_free(address: str, seconds: float = FREE_SECONDS) -> None:
    """Raises `InitializationError` where the service cannot listen on ``address``."""
    try:
        host, port = split(address)
    except ValueError:  # not HOST:PORT: what gRPC makes of it is its own affair
        return
    end = time.monotonic() + seconds
    while problem := _problem(host, port):
        if time.monotonic() > end:
            raise InitializationError(
                f"JAX's coordination service cannot listen on {address}: {problem}. Give all "
                "processes another port: coordinator_address in jax.distributed.initialize(), or "
                "LOCKSTEP_COORDINATOR=HOST:PORT, or MASTER_PORT where it is set. For another "
                "address of this host: coordinator_bind_address, or JAX_COORDINATOR_BIND_ADDRESS."
            )
        time.sleep(_PAUSE_SECONDS)


def _problem(host: str, port: int) -> str:
    """Why no service can listen there; "" where it can."""
    if port == 0:
        return ""
    problem = ""
    addresses = _addresses(host)
    for listener in _listeners(port):
        for address in addresses:
            if _overlaps(address, listener.address):
                at = f"{cluster_env.bracketed(listener.address)}:{port}"
                return f"the port is taken by {_holder(listener)}, which listens on {at}"
    for address in addresses:
        problem = _bind_problem(address, port)
        if not problem:
            return ""
    return problem


def _bind_problem(address: str, port: int) -> str:
    with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
        # As gRPC does it; `port_reservation.reserve` holds the port of `lockstep run` in this way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((address, port))
        except OverflowError:  # no such port: JAX says so
            return ""
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"the port is taken by a socket that does not listen ({error.strerror})"
            if error.errno == errno.EAFNOSUPPORT:
                return ""
            return f"{error.strerror}"
    return ""


class _Listener(NamedTuple):
    address: str
    user: int
    inode: str


def _listeners(port: int) -> Iterator[_Listener]:
    """The sockets of this network namespace that listen on ``port``."""
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, _, number = fields[1].rpartition(":")
            if fields[3] == _LISTENING and int(number, 16) == port:
                yield _Listener(_from_hex(address), int(fields[7]), fields[9])


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


def _holder(listener: _Listener) -> str:
    """The process that has the socket, as far as this user may know."""
    link = f"socket:[{listener.inode}]"
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _has(folder, link):
            words = ""
            with contextlib.suppress(OSError):
                command = (
                    (folder / "cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode("utf-8", "replace")
                )
                words = re.sub(r"\s+", " ", command).strip()[:_MAX_COMMAND]
            return f"process {folder.name}" + (f" ({words})" if words else "")
    return f"a process of user {listener.user}"


def _has(folder: Path, link: str) -> bool:
    with contextlib.suppress(OSError):
        for fd in os.listdir(folder / "fd"):
            with contextlib.suppress(OSError):
                if os.readlink(folder / "fd" / fd) == link:
                    return True
    return False
