"""What the engine needs to reach other hosts: a key, OpenSSL, and the addresses of all processes.

Between hosts the engine speaks TLS 1.3, and only to processes that have the job's key. The user
gives it in a file (LOCKSTEP_KEY_FILE), because JAX's key-value store, through which all else
travels, is open to whoever reaches its port. What goes there of the key tells whether two processes
have the same. It also tells somebody who guesses whether he is right, with no further question to
us: so a key has to be random, and a phrase that a person thinks of is none.

Each process listens on one address: that by which it reaches JAX's coordination service. So the
network is the one that the user has chosen for the coordinator.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep._engine_options import Network
from lockstep._errors import ConfigError, DisagreementError, InitializationError
from lockstep.runtime import absent, openssl, store, topology
from lockstep.runtime.topology import Peer

VARIABLE = "LOCKSTEP_KEY_FILE"
SHORTEST = 32
_ENOUGH = 1 << 16
"""Bytes; more of them make no better key."""
_MOST_LABELS = 4
_GRPC_PREFIX = re.compile(r"(dns|ipv4|ipv6):(//[^/]*/)?")
"""Before the host of an address: jax.distributed.initialize() takes whatever gRPC does."""
_OTHERS_MAY = 0o066
"""Group or others read or write."""


def make_key(path: str = "~/.lockstep-key") -> str:
    """What to type for a key file."""
    return f"(umask 077; openssl rand -hex 32 > {path})"


@dataclasses.dataclass(frozen=True)
class KeyFile:
    """What is in the file that LOCKSTEP_KEY_FILE names, or why it is of no use."""

    key: bytes | None = dataclasses.field(default=None, repr=False)
    problem: str = ""
    mend: str = ""

    @property
    def mark(self) -> str:
        """The same for the same key: who guesses a key can try it here. Empty without one."""
        if self.key is None:
            return ""
        return hmac.digest(self.key, b"lockstep: is it the same key?", "sha256")[:8].hex()


def read_key(path: str | None) -> KeyFile:
    """Raises nothing: where the processes are on one host, nobody asks for a key."""
    if not path:
        return KeyFile()
    path = os.path.expanduser(path)
    try:
        # A pipe would be waited for.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            problem, mend = _problem_of_file(path, os.fstat(fd))
            contents = b"" if problem else os.read(fd, _ENOUGH).strip()
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero in it
        why = error.strerror if isinstance(error, OSError) else error
        return _unusable(path, f"cannot be read ({why})", f"Make a key: {make_key()}")
    if problem:
        return _unusable(path, problem, mend)
    if len(contents) < SHORTEST:
        problem = f"has {len(contents)} characters, and a key has at least {SHORTEST}"
        return _unusable(path, problem, f"Make one: {make_key(path)}")
    return KeyFile(hashlib.sha256(contents).digest())


def _unusable(path: str, problem: str, mend: str) -> KeyFile:
    return KeyFile(None, f"{VARIABLE}={path}: the file {problem}.", mend)


def _problem_of_file(path: str, found: os.stat_result) -> tuple[str, str]:
    """What is wrong with it, and what to do about that; two empty texts where nothing is."""
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file", f"Make a key: {make_key()}"
    if found.st_uid not in (os.geteuid(), 0):
        return (
            f"belongs to user {found.st_uid}, who knows and may change the key",
            f"Make one of your own: {make_key()}",
        )
    if mode & _OTHERS_MAY:
        return f"can be read or written by others (mode {mode:04o})", f"Type: chmod 600 {path}"
    return "", ""


def describe(own: Peer, file: KeyFile, coordinator: str) -> Peer:
    """``own`` with what the others have to know of it when they sit on several hosts."""
    problem = f"{file.problem} {file.mend}".strip()
    if file.key is None:
        return dataclasses.replace(own, key_problem=problem)
    host, _, port = coordinator.rpartition(":")
    return dataclasses.replace(
        own, key=file.mark, address=route_to(host, port), network=_own_network()
    )


def _own_network() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}/{os.readlink('/proc/self/ns/net')}"


def have_keys(peers: Sequence[Peer], process: int) -> bool:
    """Whether all have the same key; False when nobody has one. All else is raised, by all."""
    if peers[process].key_problem:
        raise ConfigError(peers[process].key_problem)
    if unusable := [peer for peer in peers if peer.key_problem]:
        raise InitializationError(f"{unusable[0].label}: {unusable[0].key_problem}")
    lacking = [peer for peer in peers if not peer.has_key]
    if len(lacking) == len(peers):
        return False
    if lacking:
        raise DisagreementError(
            f"{VARIABLE} is set for some processes only; without it: {_who(lacking)}. The "
            "processes sit on several hosts: give all of them a file with the same key, and the "
            "engine is used, or none, and gloo is."
        )
    if others := [peer for peer in peers if peer.key != peers[0].key]:
        raise DisagreementError(
            f"the files that {VARIABLE} names hold different keys; another one than "
            f"{peers[0].label} has: {_who(others)}. Copy one file to all hosts."
        )
    return True


def _who(peers: Sequence[Peer]) -> str:
    more = [f"{len(peers) - _MOST_LABELS} more"] if len(peers) > _MOST_LABELS else []
    return ", ".join([*(peer.label for peer in peers[:_MOST_LABELS]), *more])


def gloo_notice(hosts: Sequence[str]) -> str:
    """What process 0 says when `have_keys` has said no."""
    return (
        f"lockstep: the processes sit on {len(hosts)} hosts ({', '.join(hosts)}) and have no key, "
        f"so this run uses gloo. For the engine: make a key file, {make_key()}, copy it to all "
        f"hosts, and set {VARIABLE} to its path for all processes."
    )


def route_to(host: str, port: str = "1") -> str:
    """From which address this host sends to ``host``; "" where it knows none. Sends nothing."""
    prefix = _GRPC_PREFIX.match(host)
    host = host[prefix.end() :] if prefix else host
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return ""
    # IPv4 first, where there are both: it is the one that hosts lack less often.
    for family, kind, *_, to in sorted(found, key=lambda entry: entry[0] != socket.AF_INET):
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(to)
            own = str(probe.getsockname()[0])
            # Such an address says nothing without the name of an interface of the other host.
            if not ipaddress.ip_address(own.partition("%")[0]).is_link_local:
                return own
    return ""


def own_address(peers: Sequence[Peer], process: int) -> str:
    """By which the other hosts reach this process.

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
        f"machine of process 0; or, for gloo between the hosts, do not set {VARIABLE}."
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
    client: Any,
    prefix: str,
    peers: Sequence[Peer],
    process: int,
    listeners: Sequence[socket.socket],
) -> dict[int, str]:
    """Where each process listens, and behind them each keeper, by their numbers.

    ``listeners`` are this process's, and its keeper's if that is in the network.
    """
    store.say(client, f"{prefix}/{process}", [_name(each) for each in listeners])
    # All are heard, those of this host too: what one of them raises, all are to raise.
    said = [
        store.hear(client, f"{prefix}/{i}", peer.label, absent.look(peers, process, i))
        for i, peer in enumerate(peers)
    ]
    at = {peer.process: said[peer.process][0] for peer in peers}
    return at | {keeper.process: said[keeper.keeps or 0][1] for keeper in topology.keepers(peers)}


def _name(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def prepare() -> None:
    """Raises `InitializationError` for what this process lacks to reach other hosts."""
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
    """For a process or a keeper."""
    members = [*peers, *topology.keepers(peers)]
    pids = [peer.pid if _is_sibling(own, peer) else 0 for peer in members]
    at = [addresses[peer.process] if _is_met(own, peer) else "" for peer in members]
    return Network(at, pids, listener.fileno(), key, openssl.find())


def _is_sibling(own: Peer, peer: Peer) -> bool:
    """Whether the engine watches for the end of that process."""
    is_other = peer.host_id == own.host_id and peer.process != own.process
    return is_other and own.keeps is None and peer.keeps is None


def _is_met(own: Peer, peer: Peer) -> bool:
    """Whether there is a connection: keepers have nothing to say to each other."""
    return peer.host_id != own.host_id and (own.keeps is None or peer.keeps is None)
