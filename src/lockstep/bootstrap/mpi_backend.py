"""``--collectives mpi``: finding a real MPI, and standing it behind jaxlib's plug.

jaxlib speaks MPItrampoline's interface, MPI libraries speak their own. Between them stands
``liblockstep_mpi.so`` (``native/mpi_passthrough``), which needs an MPI with the standard ABI
of MPI 5: a ``libmpi_abi.so``. Where the user has set ``MPITRAMPOLINE_LIB``, it is a wrapped MPI
already; then nothing here is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import shutil
import site
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from lockstep import _config, _jax_compat
from lockstep._errors import ConfigError, EngineError, InitializationError
from lockstep.bootstrap import xla_thread_pool
from lockstep.engine import bindings
from lockstep.system.subprocess_output import said_by

FORWARDER = "liblockstep_mpi.so"
TRAMPOLINE = "MPITRAMPOLINE_LIB"
FIX = "pip install mpich"

_ANY_MPI = re.compile(r"\blibmpi(?:_abi|wrapper|trampoline)?\.so(?:\.\d+)*$")
# A file without a number is for linkers only, and may be text.
_STANDARD_ABI = re.compile(r"\blibmpi_abi\.so(?:\.\d+)+$")
_SHARED_MEMORY = re.compile(r"(/dev/shm/mpich_\w+)$")
_OURS = {FORWARDER, bindings.FILE}


def in_cache(cache: str) -> list[str]:
    """Paths of MPI libraries in what ``ldconfig -p`` prints."""
    paths = (line.rpartition("=> ")[2].strip() for line in cache.splitlines())
    return [path for path in paths if _ANY_MPI.search(path)]


def libraries(environ: Mapping[str, str]) -> Iterator[str]:
    """The MPI libraries of this machine: those of this Python first, then as the loader looks.

    A path may come twice.
    """
    folders = [Path(sys.prefix, "lib"), Path(site.getuserbase(), "lib")]
    folders += [Path(part) for part in environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    for folder in folders:
        found = sorted(str(path) for path in folder.glob("libmpi*.so*"))
        yield from (path for path in found if _ANY_MPI.search(path))
    yield from in_cache(said_by(shutil.which("ldconfig") or "/sbin/ldconfig", "-p"))


def with_standard_abi(paths: Iterable[str]) -> str | None:
    """The first of ``paths`` that is an MPI with the standard ABI."""
    return next((path for path in paths if _STANDARD_ABI.search(path)), None)


def _wrapped_by_user(environ: Mapping[str, str]) -> str | None:
    """``MPITRAMPOLINE_LIB``, unless it names a library of Lockstep's."""
    path = environ.get(TRAMPOLINE)
    return path if path and Path(path).name not in _OURS else None


def find(environ: Mapping[str, str]) -> str:
    """The library that ``--collectives mpi`` uses. Raises `ConfigError` when there is none."""
    wrapped = _wrapped_by_user(environ)
    if wrapped is not None:
        return wrapped
    named = _config.Config.from_environ(environ).mpi_library
    if named is not None:
        if not Path(named).is_file():
            raise ConfigError(f"LOCKSTEP_MPI_LIBRARY={named!r}: no such file.")
        return named
    found = with_standard_abi(libraries(environ))
    if found is None:
        raise ConfigError(
            "--collectives mpi (LOCKSTEP_COLLECTIVES=mpi) needs an MPI with the standard ABI of "
            f"MPI 5, and there is no libmpi_abi.so in {sys.prefix}/lib, in LD_LIBRARY_PATH or "
            f"where the loader looks. To get one: {FIX}. To name one: LOCKSTEP_MPI_LIBRARY. For "
            f"an older MPI, build MPIwrapper against it and set {TRAMPOLINE} to its "
            "libmpiwrapper.so."
        )
    return found


def available(environ: Mapping[str, str]) -> bool:
    """Whether ``--collectives mpi`` has a library to use."""
    try:
        find(environ)
    except ConfigError:
        return False
    return True


@functools.cache
def _forwarder() -> ctypes.CDLL:
    library = ctypes.CDLL(str(bindings.installed(FORWARDER)))
    library.lockstep_mpi_last_error.restype = ctypes.c_char_p
    library.lockstep_mpi_open.argtypes = [ctypes.c_char_p]
    library.lockstep_mpi_start.argtypes = [ctypes.c_int]
    library.lockstep_mpi_abandon.restype = None
    return library


def plug() -> str:
    """What ``MPITRAMPOLINE_LIB`` has to be while jaxlib loads."""
    path = find(os.environ)
    return path if path == _wrapped_by_user(os.environ) else str(bindings.installed(FORWARDER))


def open_library() -> None:
    """Opens the MPI, unless the user's own wrapper does."""
    global _is_ours
    path = find(os.environ)
    if path == _wrapped_by_user(os.environ):
        return
    if _forwarder().lockstep_mpi_open(os.fsencode(path)) != 0:
        raise EngineError(f"the MPI at {path} cannot be used: {_last_error()}.")
    _is_ours = True


_is_ours = False
"""Whether the MPI stands behind our forwarder."""


def _last_error() -> str:
    return _forwarder().lockstep_mpi_last_error().decode(errors="replace")


def before_cpu_client() -> None:
    """Starts the MPI, right before jaxlib would: what is wrong is raised here, in words."""
    if _jax_compat.setting("jax_cpu_collectives_implementation") != "mpi":
        return  # the program chose another implementation itself
    if not _is_ours:
        return
    devices = xla_thread_pool.planned_devices(
        _jax_compat.setting("jax_num_cpu_devices"), os.environ
    )
    check_devices(devices)
    process, count = _jax_compat.distributed_place()
    failed = _forwarder().lockstep_mpi_start(count) != 0
    _unlink_shared_memory()
    if failed:
        raise InitializationError(
            f"process {process} of {count}: MPI did not start: {_last_error()}. Likely causes: (a) "
            "the processes were started neither by `lockstep run` nor by the MPI's own launcher "
            "(mpiexec -n N lockstep worker --collectives mpi script.py), and find each other in no "
            "other way, (b) their launcher belongs to another MPI than the library, which is the "
            "first of: LOCKSTEP_MPI_LIBRARY, this Python's lib, LD_LIBRARY_PATH, the loader's."
        )


def _unlink_shared_memory() -> None:
    """Takes the names from MPICH's shared memory.

    By now all processes have mapped it, or have failed to. A process that is killed would leave the
    file behind, and a later job that draws the same name would take it for its own.
    """
    with open("/proc/self/maps") as maps:
        names = {name for line in maps for name in _SHARED_MEMORY.findall(line)}
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.unlink(name)


def abandon() -> None:
    """Ends this process's part without waiting for the others, which MPI_Finalize would do."""
    if _is_ours:
        _forwarder().lockstep_mpi_abandon()


def check_devices(devices: int) -> None:
    if devices > 1:
        raise InitializationError(
            f"{devices} CPU devices in this process, but --collectives mpi takes one: every "
            "device would have to be a process of MPI. Start more processes of one device "
            "(-n N -d 1), or use --collectives lockstep, which takes any number."
        )
