"""What ``import lockstep`` does: make stock jaxlib load the engine, and nothing that can be seen.

jaxlib reads ``MPITRAMPOLINE_LIB`` in a constructor of its shared library, so the variable has to
be there before jaxlib is; JAX reads ``JAX_CPU_COLLECTIVES_IMPLEMENTATION`` when it is imported.
"""

from __future__ import annotations

import os

from lockstep import _config, _engine, _jax_compat
from lockstep._errors import ConfigError, ImportOrderError

_LIBRARY = "MPITRAMPOLINE_LIB"
_IMPLEMENTATION = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"


def prepare() -> None:
    """Sets the variables that jaxlib and JAX read; called once, when lockstep is imported."""
    choice = _config.current().collectives
    if choice == "lockstep":
        _prepare_engine()
    elif choice == "mpi":
        _prepare_mpi()
    else:
        os.environ[_IMPLEMENTATION] = "gloo"
    _jax_compat.after_jax_import(_hook_jax)


def _prepare_engine() -> None:
    library = str(_engine.library_path())
    if _jax_compat.jaxlib_is_loaded() and os.environ.get(_LIBRARY) != library:
        raise ImportOrderError(
            "lockstep was imported after jax, and jaxlib looks for its collectives only when it "
            "is loaded. Put `import lockstep` before `import jax` (and before whatever imports "
            "jax), or start the program with `lockstep run`, which needs no import. To use "
            "lockstep without its engine, set LOCKSTEP_COLLECTIVES=gloo."
        )
    os.environ[_LIBRARY] = library
    os.environ[_IMPLEMENTATION] = "mpi"
    # Late imports: these modules need the engine's path to be settled.
    from lockstep.runtime import connect

    _engine.set_callbacks(start=connect.start_engine, devices=connect.hand_in_devices)


def _prepare_mpi() -> None:
    if not os.environ.get(_LIBRARY):
        raise ConfigError(
            "LOCKSTEP_COLLECTIVES=mpi needs a wrapped MPI library: build MPIwrapper against your "
            f"MPI and set {_LIBRARY} to its libmpiwrapper.so. `lockstep doctor` lists the MPI "
            "libraries of this machine."
        )
    os.environ[_IMPLEMENTATION] = "mpi"


def _hook_jax() -> None:
    from lockstep.runtime import connect, lowering
    from lockstep.runtime.place import find_place

    _jax_compat.register_cluster(find_place)
    if _config.current().collectives == "lockstep":
        lowering.register()
        _jax_compat.before_cpu_client(connect.before_cpu_client)
