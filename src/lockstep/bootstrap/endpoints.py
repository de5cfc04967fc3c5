"""What the engine needs to reach other hosts: a key, OpenSSL, and the addresses of all processes.

Between hosts the engine speaks TLS 1.3, and only to processes that have the job's key (`job_key`);
with ``--no-encryption`` only until both ends have proved that.

Each process listens on one address: that by which it reaches JAX's coordination service. So the
network is the one that the user has chosen for the coordinator.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep import _config
from lockstep._errors import InitializationError
from lockstep.bootstrap import startup_liveness
from lockstep.engine.options import Network
from lockstep.job import job_key, topology
from lockstep.job.kv_store import Store
from lockstep.job.topology import Peer
from lockstep.system import openssl, port_reservation, ucx

_GRPC_PREFIX = re.compile(r"(dns|ipv4|ipv6):(//[^/]*/)?")
"""Before the host of an address: jax.distributed.initialize() takes whatever gRPC does."""


def describe(own: Peer, key: bytes | None, coordinator: str) -> Peer:
    """``own`` with where other hosts reach it, which takes a key."""
    if key is None:
        return own
    host, _, port = coordinator.rpartition(":")
    return dataclasses.replace(own, address=route_to(host, port), network=_own_network())


def _own_network() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}/{os.readlink('/proc/self/ns/net')}"


def gloo_notice(hosts: Sequence[str]) -> str:
    """What process 0 prints where no process has a key."""
    return (
        f"the processes sit on {len(hosts)} hosts ({', '.join(hosts)}) and have no key, "
        f"so this run uses gloo. For the engine: make a key file, {job_key.make_key()}, copy it to "
        f"all hosts, and set {job_key.VARIABLE} to its path for all processes."
    )


def without_prefix(address: str) -> str:
    """``address`` without what gRPC takes in front of a host."""
    prefix = _GRPC_PREFIX.match(address)
    return address[prefix.end() :] if prefix else address


def route_to(host: str, port: str = "1") -> str:
    """From which address this host sends to ``host``; "" where it knows none. Sends nothing."""
    host = without_prefix(host)
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return ""
    # IPv4 first, where there are both: it is the one that hosts lack less often.
    for family, kind, *_, to in sorted(found, key=lambda entry: entry[0] != socket.AF_INET):
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(to)
            own = str(probe.getsockname()[0])
            # A link-local address says nothing without the name of an interface of the other host.
            if not ipaddress.ip_address(own.partition("%")[0]).is_link_local:
                return own
    return ""


def own_address(peers: Sequence[Peer], process: int) -> str:
    """The address by which the other hosts reach this process.

    The host of process 0 often has its own name, the coordinator's, at a loopback address. Then it
    is the address from which it reaches one that the others have found.
    """
    own = peers[process].address
    if _reaches_out(own):
        return own
    outside = (peer.address for peer in peers if _reaches_out(peer.address))
    if found := next(filter(_reaches_out, (route_to(address) for address in outside)), ""):
        return found
    if own and len({peer.network for peer in peers}) == 1:
        return own
    raise InitializationError(
        f"{peers[process].label} knows no address by which other hosts can reach it: the way to "
        f"JAX's coordination service leads through {own or 'no interface'}. Set "
        "LOCKSTEP_COORDINATOR=HOST:PORT for all processes, or the coordinator_address that the "
        "program gives to jax.distributed.initialize(), HOST being the network address of the "
        f"machine of process 0; or, for gloo between the hosts, do not set {job_key.VARIABLE}."
    )


def _reaches_out(address: str) -> bool:
    return bool(address) and not ipaddress.ip_address(address).is_loopback


def listen(address: str, processes: int) -> socket.socket:
    """A listening socket on a free port of ``address`` alone, with room for all processes."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.settimeout(None)  # whatever socket.setdefaulttimeout says
        listener.bind((address, 0))
        listener.listen(max(128, 2 * processes))
    except OSError as error:
        listener.close()
        raise InitializationError(
            f"no port to be had on {address} for the engine's connections to other hosts: "
            f"{error.strerror}. Are there ephemeral ports left (net.ipv4.ip_local_port_range)?"
        ) from error
    return listener


def meet(
    store: Store,
    prefix: str,
    peers: Sequence[Peer],
    process: int,
    listeners: Sequence[socket.socket],
) -> dict[int, str]:
    """Where each process listens, and behind them each agent, by their numbers.

    ``listeners`` are this process's, and its agent's if that is in the network.
    """

    def receive(other: int, name: str) -> list[str]:
        check = startup_liveness.check(peers, process, other)
        return _addresses(store.get(name, peers[other].label, check), peers[other])

    own = [port_reservation.address(each) for each in listeners]
    # What processes of this host have published is read too: what one raises, all are to raise.
    found = store.all_gather(prefix, process, len(peers), own, receive)
    at = {i: addresses[0] for i, addresses in enumerate(found)}
    return at | {agent.process: found[agent.agent_of or 0][1] for agent in topology.agents(peers)}


def _addresses(published: Any, peer: Peer) -> list[str]:
    """Raises `InitializationError` for what is no list of addresses."""
    if (
        isinstance(published, list)
        and published
        and all(isinstance(each, str) for each in published)
    ):
        return published
    raise InitializationError(f"{peer.label} has published no address: {published!r:.100}.")


def prepare() -> None:
    """Raises `InitializationError` for what this process lacks to reach other hosts.

    `ConfigError` for a transport that would not encrypt, where that is wanted.
    """
    _config.current().check_transport()
    if problem := openssl.problem():
        raise InitializationError(
            f"the engine needs OpenSSL between hosts: {problem}. Install the system's, "
            f"{openssl.INSTALL}, or use --collectives gloo."
        )


def options(
    peers: Sequence[Peer],
    own: Peer,
    addresses: Mapping[int, str],
    listener: socket.socket,
    key: bytes,
) -> Network:
    """For a process or an agent."""
    members = [*peers, *topology.agents(peers)]
    pids = [peer.pid if _is_sibling(own, peer) else 0 for peer in members]
    at = [addresses[peer.process] if _is_met(own, peer) else "" for peer in members]
    # Data goes to no agent.
    over_ucx = own.transport == "ucx" and own.agent_of is None
    return Network(
        at,
        pids,
        topology.host_numbers(members),
        listener.fileno(),
        key,
        openssl.find(),
        own.encryption,
        own.connections,
        ucx.candidates(_config.current().ucx_library) if over_ucx else (),
        job_key.own(len(peers)).is_secret_of_run,
    )


def _is_sibling(own: Peer, peer: Peer) -> bool:
    """Whether the engine watches for the end of that process."""
    is_other = peer.host_id == own.host_id and peer.process != own.process
    return is_other and own.agent_of is None and peer.agent_of is None


def _is_met(own: Peer, peer: Peer) -> bool:
    """Whether there is a connection: agents do not talk to each other."""
    return peer.host_id != own.host_id and (own.agent_of is None or peer.agent_of is None)
