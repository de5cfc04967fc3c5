"""Finds out that a host can no longer be reached, by the engine's connections or by gloo's.

TCP does not report a lost host: a cable that is pulled, a machine that freezes. A rank that waits
for its data waits forever (gloo) or for minutes (the engine's deadline), and JAX's coordination
service aborts the processes that cannot reach it before Python can raise. The kernel does see that
its packets are not acknowledged. So a thread turns on the kernel's probes of idle connections, and
reads once a second how long each has had no acknowledgement. After the limit it aborts the engine's
job and closes all these connections, so that every waiting rank and every later collective raises.
All of them, because a process may wait for one that waits for the lost host.

Why not the kernel's own limit, TCP_USER_TIMEOUT: it also ends a connection whose other end answers
but takes no data, which is a process that was stopped. Why not a heartbeat: a process that computes
with Python's lock held would miss it. A connection that is still being made has
timeouts of its own.

Which connections these are: gloo and the engine alike listen on one port per process, which opens
while JAX makes its CPU client, and every connection has one of these at one end. The engine closes
its port once all have met. The processes publish theirs.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lockstep import _config, _jax_compat, _run_files
from lockstep._stderr import complain, print_line
from lockstep._words import counted, grouped, processes
from lockstep.engine import bindings
from lockstep.job import current_job, topology
from lockstep.job.kv_store import Store
from lockstep.job.topology import Peer
from lockstep.system import tcp_info
from lockstep.system.tcp_info import Address
from lockstep.watchdog.own_waits import OwnWaits

LIMIT = 0.3
"""The limit as a part of JAX's ``heartbeat_timeout_seconds`` (100)."""
_ABORT = 0.5, 1.0
"""The earliest and the latest abort by JAX of a process that does not reach its service, as parts
of the same: `LIMIT` leaves time to save before. The launcher has a limit of its own for a host,
`hosts.lease.SILENCE_SECONDS`."""
_EXIT = 0.1
_MAX_EXIT = 10.0
"""How long the service may take to answer when the process ends: a part of the same, and at most
so many seconds."""
_UNANSWERED_SECONDS = 2.0
"""Silence that is published: a deadline that ends before the limit has to name it."""
_POLL_SECONDS = 1.0
_STOP_SECONDS = 10.0
"""For a scan that is in flight; it may be printing to a pipe without a reader."""
_EVERYWHERE = ("0.0.0.0", "::")
_EXCHANGE_SECONDS = 20
"""For the other processes to publish where they listen: all have just met, to list their
devices."""
_MAX_TEXT = 980
"""What an exception has room for, in bytes, less what is put in front."""
_MAX_HOSTS = 3


class Listeners:
    """Where gloo or the engine listens in each process, as they have published."""

    def __init__(self, process: int, published: Sequence[tuple[Peer, Sequence[Address]]]) -> None:
        _, own = published[process]
        self._own_ports = {port for _, port in own}
        self._all = {address for _, addresses in published for address in addresses}
        self._here = {host for host, _ in own}
        self.peers_at = grouped(
            (host, peer)
            for peer, addresses in published
            for host in {host for host, _ in addresses} - self._here
        )
        """The processes of other hosts by their address."""

    def connections(self) -> Iterator[socket.socket]:
        """Those of this process that carry collectives."""
        for each in tcp_info.tcp_sockets():
            with contextlib.suppress(OSError):  # not connected, or no longer
                remote = tcp_info.remote(each)
                if remote in self._all or tcp_info.local(each)[1] in self._own_ports:
                    yield each

    def silence(self, limit: float) -> dict[str, float]:
        """For how many seconds each other host has not answered, and has them asked from now on.

        A host is an address: one that has several may come from another than it listens on. Nothing
        is sent to an unauthenticated client, so it is no such host.
        """
        found: dict[str, float] = {}
        for each in self.connections():
            with contextlib.suppress(OSError):  # it ends just now
                host, _ = tcp_info.remote(each)
                known = host in self.peers_at or tcp_info.has_answered(each)
                if host in self._here or not known or tcp_info.enable_keep_alive(each, limit):
                    continue  # it is probed from now on, and has had no time to answer
                found[host] = max(tcp_info.silence(each), found.get(host, 0.0))
        return found


class HostMonitor(threading.Thread):
    """Watches the connections to other hosts until the process ends.

    ``fail`` makes every collective that waits, or is called later, raise the text that it is given.
    """

    def __init__(
        self,
        listeners: Listeners,
        own: Peer,
        key: str,
        heartbeat: float,
        fail: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(name="lockstep-hosts", daemon=True)
        self._listeners = listeners
        self._own = own
        self._key = key
        self._heartbeat = heartbeat
        self._fail = fail
        self._limit = LIMIT * heartbeat
        self._over = threading.Event()
        self._owner = os.getpid()
        self._reported: set[int] = set()
        """Processes whose loss the launcher has reported, and which have been handled."""

    def run(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            with contextlib.suppress(OSError):  # no descriptor left to read /proc with
                self._scan()

    def _lost_by_launcher(self) -> list[str]:
        """The addresses of hosts that ``lockstep run --hosts`` has lost, each of them once.

        It notices a silent host sooner: its agents always have something to say.
        """
        if (attempt := _config.current().attempt_dir) is None:
            return []
        lost = _run_files.read_lost(attempt)
        fresh, self._reported = lost - self._reported, lost
        at = self._listeners.peers_at.items()
        return [host for host, peers in at if any(peer.process in fresh for peer in peers)]

    def stop(self) -> None:
        self._over.set()
        self.join(_STOP_SECONDS)

    def before_exit(self) -> None:
        """JAX's handlers at exit come next, and would wait for the service.

        It may be out of reach without our knowing: for a short time, or our connections are
        closed already. They may also wait for a collective, so the monitor goes on.
        """
        seconds = min(_EXIT * self._heartbeat, _MAX_EXIT)
        if os.getpid() == self._owner and not _jax_compat.service_answers(self._key, seconds):
            _jax_compat.set_client_aside()

    def _scan(self) -> None:
        silence = self._listeners.silence(self._limit)
        unanswered = [host for host, seconds in silence.items() if seconds >= _UNANSWERED_SECONDS]
        names = _names(unanswered, self._listeners.peers_at)
        current_job.part(OwnWaits).note_unanswered(names)
        reported = self._lost_by_launcher()
        lost = [h for h, seconds in silence.items() if seconds >= self._limit or h in reported]
        lost += [host for host in reported if host not in lost]
        if not lost:
            return
        longest = max((silence.get(host, 0.0) for host in lost), default=0.0)
        if _has_service(lost, self._listeners.peers_at):
            _jax_compat.set_client_aside()
        # Before the exception comes, after which the process may end at once.
        words = unreachable_words(
            self._own, lost, self._listeners.peers_at, longest, self._heartbeat
        )
        print_line(words)
        if self._fail is not None:
            # Before the connections end, or the exception would name their end.
            self._fail(words)
        for each in self._listeners.connections():
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _has_service(hosts: Iterable[str], peers_at: Mapping[str, Sequence[Peer]]) -> bool:
    """JAX's coordination service is beside process 0."""
    return any(peer.process == 0 for host in hosts for peer in peers_at.get(host, ()))


def _name(host: str, peers: Sequence[Peer]) -> str:
    if not peers:
        return f"the host with the address {host}"
    return f"host {peers[0].host_name} ({processes([peer.process for peer in peers])})"


def _names(hosts: Iterable[str], peers_at: Mapping[str, Sequence[Peer]]) -> str:
    names = sorted(_name(host, peers_at.get(host, ())) for host in hosts)
    if len(names) > _MAX_HOSTS:
        names = [*names[:_MAX_HOSTS], counted(len(names) - _MAX_HOSTS, "other host")]
    return " and ".join(names)


def _fitting(words: str) -> str:
    """Names may be long; the last words are those that can be missed."""
    return words.encode()[:_MAX_TEXT].decode(errors="ignore")


def unreachable_words(
    own: Peer,
    lost: Sequence[str],
    peers_at: Mapping[str, Sequence[Peer]],
    silence: float,
    heartbeat: float,
) -> str:
    """What the user reads when the addresses ``lost`` cannot be reached; times in seconds."""
    names = _names(lost, peers_at)
    # Counted from the last packet that came, and so from before the cut where the job was idle.
    how = (
        f"the last packet from there came {silence:.0f} s ago. Is the machine up, and the network?"
    )
    if silence < 1:  # An idle connection is not silent: the launcher's loss is all that is known.
        how = "the launcher has lost it, and its report says why."
    words = (
        f"lockstep: {own.label} cannot reach {names}: {how} Collectives with any other process "
        "raise from now on. This process may compute on its own devices, save and end."
    )
    if not _has_service(lost, peers_at):
        return _fitting(words)
    first, last = (max(0.0, part * heartbeat - silence) for part in _ABORT)
    return _fitting(
        f"{words} If it has not ended, JAX will abort it {first:.0f} to {last:.0f} s from now: a "
        "larger heartbeat_timeout_seconds in jax.distributed.initialize() gives more time."
    )


class _Monitors(current_job.Part):
    """The monitor of this process in its job."""

    before: set[Address] | None = None
    """What was open before JAX made its CPU client; None where that is not known."""
    monitor: HostMonitor | None = None
    starts = 0

    def close(self) -> None:
        monitor, self.monitor = self.monitor, None
        if monitor is not None:
            monitor.stop()


def before_cpu_client() -> None:
    """Notes what is open, so that it differs from what is opened next. Raises nothing."""
    monitors = current_job.part(_Monitors)
    monitors.before = None
    with contextlib.suppress(OSError):  # no /proc, or no descriptor left
        monitors.before = tcp_info.listening()


def after_cpu_client(store: Store, fail: Callable[[str], None] | None = None) -> None:
    """Starts the monitor (`HostMonitor`), where there are several hosts. Raises nothing."""
    try:
        current_job.part(_Monitors).close()
        _start(store, fail)
    except Exception as error:
        # For example with `import lockstep` in some of the processes only.
        complain(f"does not watch for unreachable hosts: {error}")


def _start(store: Store, fail: Callable[[str], None] | None) -> None:
    monitors = current_job.part(_Monitors)
    # Ours is at one address, so what listens at all of them is not ours.
    own = set() if monitors.before is None else tcp_info.listening() - monitors.before
    # The engine's port: perhaps closed by now, and still one end of its connections.
    if fail is not None and (address := bindings.listens_at()) is not None:
        host, port = address
        own.add((host.partition("%")[0], port))
    listeners, peer, key = _exchange(store, {each for each in own if each[0] not in _EVERYWHERE})
    if listeners.peers_at:
        monitor = HostMonitor(listeners, peer, key, _jax_compat.heartbeat_seconds(), fail)
        monitor.start()
        monitors.monitor = monitor
        # Registered behind JAX's handlers, so run before them.
        atexit.unregister(_before_exit)
        atexit.register(_before_exit)


def _before_exit() -> None:
    if (monitor := current_job.part(_Monitors).monitor) is not None:
        monitor.before_exit()


def _exchange(store: Store, addresses: set[Address]) -> tuple[Listeners, Peer, str]:
    """The listeners of all, this process, and the key under which it has published."""
    process, count = _jax_compat.distributed_place()
    own = topology.this_process(process, _config.current().host_id, "")
    monitors = current_job.part(_Monitors)
    prefix = f"lockstep/listeners/{monitors.starts}"
    monitors.starts += 1

    def receive(other: int, name: str) -> Any:
        return store.once(name, f"process {other}", _EXCHANGE_SECONDS)

    published = [dataclasses.asdict(own), sorted(addresses)]
    found = [
        (Peer.from_fields(peer), [(host, port) for host, port in listens])
        for peer, listens in store.all_gather(prefix, process, count, published, receive)
    ]
    return Listeners(process, found), own, f"{prefix}/{process}"
