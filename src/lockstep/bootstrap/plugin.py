"""What ``import lockstep`` does: make stock jaxlib load the engine, and nothing that can be seen.

jaxlib reads ``MPITRAMPOLINE_LIB`` in a constructor of its shared library, JAX reads
``JAX_CPU_COLLECTIVES_IMPLEMENTATION`` when it is imported. So a hook waits for the imports of both,
and has the variables in the environment for just as long. What this process starts later does not
inherit them: a child that uses JAX without Lockstep would take an engine that is not configured.

No import of jax fails because of Lockstep. What cannot be prepared (a bad variable, an engine that
was never built) is an error of JAX's first devices; a jax that does not have what a hook needs
loses what that hook does, and one line says so.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lockstep import _config, _jax_compat
from lockstep._errors import (
    ConfigError,
    EngineError,
    ImportOrderError,
    InitializationError,
    LockstepError,
)
from lockstep.engine import bindings

_LIBRARY = "MPITRAMPOLINE_LIB"
_IMPLEMENTATION = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"

# The names of the hooks, as messages have them.
CLUSTER = "cluster detection"
CPU_CLIENT = "CPU client"
BACKENDS = "backends"
NCCL = "record of NCCL"
VALUES = "values of arrays"
SHARDINGS = "types with shardings"
_GATHER = (
    "lockstep.gather(x) gives the values to process 0, lockstep.gather(x, to=None) to all; every "
    "process calls it. x.addressable_shards has the part of this process."
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
_LATE = (
    "lockstep was imported after jax, and jaxlib looks for its collectives only when it "
    "is loaded. Put `import lockstep` before `import jax` (and before whatever imports "
    "jax), or start the program with `lockstep run`, which needs no import. To use "
    "lockstep without its engine, set LOCKSTEP_COLLECTIVES=gloo."
)


_unfit = ""
"""Why the engine cannot be offered to this jaxlib; "" where it can."""
_late = False
"""Whether jaxlib was loaded before, in a child of `multiprocessing`."""
_hooked = False
"""Whether the hooks were put in."""


def prepare() -> None:
    """Has the imports of jaxlib and JAX prepared; called once, when lockstep is imported.

    Errors come later: `lockstep doctor`, which says what is wrong, imports lockstep too.
    """
    global _unfit, _late
    try:
        choice = _config.current().collectives
        library = _library(choice)
        if library and _is_late(library):
            _late = True
            return _jax_compat.after_jax_import(_refuse_a_job, dict, dict)
        if choice == "lockstep":
            _set_callbacks()
            _unfit = _misfit(library or "")
        elif choice == "mpi":
            _mpi().open_library()
    except (ConfigError, EngineError) as failure:
        error = failure
        return _jax_compat.after_jax_import(lambda: _raise_when_used(error), dict, dict)
    if library and "jax" in sys.modules and _variables_of_jax("mpi"):
        _jax_compat.choose_collectives("mpi")
    _jax_compat.after_jax_import(
        _hook_jax,
        jax=lambda: _variables_of_jax("mpi" if library else "gloo"),
        jaxlib=lambda: {_LIBRARY: library} if library and not _unfit else {},
    )


def _set_callbacks() -> None:
    bindings.set_callbacks(start=_start_engine, devices=_hand_in_devices, site=_call_site)


def _mpi() -> Any:
    # Late import: only `--collectives mpi` needs it.
    from lockstep.bootstrap import mpi_backend

    return mpi_backend


def _library(choice: str) -> str | None:
    """What jaxlib has to load in place of an MPI."""
    if choice == "lockstep":
        return str(bindings.library_path())
    return _mpi().plug() if choice == "mpi" else None


def _is_late(library: str) -> bool:
    """Whether jaxlib was loaded without ``library``; raises `ImportOrderError` if it should not.

    A child that `multiprocessing` has spawned imports the modules of its parent's program, jax
    perhaps before lockstep. It has no part in its parent's job, and gets stock JAX. An error comes
    only when it joins a job (`check_in_time`). So in IPython, where ``%load_ext lockstep`` may
    come after ``import jax``: its cells run in other processes.
    """
    if not _jax_compat.jaxlib_is_loaded() or _is_mapped(library):
        return False
    processes: Any = sys.modules.get("multiprocessing.process")
    # The first is while it imports its parent's program, the second after that.
    if "__mp_main__" in sys.modules or (processes and processes.parent_process()):
        return True
    ipython: Any = sys.modules.get("IPython.core.getipython")
    if ipython and ipython.get_ipython() is not None:
        return True
    raise ImportOrderError(_LATE)


def _is_mapped(library: str) -> bool:
    path = os.path.realpath(library)
    with open("/proc/self/maps") as maps:
        return any(line.rstrip("\n").removesuffix(" (deleted)").endswith(path) for line in maps)


def check_in_time() -> None:
    """Raises where this process is to join a job, and JAX was imported without Lockstep's hooks."""
    if _late:
        raise ImportOrderError(_LATE)
    if not _hooked:
        raise InitializationError(
            "jax was imported past Lockstep's import hook, so the engine is not in place. A module "
            "finder of another package stands before it in sys.meta_path: import lockstep after "
            "that package, and before jax."
        )


def _refuse_a_job() -> None:
    _jax_compat.install(
        BACKENDS,
        "an error where this process joins a job without the engine.",
        lambda: _jax_compat.around_backends(_check_no_job),
    )


def _check_no_job() -> None:
    if _jax_compat.distributed_client() is not None and _jax_compat.distributed_place()[1] > 1:
        raise ImportOrderError(_LATE)


def _misfit(library: str) -> str:
    """Names that an untested jaxlib wants and ``library`` lacks: it would end the process."""
    if not _jax_compat.is_untested(_jax_compat.jaxlib_version_on_disk()):
        return ""
    try:
        jaxlib = _jax_compat.jaxlib_library()
        missing = _jax_compat.names_missing(jaxlib, Path(library)) if jaxlib else []
    except (OSError, ValueError) as error:
        return f"what jaxlib wants is unknown: {error}"
    return f"jaxlib wants {len(missing)} names that it lacks: {missing[0]} ..." if missing else ""


def _variables_of_jax(collectives: str) -> Mapping[str, str]:
    # The user's own choice of another is as good as `jax.config.update`. The launcher, which has an
    # option for it, takes the variable away.
    chosen = os.environ.get(_IMPLEMENTATION) not in (None, "", "mpi")
    if chosen and _config.current().collectives == "lockstep":
        return {}
    return {_IMPLEMENTATION: collectives}


# The engine calls these when jaxlib makes its first collectives; most imports of this package never
# come so far.


def _start_engine() -> None:
    from lockstep.bootstrap import engine_start

    if _unfit:
        raise InitializationError(_unfit)
    engine_start.start_engine()


def _hand_in_devices() -> None:
    from lockstep.bootstrap import engine_start

    engine_start.hand_in_devices()


def _call_site() -> int:
    from lockstep.callsites import frames

    return frames.of_this_collective()


# What runs right after the import of jax; each hook fails by itself.


def _raise_when_used(error: LockstepError) -> None:
    global _hooked
    _hooked = True

    def refuse() -> NoReturn:
        raise error

    install = _jax_compat.install
    install(CLUSTER, f"this error: {error}", lambda: _jax_compat.register_cluster(refuse))
    install(BACKENDS, f"this error: {error}", lambda: _jax_compat.around_backends(before=refuse))


def _hook_jax() -> None:
    global _hooked
    _hooked = True
    try:
        _put_in_hooks()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        if _without_engine("after the import of jax", why) is _refuse:
            _raise_when_used(InitializationError(_unfit.strip()))


def _put_in_hooks() -> None:
    _jax_compat.report_version()
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
    choice = _config.current().collectives
    refuse = _nothing
    if choice != "gloo":
        refuse = _offer_engine(choice)
    else:
        _jax_compat.install(CPU_CLIENT, _LOST_HOSTS, _hook_cpu_client)
    _jax_compat.install(
        BACKENDS,
        "float16 and float8 collectives between processes, the error for too large ones, and the "
        "error for a missing GPU.",
        lambda: _jax_compat.around_backends(refuse, _after_backends),
    )
    if _config.current().check_replicas and _config.current().num_processes != 1:
        # Late import: only few jobs need it.
        from lockstep.replicas import programs

        programs.watch()
    _jax_compat.install(
        VALUES,
        "the note of lockstep.gather in the error for np.asarray of an array that spans processes.",
        lambda: _jax_compat.note_unreadable_values(_GATHER),
    )
    _jax_compat.install(
        SHARDINGS,
        "the note of axis types in errors about shardings that are ambiguous.",
        lambda: _jax_compat.note_ambiguous_shardings(_EXPLICIT),
    )


def _nothing() -> None:
    pass


def _register_cluster() -> None:
    from lockstep.bootstrap.rank import find_place

    _jax_compat.register_cluster(find_place)


def _fail_barriers_together() -> None:
    from lockstep.job import current_job
    from lockstep.job.uses import Uses

    _jax_compat.fail_barriers_together(lambda barrier: current_job.part(Uses).next(barrier))


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


def _offer_engine(choice: str) -> Callable[[], None]:
    """Lets JAX use the engine, or the MPI, where it can; else it is gloo.

    Returns what is to be called before JAX makes devices: it raises where gloo is out of question.
    """
    global _unfit
    try:
        if not _unfit:
            _jax_compat.check_collectives()
            _jax_compat.check_distributed()
            _hook_cpu_client()
            return _nothing
    except Exception as error:
        _unfit = f"{type(error).__name__}: {error}"
    return _without_engine("collectives", _unfit)


def _without_engine(hook: str, why: str) -> Callable[[], None]:
    """Has JAX use gloo, or with a key nothing; returns what `_offer_engine` returns."""
    global _unfit
    lost = "the MPI" if _config.current().collectives == "mpi" else "the engine"
    if not _config.current().key_file:
        _jax_compat.report(hook, f"{lost}; collectives run on gloo.", why)
        with contextlib.suppress(Exception):  # a jax without the setting has no other collectives
            _jax_compat.choose_collectives("gloo")
        return _nothing
    _unfit = (
        f"{lost} does not fit this jax ({why}), and LOCKSTEP_KEY_FILE is set, so the data must "
        f"not go over gloo, which does not encrypt. {_jax_compat.untested_note()}"
    )
    return _refuse


def _refuse() -> NoReturn:
    raise InitializationError(_unfit.strip())


def _hook_cpu_client() -> None:
    from lockstep.bootstrap import agreement, engine_start, xla_thread_pool
    from lockstep.watchdog import shutdown_hook

    is_mpi = _config.current().collectives == "mpi"

    def after(client: Any) -> None:
        # This handler is registered before the one that looks for lost hosts, so it runs after it.
        shutdown_hook.watch()
        if not is_mpi:
            engine_start.after_cpu_client(client)
        agreement.warn_of_differences(client)

    if is_mpi:
        _jax_compat.around_cpu_client(_mpi().before_cpu_client, after, xla_thread_pool.enough)
    else:
        _jax_compat.around_cpu_client(
            engine_start.before_cpu_client, after, engine_start.around_cpu_client
        )


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
    return _register_pass(platform)


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
    from lockstep import _run_files

    config = _config.current()
    if config.run_dir is not None and config.process_id is not None:
        with contextlib.suppress(OSError):
            folder = _run_files.process_dir(Path(config.run_dir), config.attempt, config.process_id)
            (folder / _run_files.JOINED).touch()
