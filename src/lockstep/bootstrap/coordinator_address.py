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

import ipaddress
import os
import socket
import time

from lockstep import _config
from lockstep._errors import InitializationError
from lockstep.bootstrap import cluster_env, endpoints
from lockstep.system import tcp_ports

FREE_SECONDS = 5.0
"""How long to wait for a port: the service of a job that has just ended looks around for a second
before it ends."""
_PAUSE_SECONDS = 0.1


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
    # gRPC, given a name, listens on each of its addresses that this host has.
    return f"{cluster_env.bracketed(own[0] if len(own) == 1 else host)}:{port}"


def is_local(coordinator: str) -> bool:
    """Whether the coordinator's name has an address of this host."""
    return any(map(_is_local, _addresses(split(coordinator)[0])))


def _addresses(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    # A link-local address means something only together with an interface's name.
    return [at for at in dict.fromkeys(str(each[4][0]) for each in found) if "%" not in at]


def _is_local(address: str) -> bool:
    try:
        with socket.socket(tcp_ports.family(address), socket.SOCK_DGRAM) as probe:
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
                f"JAX's coordination service cannot listen on {address}: {problem}. If that is a "
                f"process of this job, two claim to be process 0: it and this one (pid "
                f"{os.getpid()} on {socket.gethostname()}). Otherwise give all "
                "processes another port: coordinator_address in jax.distributed.initialize(), or "
                "LOCKSTEP_COORDINATOR=HOST:PORT, or MASTER_PORT where it is set. For another "
                "address of this host: coordinator_bind_address, or JAX_COORDINATOR_BIND_ADDRESS."
            )
        time.sleep(_PAUSE_SECONDS)


def _problem(host: str, port: int) -> str:
    """Why no service can listen there; "": it can, on one address at least, as gRPC does."""
    addresses = _addresses(host) if port else []
    for address in addresses:
        if by := tcp_ports.taken(address, port):
            return by
    # `port_reservation.reserve` shares the port of `lockstep run` with the service.
    problems = [tcp_ports.problem(each, port, shared=True) for each in addresses]
    return problems[-1] if all(problems) and problems else ""
