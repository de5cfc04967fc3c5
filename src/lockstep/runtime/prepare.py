"""What ``import lockstep`` does: make stock jaxlib load the engine, and nothing that can be seen.

jaxlib reads ``MPITRAMPOLINE_LIB`` in a constructor of its shared library, so the variable has to
be there before jaxlib is; JAX reads ``JAX_CPU_COLLECTIVES_IMPLEMENTATION`` when it is imported.
After that the second is again what it was: a child of this process that uses JAX without Lockstep
would take the engine, which nobody has configured there. The first stays: alone it does nothing,
and in a child that imports jax before lockstep it is what makes the engine be there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep import _config, _engine, _jax_compat
from lockstep._errors import ConfigError, EngineError, ImportOrderError, LockstepError

_LIBRARY = "MPITRAMPOLINE_LIB"
_IMPLEMENTATION = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"

_before: list[str | None] = []
"""What `_IMPLEMENTATION` was; empty but between the import of lockstep and that of jax."""


def prepare() -> None:
    """Sets the variables that jaxlib and JAX read; called once, when lockstep is imported.

    What cannot be prepared (a bad variable, an engine that was never built) is raised by the import
    of jax: `lockstep doctor`, which tells what is wrong, imports lockstep too.
    """
    try:
        choice = _config.current().collectives
        if choice == "lockstep":
            _prepare_engine()
        elif choice == "mpi":
            _prepare_mpi()
        else:
            _choose("gloo")
    except (ConfigError, EngineError) as error:
        _jax_compat.after_jax_import(functools.partial(_raise, error))
    else:
        _jax_compat.after_jax_import(_hook_jax)


def _raise(error: LockstepError) -> None:
    raise error


def _prepare_engine() -> None:
    library = str(_engine.library_path())
    _check_order(library)
    os.environ[_LIBRARY] = library
    # The user's own choice of another is as good as `jax.config.update`. The launcher, which has an
    # option for it, takes the variable away.
    if os.environ.get(_IMPLEMENTATION) in (None, "", "mpi"):
        _choose("mpi")
    _engine.set_callbacks(
        start=_start_engine, devices=_hand_in_devices, site=_call_site, members=_find_members
    )


# The engine calls these when jaxlib makes its first collectives; most imports of this package never
# come so far.


def _start_engine() -> None:
    from lockstep.runtime import connect

    connect.start_engine()


def _hand_in_devices() -> None:
    from lockstep.runtime import connect

    connect.hand_in_devices()


def _find_members(color: int, key: int) -> Sequence[int]:
    from lockstep.runtime import connect

    return connect.find_members(color, key)


def _call_site() -> int:
    from lockstep.runtime import callsite

    return callsite.of_this_collective()


def _prepare_mpi() -> None:
    # Late import: only this choice needs it.
    from lockstep.runtime import mpi

    library = mpi.prepare()
    _check_order(library)
    os.environ[_LIBRARY] = library
    _choose("mpi")


def _choose(implementation: str) -> None:
    if "jax" not in sys.modules:
        _before.append(os.environ.get(_IMPLEMENTATION))
        os.environ[_IMPLEMENTATION] = implementation
    elif implementation == "mpi":
        _jax_compat.choose_collectives("mpi")


def _restore() -> None:
    while _before:
        value = _before.pop()
        os.environ.pop(_IMPLEMENTATION, None)
        if value is not None:
            os.environ[_IMPLEMENTATION] = value


def _check_order(library: str) -> None:
    if _jax_compat.jaxlib_is_loaded() and os.environ.get(_LIBRARY) != library:
        raise ImportOrderError(
            "lockstep was imported after jax, and jaxlib looks for its collectives only when it "
            "is loaded. Put `import lockstep` before `import jax` (and before whatever imports "
            "jax), or start the program with `lockstep run`, which needs no import. To use "
            "lockstep without its engine, set LOCKSTEP_COLLECTIVES=gloo."
        )


def _hook_jax() -> None:
    _restore()
    from lockstep.runtime import connect, coordination, lowering, mpi, xla_threads
    from lockstep.runtime.place import find_place

    _jax_compat.register_cluster(find_place)
    choice = _config.current().collectives
    _jax_compat.around_backends(
        lambda platform: choice == "gloo" or lowering.register_when_needed(platform)
    )

    def before_another_job(address: str, earlier: Sequence[str]) -> str:
        connect.leave_job()
        return coordination.replace(address, earlier)

    _jax_compat.survive_dead_peers(coordination.start, before_another_job, _note_joining)
    if choice != "gloo" and not lowering.is_possible():
        lowering.explain_uncaught()
    if choice == "mpi":
        _jax_compat.around_cpu_client(mpi.before_cpu_client, lambda _: None, xla_threads.enough)
    else:
        _jax_compat.around_cpu_client(
            connect.before_cpu_client, connect.after_cpu_client, connect.around_cpu_client
        )


def _note_joining() -> None:
    """Tells the launcher that this process has called ``jax.distributed.initialize``."""
    from lockstep import _records

    config = _config.current()
    if config.run_dir is not None and config.process_id is not None:
        with contextlib.suppress(OSError):
            folder = _records.process_dir(Path(config.run_dir), config.attempt, config.process_id)
            (folder / _records.JOINED).touch()
