"""Has NCCL's collectives recorded and watched, in a process whose devices are GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from lockstep import _config, _jax_compat, _run_files
from lockstep._stderr import complain
from lockstep.callsites import frames
from lockstep.flight_recorder import run_records
from lockstep.job import current_job, kv_store, topology
from lockstep.nccl import gpus, installed, library
from lockstep.nccl.ras_polls import RasPolls
from lockstep.programs import compilations
from lockstep.watchdog import launch_watch, shutdown_hook
from lockstep.watchdog.own_waits import OwnWaits
from lockstep.watchdog.source import Source
from lockstep.watchdog.store_watch import Watch

GPU = ("gpu", "cuda", "rocm")
"""JAX's names of platforms whose collectives go over NCCL, or AMD's RCCL, which is alike."""
_NCCL = "NCCL"


def start(platform: str) -> None:
    """To be called when JAX has made its backends, before the first program is compiled.

    Does nothing on CPUs and outside of a job. Where the user has named a plug-in of their own, or
    NCCL is too old for ours, launches of programs are recorded in the place of collectives. Raises
    `EngineError` where this copy of Lockstep has no plug-in.
    """
    if platform not in GPU or _jax_compat.distributed_client() is None:
        return
    shutdown_hook.watch()
    process, count = _jax_compat.distributed_place()
    config, own = _config.current(), str(library.path())
    if count == 1 or not config.record:
        return
    if os.environ.get(library.VARIABLE) not in (None, "", own) or not _is_recorded(platform):
        launch_watch.start(_NCCL, RasPolls())
        return
    peer = topology.this_process(process, config.host_id, "", 0)
    if folder := config.process_dir(process):
        current_job.part(OwnWaits).keep_in(str(folder / _run_files.WAITS))
        if config.strict:
            frames.keep_in(str(folder / _run_files.CALLERS))
    file = str(folder / _run_files.NCCL_RECORDER) if folder else None
    try:
        descriptor = library.start(
            file,
            process,
            count,
            config.attempt,
            peer.host_name,
            peer.label,
            _ids(_jax_compat.local_devices()),
            # Frames are read under the interpreter's lock, which a busy thread may hold.
            frames.of_this_collective if config.strict else None,
        )
    except OSError as error:
        complain(f"{error}; a job that hangs is not explained.")
        return
    compilations.note(current_job.part(OwnWaits).note_compilation)
    store = kv_store.of_application(_jax_compat.distributed_client())
    path = f"/proc/self/fd/{descriptor}"
    source = Source(
        _NCCL, lambda latest: run_records.read_record(path, latest=latest), counts=RasPolls()
    )
    watch = Watch(store, peer, count, source, folder)
    watch.start()
    shutdown_hook.at_the_end(library.leave, watch.stop)


def _is_recorded(platform: str) -> bool:
    """Whether the library loads Lockstep's plug-in. AMD's has another history than NVIDIA's."""
    vendor = gpus.vendor(platform, os.environ) or "cuda"
    version = installed.version(vendor)
    return library.is_loaded_by(version) and bool(version or vendor == "cuda")


def _ids(devices: Sequence[Any]) -> list[int]:
    """The ids of this process's GPUs, by the number under which CUDA shows each; else -1."""
    numbers = {device.local_hardware_id: device.id for device in devices}
    return [numbers.get(number, -1) for number in range(max(numbers) + 1)]
