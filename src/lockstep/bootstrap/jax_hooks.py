"""What Lockstep adds to JAX right after its import, besides the engine; each hook fails by itself.

`plugin` puts them in. What needs more of Lockstep is imported when a hook is called: most imports
of this package never come so far.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from lockstep import _config, _jax_compat

# The names of the hooks, as messages have them.
CLUSTER = "cluster detection"
CPU_CLIENT = "CPU client"
BACKENDS = "backends"
CHILDREN = "children of multiprocessing"
GPUS = "choice of GPUs"
NCCL = "record of NCCL"
VALUES = "values of arrays"
SHARDINGS = "types with shardings"
AXES = "names of axes"
_GATHER = (
    "lockstep.gather(x) gives the values to process 0, lockstep.gather(x, to=None) to all; every "
    "process calls it. x.addressable_shards has the part of this process."
)
_ELSEWHERE = (
    "All of this array is on devices of other processes. jax.devices() has the devices of all "
    "processes, jax.local_devices() those of this one, where it can put and read its own arrays."
)
_EXPLICIT = (
    "lockstep: meshes with axes of type Explicit raise this; jax.make_mesh makes such axes since "
    "jax 0.9. For the compiler to decide, give it axis_types=(jax.sharding.AxisType.Auto,) * "
    "number_of_axes. To decide here, use out_sharding=, or jax.sharding.reshard on an operand."
)

_LOST_HOSTS = (
    "gloo's collectives with a host that is out of reach hang, and a process that ends does not "
    "wait for what it has dispatched."
)


def put_in_for_joining() -> None:
    """Puts in what a process needs to join its job, and to survive the loss of others."""
    _jax_compat.install(
        CLUSTER,
        "a bare jax.distributed.initialize() does not find its place in the job. "
        "lockstep.initialize() does.",
        _register_cluster,
    )
    _jax_compat.install(_jax_compat.SURVIVAL, _jax_compat.SURVIVAL_LOST, _survive)
    if "JAX_ENABLE_RECOVERABILITY" not in os.environ:
        _jax_compat.install(
            _jax_compat.BARRIERS, _jax_compat.BARRIERS_LOST, _fail_barriers_together
        )
    _jax_compat.install(
        CHILDREN,
        "the warning of a child of multiprocessing that imports the main file again.",
        _watch_children,
    )


def put_in_for_lost_hosts() -> None:
    """Puts in what ends the waits of gloo for hosts that are out of reach."""
    _jax_compat.install(CPU_CLIENT, _LOST_HOSTS, hook_cpu_client)


def put_in_for_devices_and_arrays(refuse: Callable[[], None]) -> None:
    """Puts in what is done when JAX makes devices, and what explains errors of arrays.

    ``refuse`` is called before JAX makes devices.
    """
    _jax_compat.install(
        BACKENDS,
        "float16 and float8 collectives between processes, the error for too large ones, and the "
        "error for a missing GPU.",
        lambda: _jax_compat.around_backends(refuse, _after_backends),
    )
    if ids := os.environ.get("JAX_LOCAL_DEVICE_IDS"):
        lost = "a process that does not call jax.distributed.initialize() uses the GPUs of all."
        _jax_compat.install(GPUS, lost, lambda: _jax_compat.choose_gpus(ids))
    if _config.current().check_replicas and _config.current().num_processes != 1:
        # Late import: only few jobs need it.
        from lockstep.replicas import programs

        programs.watch()
    _jax_compat.install(
        VALUES,
        "the note of lockstep.gather in the error for np.asarray of an array that spans processes.",
        lambda: _jax_compat.note_unreadable_values(_GATHER, _ELSEWHERE),
    )
    _jax_compat.install(
        AXES,
        "the name of the axis in the error for one that the mesh does not have.",
        _jax_compat.name_unbound_axes,
    )
    _jax_compat.install(
        SHARDINGS,
        "the note of axis types in errors about shardings that are ambiguous.",
        lambda: _jax_compat.note_ambiguous_shardings(_EXPLICIT),
    )


def _register_cluster() -> None:
    from lockstep.bootstrap.rank import find_place

    _jax_compat.register_cluster(find_place)


def _watch_children() -> None:
    from lockstep.bootstrap import spawned_children

    spawned_children.watch()


def _fail_barriers_together() -> None:
    from lockstep.job import current_job
    from lockstep.job.call_numbers import CallNumbers

    _jax_compat.fail_barriers_together(lambda barrier: current_job.part(CallNumbers).next(barrier))


def _survive() -> None:
    from lockstep.bootstrap import (
        certificates,
        coordination_service,
        coordinator_address,
        service_handshake,
        service_loss,
        start_timeout,
    )
    from lockstep.job import current_job
    from lockstep.watchdog import shutdown_hook

    def before_another_job(address: str, earlier: Sequence[str]) -> str:
        current_job.end()
        return coordination_service.replace(address, earlier)

    def listen_at(address: str, coordinator: str, is_chosen: bool) -> str:
        address = address if is_chosen else coordinator_address.choose(address, coordinator)
        coordinator_address.wait_until_free(address)
        return address

    def on_lost_service() -> None:
        from lockstep.bootstrap import engine_start

        service_loss.react(engine_start.labels)

    calls = _jax_compat.Survival(
        serve=coordination_service.start,
        before_another_job=before_another_job,
        on_joining=_note_joining,
        listen_at=listen_at,
        start_seconds=start_timeout.seconds,
        not_started=start_timeout.not_started,
        certificates=certificates.arguments,
        before_connecting=service_handshake.check,
        before_leaving=shutdown_hook.leave,
        on_lost_service=on_lost_service,
    )
    _jax_compat.survive_dead_peers(calls)


def hook_cpu_client() -> None:
    """Prepares JAX's client of the CPU devices, and looks after it. Raises where jax differs."""
    from lockstep.bootstrap import agreement, engine_start, xla_thread_pool
    from lockstep.programs import compilations, flags_of_all
    from lockstep.watchdog import shutdown_hook

    is_mpi = _config.current().collectives == "mpi"
    compilations.refuse(flags_of_all.check)

    def after(client: Any) -> None:
        # This handler is registered before the one that looks for lost hosts, so it runs after it.
        shutdown_hook.watch()
        if not is_mpi:
            engine_start.after_cpu_client(client)
        agreement.warn_of_differences(client)

    within = xla_thread_pool.enough if is_mpi else engine_start.around_cpu_client

    def before() -> None:
        if is_mpi:
            # Late import: only `--collectives mpi` needs it.
            from lockstep.bootstrap import mpi_backend

            mpi_backend.before_cpu_client()
        else:
            engine_start.before_cpu_client()
        flags_of_all.publish()

    _jax_compat.around_cpu_client(before, after, within)


def _after_backends(platform: str) -> bool:
    if platform not in ("", "cpu"):
        # Late import: only processes with GPUs need it.
        from lockstep.nccl import start

        _jax_compat.install(
            NCCL,
            "a job over NCCL that hangs is not explained, and has no records.",
            lambda: start.start(platform),
        )
    else:
        _watch_launches()
        _compile_once()
    return _register_pass(platform)


def _compile_once() -> None:
    if _jax_compat.distributed_client() is not None:
        from lockstep.programs import compile_once

        compile_once.begin()


def _watch_launches() -> None:
    """Explains hangs of a job in which another library runs the collectives of CPUs."""
    from lockstep.bootstrap import engine_start
    from lockstep.watchdog import launch_watch

    if library := engine_start.other_library():
        _jax_compat.install(
            launch_watch.HOOK,
            f"a job over {library} that hangs, or whose processes differ, is not explained.",
            lambda: launch_watch.start(library),
        )


def _register_pass(platform: str) -> bool:
    from lockstep.hlo import float16_pass

    return _config.current().collectives == "gloo" or float16_pass.register_when_needed(platform)


def _note_joining() -> None:
    """Tells the launcher that this process has called ``jax.distributed.initialize``."""
    # Late import: only processes of a job need it.
    from lockstep import _run_files

    _run_files.leave_note(_config.current().own_dir, _run_files.JOINED)
