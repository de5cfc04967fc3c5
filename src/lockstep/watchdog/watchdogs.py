"""The watchdogs of this process in its job: made, given what it compiles, and ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep import _jax_compat
from lockstep.callsites import frames
from lockstep.engine import bindings
from lockstep.job import current_job
from lockstep.job.kv_store import Store
from lockstep.job.topology import Peer
from lockstep.watchdog import without_collectives
from lockstep.watchdog.artifacts import Artifacts
from lockstep.watchdog.own_waits import OwnWaits, watch_callbacks, watch_threads
from lockstep.watchdog.program_equality import Comparison
from lockstep.watchdog.record_reader import Records, SiteWriter
from lockstep.watchdog.remote import LocalHost, RemoteHosts
from lockstep.watchdog.shutdown_hook import at_the_end, mark_the_end
from lockstep.watchdog.watchdog import Watchdog

_STORE_SECONDS = 2.0
"""How long the watchdog waits for the key-value store: the engine waits 5 s for the watchdog's
words when it ends by its deadline (`kRequestTimeout`), and the store may be out of reach then."""


class _Watchdogs(current_job.Part):
    """One for each start of jaxlib's collectives."""

    def __init__(self) -> None:
        self.all: list[Watchdog] = []

    def tell_end(self, how: bindings.Leaving) -> None:
        """Tells other hosts in which line the program has called ``sys.exit()``."""
        if self.all and (left := current_job.part(OwnWaits).left):
            self.all[-1].tell_end(left)

    def stop(self) -> None:
        """Stops them; the process goes on answering the watchdogs of other hosts.

        They may send requests while its end waits for theirs.
        """
        for watchdog in self.all:
            watchdog.stop()

    def close(self) -> None:
        self.stop()
        while self.all:
            self.all.pop().close()


def start(
    store: Store,
    peers: Sequence[Peer],
    process: int,
    received: Sequence[Artifacts],
    agents: Sequence[Peer] = (),
) -> None:
    """Starts the watchdog of this process and, between hosts, what answers for its host.

    ``store`` is that of the job; ``received`` are the artifacts of all processes;
    ``agents`` are those in the network between hosts.
    """
    records = Records(peers, peers[process], dict(enumerate(received)))
    frames.keep_in(received[process].callers)
    current_job.part(OwnWaits).keep_in(received[process].waits)
    watch_callbacks()
    watch_threads()
    sites = SiteWriter(records, received[process], _jax_compat.live_executables)
    several = any(peer.host_id != peers[process].host_id for peer in peers)
    watchdogs = current_job.part(_Watchdogs)
    for earlier in watchdogs.all:
        earlier.stop_responding()  # or it would answer with the records of then
    remote = None
    if several:
        local = LocalHost(
            lambda latest: records.of_host(sites.found, latest),
            records.stacks,
            lambda: watchdog.hurry(),
        )
        remote = RemoteHosts([*peers, *agents], process, local)
    bounded = store.within(_STORE_SECONDS)
    compared = Comparison(bounded, peers, process)
    without = without_collectives.Comparison(
        bounded, process, _owner, sites.has_collectives, len(watchdogs.all)
    )
    watchdog = Watchdog(peers, records, sites, compared, without, remote, store)
    if remote:
        remote.start()
    watchdog.start()
    watchdogs.all.append(watchdog)
    if len(watchdogs.all) == 1:
        at_the_end(watchdogs.tell_end, lambda: None)  # while the others do not know that it ends
    mark_the_end(peers[process].label, watchdogs.stop)


def _owner() -> dict[int, int]:
    """The process of each device."""
    return {device.id: device.process_index for device in _jax_compat.all_devices()}


def hold(program: Any) -> None:
    """Keeps a program that was just made until the watchdog has read it. Raises nothing."""
    for watchdog in current_job.part(_Watchdogs).all:
        watchdog.hold(program)


def scan() -> None:
    """Has the watchdog read the records, as when a rank waits long."""
    for watchdog in current_job.part(_Watchdogs).all:
        watchdog.notify()


def abort_text() -> str:
    """What the engine's job has failed with; "" while it is healthy, or has no engine."""
    return bindings.abort_text() if current_job.part(_Watchdogs).all else ""


def note_devices() -> None:
    for watchdog in current_job.part(_Watchdogs).all:
        watchdog.note_devices()
