"""Brings the engines of all processes together, through JAX's key-value store.

The order of events in a process: JAX's client of the coordination service connects; JAX is about to
make its CPU client (`before_cpu_client`: exchange records, fall back to gloo when there are
several hosts and no key); jaxlib starts its collectives (`start_engine`: share the arena of the
host, publish where other hosts reach this process, start the engine); XLA meets its first
clique (`hand_in_devices`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import lockstep
from lockstep import _config, _jax_compat
from lockstep._errors import InitializationError
from lockstep._run_files import RECORDER
from lockstep._stderr import complain
from lockstep.bootstrap import (
    config_check,
    endpoints,
    peers,
    shared_memory,
    startup_liveness,
    xla_thread_pool,
)
from lockstep.callsites import frames
from lockstep.engine import bindings
from lockstep.engine.options import Network, Options
from lockstep.job import current_job, job_key, kv_store, topology
from lockstep.job.kv_store import PREFIX, Store
from lockstep.programs import compilations
from lockstep.system import fd_limit
from lockstep.watchdog import agent_network, artifacts, shutdown_hook, silent_hosts


@dataclasses.dataclass
class _Roster:
    """The processes of a job, as they have published themselves through ``client``."""

    client: Any
    exchanged: peers.Peers
    process: int
    starts: int = 0
    """How often jaxlib has started its collectives: JAX may clear its backends and make others."""

    @property
    def peers(self) -> list[topology.Peer]:
        return self.exchanged.all

    @property
    def store(self) -> Store:
        return self.exchanged.store

    @property
    def key(self) -> bytes | None:
        """For the engine on other hosts."""
        return (
            None
            if self.exchanged.key is None
            else job_key.derive(self.exchanged.key, "lockstep tls")
        )

    @property
    def hosts(self) -> list[str]:
        return topology.host_names(self.peers)

    @property
    def agents(self) -> list[topology.Peer]:
        """Those in the network between hosts."""
        return topology.agents(self.peers) if len(self.hosts) > 1 else []

    @property
    def agent(self) -> topology.Peer | None:
        """This process's, if that is one of them."""
        return next((agent for agent in self.agents if agent.agent_of == self.process), None)


class _Start(current_job.Part):
    """What is known of the start of this job."""

    roster: _Roster | None = None
    failed: BaseException | None = None
    """What the last start of the engine failed with: jaxlib's own error hides it."""


def _roster() -> _Roster:
    client = _jax_compat.distributed_client()
    if client is None:
        raise InitializationError("jax.distributed.initialize() has not been called.")
    start = current_job.part(_Start)
    if start.roster is not None and start.roster.client is not client:
        current_job.end()  # JAX has joined another job, and this jax has no hook for that
        start = current_job.part(_Start)
    if start.roster is None:
        process, count = _jax_compat.distributed_place()
        config = _config.current()
        engine = f"{lockstep.__version__}/{bindings.interface()}"
        agent = os.getppid() if agent_network.has_agent() else 0
        own = topology.this_process(process, config.host_id, engine, agent)
        key = job_key.own(count)
        own = endpoints.describe(own, key.key, _jax_compat.coordinator_address())
        own = dataclasses.replace(
            own,
            encryption=config.encryption,
            connections=config.connections,
            algorithms=config.algorithms,
            transport=config.transport,
        )
        start.roster = _Roster(client, peers.exchange(client, own, key, count), process)
    return start.roster


def labels(count: int) -> list[str]:
    """How to name each process: with pid and host where those are known."""
    if (roster := current_job.part(_Start).roster) is not None:
        return [peer.label for peer in roster.peers]
    return [f"process {process}" for process in range(count)]


def local_pid(process: int) -> int | None:
    """The pid of a process of this host; None when it runs on another host, or is not known."""
    roster = current_job.part(_Start).roster
    if roster is None or roster.peers[process].host_id != roster.peers[roster.process].host_id:
        return None
    return roster.peers[process].pid


def before_cpu_client() -> None:
    """Falls back to gloo when the processes sit on several hosts and have no key.

    Raises `DisagreementError`, on every process, when they have different engines or keys.
    """
    if _is_engine():
        _stay_or_fall_back()
    if _is_gloo() or _is_between_hosts():
        silent_hosts.before_cpu_client()


def _is_engine() -> bool:
    """Whether neither user nor program has chosen another implementation."""
    return _config.current().collectives == "lockstep" and _implementation() == "mpi"


def _is_between_hosts() -> bool:
    """Whether the engine carries what goes from host to host."""
    return _is_engine() and len(_roster().hosts) > 1


def _is_gloo() -> bool:
    return _implementation() == "gloo"


def other_library() -> str:
    """What moves the data of CPUs, where that is not the engine: ``gloo``, ``MPI``; "": it is."""
    if _is_engine():
        return ""
    return {"gloo": "gloo", "mpi": "MPI"}.get(_implementation() or "", "")


def _implementation() -> str | None:
    return _jax_compat.setting("jax_cpu_collectives_implementation")


def _stay_or_fall_back() -> None:
    roster = _roster()
    if len(roster.hosts) > 1 and roster.key is None:
        peers.check_key_files(roster.peers, roster.process)
        _jax_compat.choose_collectives("gloo")
        if roster.process == 0:
            complain(endpoints.gloo_notice(roster.hosts))
        return
    config_check.check(
        [str(peer.process) for peer in roster.peers],
        [
            {
                "engine": peer.engine,
                "LOCKSTEP_ENCRYPTION": str(int(peer.encryption)),
                "LOCKSTEP_CONNECTIONS": str(peer.connections),
                "LOCKSTEP_ALGORITHMS": peer.algorithms,
                "LOCKSTEP_TRANSPORT": peer.transport,
            }
            for peer in roster.peers
        ],
    )
    # The line that makes a collective can be seen only while the caller waits for it.
    if _config.current().strict:
        import jax

        jax.config.update("jax_cpu_enable_async_dispatch", False)


@contextlib.contextmanager
def around_cpu_client() -> Iterator[None]:
    """Raises what the job has failed with, where that is why JAX's CPU client could not be made."""
    try:
        with xla_thread_pool.enough():
            yield
    except Exception as error:
        if not _is_engine():
            raise
        failed = current_job.part(_Start).failed
        if failed is not None and not isinstance(failed, Exception):
            raise failed from None  # Ctrl-C
        if text := str(failed or "") or bindings.abort_text():
            raise InitializationError(text) from error
        raise


def after_cpu_client(client: Any) -> None:
    """Has noted what the stack of a collective may not show: programs, the lines of executions.

    Begins to watch the other hosts.
    """
    if _is_gloo():
        silent_hosts.after_cpu_client(kv_store.of_application(_jax_compat.distributed_client()))
    if not _is_engine():
        return
    if _is_between_hosts():
        silent_hosts.after_cpu_client(_roster().store, bindings.abort)
    from lockstep.watchdog import watchdogs
    from lockstep.watchdog.own_waits import OwnWaits

    watchdogs.note_devices()
    compilations.note(current_job.part(OwnWaits).note_compilation)
    _jax_compat.install(
        "compiled programs",
        "error messages name the lines of a program's collectives only while JAX keeps it.",
        lambda: _jax_compat.note_programs(client, watchdogs.hold),
    )
    if _config.current().strict and client.local_device_count() > 1:
        frames.note_executions()


def start_engine() -> None:
    """Called by the engine when jaxlib starts its collectives."""
    roster = _roster()
    # Without a key `before_cpu_client` has chosen gloo, so jaxlib does not come here.
    if len(roster.hosts) > 1 and roster.key is None:
        raise InitializationError(
            "the processes sit on several hosts and have no key, so the engine cannot be used. "
            f"Set {job_key.VARIABLE}, or use --collectives gloo."
        )
    with _ending_the_wait_for_devices(roster), contextlib.ExitStack() as opened:
        epoch = roster.starts
        roster.starts += 1
        nonce = roster.exchanged.nonce(epoch)
        fd, network = _open_transports(roster, epoch, nonce, opened)
        # The engine keeps descriptors of its own; ours may go once all have started theirs.
        published = _start_together(roster, epoch, fd, nonce, network)
    _watch_the_job(roster, published)


@contextlib.contextmanager
def _ending_the_wait_for_devices(roster: _Roster) -> Iterator[None]:
    """Where the block fails, ends jaxlib's wait for devices of processes that may have died."""
    start = current_job.part(_Start)
    start.failed = None
    try:
        yield
    except BaseException as error:
        start.failed = error
        _jax_compat.end_wait_for_devices(roster.client, len(roster.peers))
        raise


def _open_transports(
    roster: _Roster, epoch: int, nonce: int, opened: contextlib.ExitStack
) -> tuple[int, Callable[[], Network] | None]:
    """The arena of this host, and what gives the options of the network between hosts."""
    # The key at which each process publishes its address, or its error.
    prefix = f"{PREFIX}/{'address' if len(roster.hosts) > 1 else 'record'}/{epoch}"
    listeners: list[socket.socket] = []
    with kv_store.publishing_errors(roster.store, f"{prefix}/{roster.process}"):
        fd_limit.make_room_for(roster.peers, roster.process)
        fd = shared_memory.open_arena(roster.store, roster.peers, roster.process, epoch, nonce)
        opened.callback(os.close, fd)
        if len(roster.hosts) > 1:
            endpoints.prepare()
            address = endpoints.own_address(roster.peers, roster.process)
            for _ in range(2 if roster.agent else 1):
                listener = endpoints.listen(address, len(roster.peers))
                listeners.append(opened.enter_context(listener))
    if not listeners or roster.key is None:
        return fd, None
    addresses = endpoints.meet(roster.store, prefix, roster.peers, roster.process, listeners)
    if agent := roster.agent:
        theirs = endpoints.options(roster.peers, agent, addresses, listeners[1], roster.key)
        agent_network.hand_over(roster.peers, agent, nonce, theirs)
    own = roster.peers[roster.process]
    return fd, functools.partial(
        endpoints.options, roster.peers, own, addresses, listeners[0], roster.key
    )


def _start_together(
    roster: _Roster, epoch: int, fd: int, nonce: int, network: Callable[[], Network] | None
) -> list[artifacts.Artifacts]:
    """Returns where each process writes down what it does, once the engines of all have started."""
    prefix = f"{PREFIX}/record/{epoch}"
    with kv_store.failing_together(roster.store, prefix, roster.process):
        bindings.start(_options(roster, fd, nonce, network() if network else None))
        own = _own_artifacts(roster)
        roster.store.put(f"{prefix}/{roster.process}", own.published())

    def receive(other: int, name: str) -> artifacts.Artifacts:
        """Waits until the engine of that process has started. Of another host no file is read."""
        peer = roster.peers[other]
        found = roster.store.get(name, peer.label, _check_of(roster, peer))
        is_here = peer.host_id == roster.peers[roster.process].host_id
        return artifacts.of_peer(peer, found) if is_here else artifacts.Artifacts()

    return roster.store.gather(prefix, roster.process, len(roster.peers), own, receive)


def _check_of(roster: _Roster, peer: topology.Peer) -> Callable[[], None]:
    """Ends a wait for ``peer`` once it has died; of another host, once the engine reports it."""
    gone = startup_liveness.check(roster.peers, roster.process, peer.process)

    def check() -> None:
        gone()
        if text := bindings.abort_text():
            raise InitializationError(text)

    return check


def _watch_the_job(roster: _Roster, published: Sequence[artifacts.Artifacts]) -> None:
    if _config.current().record:
        # Late import: it is needed only where the engine runs.
        from lockstep.watchdog import watchdogs

        watchdogs.start(roster.store, roster.peers, roster.process, published, roster.agents)
        if agent := roster.agent:
            agent_network.publish_artifacts(roster.peers, agent, published)
    elif len(roster.hosts) > 1:
        # Without records, other hosts do not see what this process is doing.
        shutdown_hook.mark_the_end(roster.peers[roster.process].label, lambda: None)


def _options(roster: _Roster, fd: int, nonce: int, network: Network | None) -> Options:
    config = _config.current()
    cores, oversubscribed = topology.share_of_cores(roster.peers, roster.process)
    folder = config.process_dir(roster.process)
    # Comparing the numbers of programs takes a watchdog, and a jaxlib that numbers them.
    by_program = config.record and _jax_compat.numbers_programs()
    return Options(
        process=roster.process,
        labels=[peer.label for peer in (*roster.peers, *roster.agents)],
        agents=len(roster.agents),
        arena_fd=fd,
        nonce=nonce,
        timeout_seconds=config.collective_timeout,
        cores=cores,
        oversubscribed=oversubscribed,
        device_id_bytes=_jax_compat.device_id_bytes(),
        no_members=_jax_compat.unreadable_requests(),
        check_programs=config.check_programs != _config.OFF and by_program,
        strict=config.strict,
        record=config.record,
        recorder=str(folder / RECORDER) if folder else None,
        host=roster.peers[roster.process].host_name,
        attempt=config.attempt,
        single_copy=config.single_copy,
        network=network,
        algorithms=config.algorithms,
    )


def _own_artifacts(roster: _Roster) -> artifacts.Artifacts:
    if not _config.current().record:
        return artifacts.Artifacts()
    problem = bindings.recorder_problem()
    if problem:
        complain(f"{problem}.")
    return artifacts.own(roster.process, bindings.recorder_fd())


def hand_in_devices() -> None:
    """Called by the engine before its first clique, on one of XLA's threads."""
    import jax

    bindings.set_devices([(d.id, d.process_index) for d in jax.devices("cpu")])
