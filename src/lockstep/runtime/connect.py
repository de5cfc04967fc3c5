"""Brings the engines of all processes together, through JAX's key-value store.

The order of events in a process: JAX's client of the coordination service connects; JAX is about to
make its CPU client (`before_cpu_client`: exchange records, fall back to gloo when there are
several hosts); jaxlib starts its collectives (`start_engine`: share the arena, start the engine);
XLA meets its first clique (`hand_in_devices`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lockstep
from lockstep import _config, _engine, _jax_compat
from lockstep._errors import InitializationError
from lockstep._records import process_dir
from lockstep.runtime import agreement, callsite, cut_off, members, topology

_WAIT_SECONDS = 300
_PREFIX = "lockstep"


@dataclasses.dataclass
class _Job:
    """The records of one coordination service's processes; made once per client."""

    client: Any
    peers: list[topology.Peer]
    process: int
    starts: int = 0
    """How often jaxlib has started its collectives: JAX may clear its backends and make others."""


_job: _Job | None = None


def _current_job() -> _Job:
    global _job
    client = _jax_compat.distributed_client()
    if client is None:
        raise InitializationError("jax.distributed.initialize() has not been called.")
    if _job is None or _job.client is not client:
        process, count = _jax_compat.distributed_place()
        engine = f"{lockstep.__version__}/{_engine.interface()}"
        own = topology.this_process(process, _config.current().host_id, engine)
        client.key_value_set(f"{_PREFIX}/peer/{process}", own.to_json())
        peers = [
            topology.Peer.from_json(
                get(client, f"{_PREFIX}/peer/{other}", f"process {other} of {count}")
            )
            for other in range(count)
        ]
        _job = _Job(client, peers, process)
    return _job


def leave_job() -> None:
    """Lets go of the job, and so of the connection to its coordination service."""
    global _job
    _job = None
    cut_off.stop()
    if (watch := sys.modules.get("lockstep.runtime.watch")) is not None:
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


def get(client: Any, key: str, who: str) -> str:
    """Reads a key that another process sets; raises `InitializationError` naming it."""
    try:
        return client.blocking_key_value_get(key, _WAIT_SECONDS * 1000)
    except Exception as error:
        raise InitializationError(
            f"{who} did not reach this point in {_WAIT_SECONDS} s. It may have failed (see its "
            "output), may not import lockstep, or may run another program."
        ) from error


def before_cpu_client() -> None:
    """Falls back to gloo when the processes sit on several hosts.

    Raises `DisagreementError`, on every process, when those of one host have different engines.
    """
    if _is_engine():
        _stay_or_fall_back()
    if _is_gloo():
        cut_off.before_cpu_client()


def _is_engine() -> bool:
    """Whether nobody, the program included, has chosen another implementation."""
    return _config.current().collectives == "lockstep" and _implementation() == "mpi"


def _is_gloo() -> bool:
    return _implementation() == "gloo"


def _implementation() -> str | None:
    import jax

    return jax.config.values["jax_cpu_collectives_implementation"]


def _stay_or_fall_back() -> None:
    import jax

    job = _current_job()
    hosts = topology.host_names(job.peers)
    if len(hosts) == 1:
        engines = [{"engine": peer.engine} for peer in job.peers]
        agreement.check([str(peer.process) for peer in job.peers], engines)
        # The line that makes a collective can be seen only while the caller waits for it.
        if _config.current().strict:
            jax.config.update("jax_cpu_enable_async_dispatch", False)
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if job.process == 0:
        print(
            f"lockstep: the processes sit on {len(hosts)} hosts ({', '.join(hosts)}); the engine "
            "does not reach between hosts yet, so this run uses gloo.",
            file=sys.stderr,
        )


def after_cpu_client(client: Any) -> None:
    """Has noted what the stack of a collective may not show: programs, the lines of executions.

    With gloo, begins to watch the other hosts.
    """
    if _is_gloo():
        cut_off.after_cpu_client()
    if not _is_engine():
        return
    from lockstep.runtime import watch

    members.note_programs(client, watch.hold)
    if _config.current().strict and client.local_device_count() > 1:
        callsite.note_executions()


def start_engine() -> None:
    """Called by the engine when jaxlib starts its collectives."""
    job = _current_job()
    if len(topology.host_names(job.peers)) > 1:
        raise InitializationError(
            "the processes sit on several hosts, and the engine does not reach between hosts yet. "
            "Use --collectives gloo."
        )
    epoch = job.starts
    job.starts += 1
    config = _config.current()
    cores, crowded = topology.share_of_cores(job.peers, job.process)
    fd, nonce = _shared_memory(job, f"{_PREFIX}/arena/{epoch}")
    try:
        _engine.start(
            _engine.Options(
                process=job.process,
                labels=[peer.label for peer in job.peers],
                arena_fd=fd,
                nonce=nonce,
                timeout_seconds=config.collective_timeout,
                cores=cores,
                crowded=crowded,
                device_id_bytes=_jax_compat.device_id_bytes(),
                # Nobody could say whether two numbers are those of one program.
                check_programs=config.check_programs
                and config.record
                and _jax_compat.numbers_programs(),
                strict=config.strict,
                record=config.record,
                recorder=_recorder_path(job.process),
                host=job.peers[job.process].host_name,
                attempt=config.attempt,
                single_copy=_config.current().single_copy,
            )
        )
        job.client.key_value_set(f"{_PREFIX}/record/{epoch}/{job.process}", _own_record())
        # The engine keeps a descriptor of its own; ours may go once all have opened it.
        job.client.wait_at_barrier(f"{_PREFIX}/arena/{epoch}/mapped", _WAIT_SECONDS * 1000)
    finally:
        os.close(fd)
    if config.record:
        paths = [
            get(job.client, f"{_PREFIX}/record/{epoch}/{peer.process}", peer.label)
            for peer in job.peers
        ]
        # Late import: it is needed only where the engine runs.
        from lockstep.runtime import watch

        watch.start(job.client, job.peers, job.process, paths)


def _recorder_path(process: int) -> str | None:
    config = _config.current()
    if config.run_dir is None:
        return None
    folder = process_dir(Path(config.run_dir), config.attempt, process)
    return str(folder / "recorder.bin")


def _own_record() -> str:
    """The path under which the others can open this process's record."""
    problem = _engine.recorder_problem()
    if problem:
        print(f"lockstep: {problem}.", file=sys.stderr)
    return f"/proc/{os.getpid()}/fd/{_engine.recorder_fd()}"


def _shared_memory(job: _Job, key: str) -> tuple[int, int]:
    """(file descriptor, nonce) of the arena that process 0 makes and all others open."""
    if job.process == 0:
        nonce = secrets.randbits(63)
        try:
            fd = _engine.create_arena(nonce)
        except Exception as error:
            job.client.key_value_set(key, json.dumps({"error": str(error)}))
            raise
        job.client.key_value_set(key, json.dumps({"fd": fd, "nonce": nonce}))
        return fd, nonce
    arena = json.loads(get(job.client, key, job.peers[0].label))
    if "error" in arena:
        raise InitializationError(f"{job.peers[0].label}: {arena['error']}")
    path = f"/proc/{job.peers[0].pid}/fd/{arena['fd']}"
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC), arena["nonce"]
    except OSError as error:
        raise InitializationError(
            f"cannot open the shared memory of {job.peers[0].label} at {path}: {error.strerror}. "
            "The processes of one host must run as one user and see the same /proc (not hidden "
            "by hidepid). --collectives gloo needs no shared memory."
        ) from error


def hand_in_devices() -> None:
    """Called by the engine before its first clique, on one of XLA's threads."""
    import jax

    _engine.set_devices([(d.id, d.process_index) for d in jax.devices("cpu")])


def find_members(color: int, key: int) -> Sequence[int]:
    """Called by the engine where XLA's frames do not say who is in a clique, on XLA's threads."""
    import jax

    job = _current_job()
    process_of = {device.id: device.process_index for device in jax.devices("cpu")}
    said = members.Job(job.client, labels(len(job.peers)), job.process, process_of)
    return members.find(said, color, key)
