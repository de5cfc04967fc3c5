"""Brings the engines of all processes together, through JAX's key-value store.

The order of events in a process: JAX's client of the coordination service connects; JAX is about to
make its CPU client (`before_cpu_client`: exchange records, fall back to gloo when there are
several hosts and no key); jaxlib starts its collectives (`start_engine`: share the arena of the
host, tell the other hosts where to reach this process, start the engine); XLA meets its first
clique (`hand_in_devices`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lockstep
from lockstep import _config, _jax_compat
from lockstep._errors import InitializationError
from lockstep._run_files import process_dir
from lockstep.bootstrap import (
    config_check,
    endpoints,
    peers,
    service_loss,
    shared_memory,
    startup_liveness,
    xla_thread_pool,
)
from lockstep.callsites import frames
from lockstep.engine import bindings
from lockstep.engine.options import Network, Options
from lockstep.job import job_key, kv_store, topology
from lockstep.job.kv_store import PREFIX, Store
from lockstep.system import fd_limit
from lockstep.watchdog import agent_network, artifacts, host_reachability, shutdown_hook


@dataclasses.dataclass
class _Job:
    """The records of one coordination service's processes; made once per client."""

    client: Any
    said: peers.Peers
    process: int
    starts: int = 0
    """How often jaxlib has started its collectives: JAX may clear its backends and make others."""

    @property
    def peers(self) -> list[topology.Peer]:
        return self.said.all

    @property
    def store(self) -> Store:
        return self.said.store

    @property
    def key(self) -> bytes | None:
        """For the engine on other hosts."""
        return None if self.said.key is None else job_key.derive(self.said.key, "lockstep tls")

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
        return next((agent for agent in self.agents if agent.keeps == self.process), None)


_job: _Job | None = None


def _current_job() -> _Job:
    global _job
    client = _jax_compat.distributed_client()
    if client is None:
        raise InitializationError("jax.distributed.initialize() has not been called.")
    if _job is None or _job.client is not client:
        process, count = _jax_compat.distributed_place()
        config = _config.current()
        engine = f"{lockstep.__version__}/{bindings.interface()}"
        agent = os.getppid() if agent_network.is_kept() else 0
        own = topology.this_process(process, config.host_id, engine, agent)
        key = job_key.own(count)
        own = endpoints.describe(own, key.key, _jax_compat.coordinator_address())
        _job = _Job(client, peers.exchange(client, own, key, count), process)
    return _job


def leave_job() -> None:
    """Lets go of the job, and so of the connection to its coordination service."""
    global _job, _start_failed
    _job, _start_failed = None, ""
    host_reachability.stop()
    service_loss.forget()
    if (watch := sys.modules.get("lockstep.watchdog.watchdog")) is not None:
        watch.stop()


def labels(count: int) -> list[str]:
    """How to name each process: with pid and host where those are known."""
    if _job is not None:
        return [peer.label for peer in _job.peers]
    return [f"process {process}" for process in range(count)]


def local_pid(process: int) -> int | None:
    """The pid of a process of this host; None when it is elsewhere, or not known."""
    if _job is None or _job.peers[process].host_id != _job.peers[_job.process].host_id:
        return None
    return _job.peers[process].pid


def before_cpu_client() -> None:
    """Falls back to gloo when the processes sit on several hosts and have no key.

    Raises `DisagreementError`, on every process, when they have different engines or keys.
    """
    if _is_engine():
        _stay_or_fall_back()
    if _is_gloo() or _is_between_hosts():
        host_reachability.before_cpu_client()


def _is_engine() -> bool:
    """Whether nobody, the program included, has chosen another implementation."""
    return _config.current().collectives == "lockstep" and _implementation() == "mpi"


def _is_between_hosts() -> bool:
    """Whether the engine carries what goes from host to host."""
    return _is_engine() and len(_current_job().hosts) > 1


def _is_gloo() -> bool:
    return _implementation() == "gloo"


def _implementation() -> str | None:
    return _jax_compat.setting("jax_cpu_collectives_implementation")


def _stay_or_fall_back() -> None:
    job = _current_job()
    if len(job.hosts) > 1 and job.key is None:
        peers.check_key_files(job.peers, job.process)
        _jax_compat.choose_collectives("gloo")
        if job.process == 0:
            print(endpoints.gloo_notice(job.hosts), file=sys.stderr)
        return
    engines = [{"engine": peer.engine} for peer in job.peers]
    config_check.check([str(peer.process) for peer in job.peers], engines)
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
        if _is_engine() and (text := _start_failed or bindings.abort_text()):
            raise InitializationError(text) from error
        raise


def after_cpu_client(client: Any) -> None:
    """Has noted what the stack of a collective may not show: programs, the lines of executions.

    Begins to watch the other hosts.
    """
    if _is_gloo():
        host_reachability.after_cpu_client(
            kv_store.of_application(_jax_compat.distributed_client())
        )
    if not _is_engine():
        return
    if _is_between_hosts():
        host_reachability.after_cpu_client(_current_job().store, bindings.abort)
    from lockstep.watchdog import watchdog

    watchdog.note_devices()
    _jax_compat.install(
        "compiled programs",
        "error messages name the lines of a program's collectives only while JAX keeps it.",
        lambda: _jax_compat.note_programs(client, watchdog.hold),
    )
    if _config.current().strict and client.local_device_count() > 1:
        frames.note_executions()


def start_engine() -> None:
    """Called by the engine when jaxlib starts its collectives."""
    job = _current_job()
    if len(job.hosts) > 1 and job.key is None:  # not fallen back: this is not the way JAX goes
        raise InitializationError(
            "the processes sit on several hosts and have no key, so the engine cannot be used. "
            f"Set {job_key.VARIABLE}, or use --collectives gloo."
        )
    with _ending_the_wait_for_devices(job), contextlib.ExitStack() as opened:
        epoch = job.starts
        job.starts += 1
        nonce = job.said.nonce(epoch)
        fd, way = _meet(job, epoch, nonce, opened)
        # The engine keeps descriptors of its own; ours may go once all have started theirs.
        told = _start_together(job, epoch, fd, nonce, way)
    _watch_the_job(job, told)


_start_failed = ""
"""What the last start of the engine failed with."""


@contextlib.contextmanager
def _ending_the_wait_for_devices(job: _Job) -> Iterator[None]:
    """Where the block fails: jaxlib would go on, and wait for the devices of who may have died."""
    global _start_failed
    _start_failed = ""
    try:
        yield
    except Exception as error:
        _start_failed = str(error)
        _jax_compat.end_wait_for_devices(job.client, len(job.peers))
        raise


def _meet(
    job: _Job, epoch: int, nonce: int, opened: contextlib.ExitStack
) -> tuple[int, Callable[[], Network] | None]:
    """The arena of this host, and the way to the others where there are some."""
    # Where the others will listen for it.
    prefix = f"{PREFIX}/{'address' if len(job.hosts) > 1 else 'record'}/{epoch}"
    listeners: list[socket.socket] = []
    with kv_store.telling_errors(job.store, f"{prefix}/{job.process}"):
        fd_limit.make_room_for(job.peers, job.process)
        fd = shared_memory.open_arena(job.store, job.peers, job.process, epoch, nonce)
        opened.callback(os.close, fd)
        if len(job.hosts) > 1:
            endpoints.prepare()
            address = endpoints.own_address(job.peers, job.process)
            for _ in range(2 if job.agent else 1):
                listener = endpoints.listen(address, len(job.peers))
                listeners.append(opened.enter_context(listener))
    if not listeners or job.key is None:
        return fd, None
    addresses = endpoints.meet(job.store, prefix, job.peers, job.process, listeners)
    if agent := job.agent:
        theirs = endpoints.options(job.peers, agent, addresses, listeners[1], job.key)
        agent_network.hand_over(job.peers, agent, nonce, theirs)
    own = job.peers[job.process]
    return fd, functools.partial(
        endpoints.options, job.peers, own, addresses, listeners[0], job.key
    )


def _start_together(
    job: _Job, epoch: int, fd: int, nonce: int, way: Callable[[], Network] | None
) -> list[artifacts.Artifacts]:
    """Returns where each process writes down what it does, once the engines of all have started."""
    prefix = f"{PREFIX}/record/{epoch}"
    with kv_store.failing_together(job.store, prefix, job.process):
        bindings.start(_options(job, fd, nonce, way() if way else None))
        own = _own_artifacts(job)
        job.store.put(f"{prefix}/{job.process}", own.published())
    return [_artifacts_of(job, peer, prefix, own) for peer in job.peers]


def _artifacts_of(
    job: _Job, peer: topology.Peer, prefix: str, own: artifacts.Artifacts
) -> artifacts.Artifacts:
    """Waits until the engine of ``peer`` has started. Of another host no file can be read."""
    if peer.process == job.process:
        return own
    said = job.store.get(f"{prefix}/{peer.process}", peer.label, _look_for(job, peer))
    is_here = peer.host_id == job.peers[job.process].host_id
    return artifacts.of_peer(peer, said) if is_here else artifacts.Artifacts()


def _look_for(job: _Job, peer: topology.Peer) -> Callable[[], None]:
    """Who has died cannot say so. Of another host, the engine has noticed."""
    gone = startup_liveness.look(job.peers, job.process, peer.process)

    def look() -> None:
        gone()
        if text := bindings.abort_text():
            raise InitializationError(text)

    return look


def _watch_the_job(job: _Job, told: Sequence[artifacts.Artifacts]) -> None:
    if _config.current().record:
        # Late import: it is needed only where the engine runs.
        from lockstep.watchdog import watchdog

        watchdog.start(job.store, job.peers, job.process, told, job.agents)
        if agent := job.agent:
            agent_network.say_where(job.peers, agent, told)
    elif len(job.hosts) > 1:
        # Nobody can see what the processes of other hosts are doing.
        shutdown_hook.mark_the_end(job.peers[job.process].label, lambda: None, to_hosts=True)


def _options(job: _Job, fd: int, nonce: int, way: Network | None) -> Options:
    config = _config.current()
    cores, oversubscribed = topology.share_of_cores(job.peers, job.process)
    # Nobody could say whether two numbers are those of one program: it takes a watcher, and jaxlib.
    by_program = config.record and _jax_compat.numbers_programs()
    return Options(
        process=job.process,
        labels=[peer.label for peer in (*job.peers, *job.agents)],
        agents=len(job.agents),
        arena_fd=fd,
        nonce=nonce,
        timeout_seconds=config.collective_timeout,
        cores=cores,
        oversubscribed=oversubscribed,
        device_id_bytes=_jax_compat.device_id_bytes(),
        no_members=_jax_compat.unreadable_requests(),
        check_programs=config.check_programs and by_program,
        strict=config.strict,
        record=config.record,
        recorder=_recorder_path(job.process),
        host=job.peers[job.process].host_name,
        attempt=config.attempt,
        single_copy=config.single_copy,
        network=way,
    )


def _recorder_path(process: int) -> str | None:
    config = _config.current()
    if config.run_dir is None:
        return None
    folder = process_dir(Path(config.run_dir), config.attempt, process)
    return str(folder / "recorder.bin")


def _own_artifacts(job: _Job) -> artifacts.Artifacts:
    if not _config.current().record:
        return artifacts.Artifacts()
    problem = bindings.recorder_problem()
    if problem:
        print(f"lockstep: {problem}.", file=sys.stderr)
    return artifacts.own(job.process, bindings.recorder_fd())


def hand_in_devices() -> None:
    """Called by the engine before its first clique, on one of XLA's threads."""
    import jax

    bindings.set_devices([(d.id, d.process_index) for d in jax.devices("cpu")])
