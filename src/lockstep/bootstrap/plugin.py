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
from collections.abc import Callable, Mapping
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
from lockstep.bootstrap import jax_hooks
from lockstep.engine import bindings

_LIBRARY = "MPITRAMPOLINE_LIB"
_IMPLEMENTATION = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"

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
            bindings.set_callbacks(start=_start_engine, devices=_hand_in_devices, site=_call_site)
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
        jax_hooks.BACKENDS,
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
    install(jax_hooks.CLUSTER, f"this error: {error}", lambda: _jax_compat.register_cluster(refuse))
    install(
        jax_hooks.BACKENDS,
        f"this error: {error}",
        lambda: _jax_compat.around_backends(before=refuse),
    )


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
    jax_hooks.put_in_for_joining()
    choice = _config.current().collectives
    refuse = _nothing
    if choice != "gloo":
        refuse = _offer_engine(choice)
    else:
        jax_hooks.put_in_for_lost_hosts()
    jax_hooks.put_in_for_devices_and_arrays(refuse)


def _nothing() -> None:
    pass


def _offer_engine(choice: str) -> Callable[[], None]:
    """Lets JAX use the engine, or the MPI, where it can; else it is gloo.

    Returns what is to be called before JAX makes devices: it raises where gloo is out of question.
    """
    global _unfit
    try:
        if not _unfit:
            _jax_compat.check_collectives()
            _jax_compat.check_distributed()
            jax_hooks.hook_cpu_client()
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
