"""The engine's library, through ctypes.

jaxlib loads the same file through ``MPITRAMPOLINE_LIB``; the loader gives both the same instance,
so what is configured here is what jaxlib's collectives use. The C interface is described in
``native/engine.h``.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence

import lockstep
from lockstep import _config
from lockstep._errors import EngineError

FILE = "liblockstep.so"
_Callback = ctypes.CFUNCTYPE(None)


class _Callbacks(ctypes.Structure):
    _fields_ = [("start", _Callback), ("devices", _Callback)]


class _Options(ctypes.Structure):
    _fields_ = [
        ("process", ctypes.c_int),
        ("num_processes", ctypes.c_int),
        ("labels", ctypes.POINTER(ctypes.c_char_p)),
        ("arena_fd", ctypes.c_int),
        ("nonce", ctypes.c_uint64),
        ("timeout_seconds", ctypes.c_double),
        ("cores", ctypes.c_int),
        ("crowded", ctypes.c_int),
        ("device_id_bytes", ctypes.c_int),
        ("single_copy", ctypes.c_int),
    ]


@dataclasses.dataclass(frozen=True)
class Options:
    """What one process tells its engine about the job."""

    process: int
    labels: Sequence[str]
    """How errors name each process, by process id."""
    arena_fd: int
    nonce: int
    timeout_seconds: float
    cores: int
    crowded: bool
    device_id_bytes: int
    single_copy: bool
    """Large messages straight from the memory of other processes, where the system permits it."""


def library_path() -> pathlib.Path:
    """The engine's library: ``LOCKSTEP_ENGINE``, or the one installed with this package."""
    override = _config.current().engine
    if override is not None:
        path = pathlib.Path(override)
        if not path.is_file():
            raise EngineError(f"LOCKSTEP_ENGINE={override!r}: no such file.")
        return path.resolve()
    return installed(FILE)


def installed(file: str) -> pathlib.Path:
    """A library that is installed with this package; raises `EngineError` when it is not there."""
    for folder in lockstep.__path__:
        if (path := pathlib.Path(folder) / file).is_file():
            return path.resolve()
    raise EngineError(
        f"{file} is not in {', '.join(lockstep.__path__)}: this copy of Lockstep was not "
        "installed, so its engine was never built. Run `make demo` in the source tree, or "
        "`pip install .`."
    )


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    library.lockstep_version.restype = ctypes.c_char_p
    library.lockstep_last_error.restype = ctypes.c_char_p
    library.lockstep_set_callbacks.argtypes = [ctypes.POINTER(_Callbacks)]
    library.lockstep_set_callbacks.restype = None
    library.lockstep_fail.argtypes = [ctypes.c_char_p]
    library.lockstep_fail.restype = None
    library.lockstep_create_arena.argtypes = [ctypes.c_uint64]
    library.lockstep_start.argtypes = [ctypes.POINTER(_Options)]
    ints = ctypes.POINTER(ctypes.c_int)
    library.lockstep_set_devices.argtypes = [ctypes.c_int, ints, ints]
    library.lockstep_counts.argtypes = [ctypes.POINTER(ctypes.c_uint64)]
    library.lockstep_counts.restype = None
    return library


def _check(status: int) -> None:
    if status != 0:
        raise EngineError(_library().lockstep_last_error().decode())


def version() -> str:
    return _library().lockstep_version().decode()


# ctypes frees a callback when its object dies; the engine keeps the pointer for the process's life.
_kept: list[_Callbacks] = []


def set_callbacks(start: Callable[[], None], devices: Callable[[], None]) -> None:
    """Tells the engine what to call; an exception in a callback becomes the engine's error."""

    def reporting(callback: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                callback()
            # The caller is C: what escapes here would be printed and lost.
            except BaseException as error:
                _library().lockstep_fail(f"{type(error).__name__}: {error}".encode())

        return run

    callbacks = _Callbacks(_Callback(reporting(start)), _Callback(reporting(devices)))
    _kept.append(callbacks)
    _library().lockstep_set_callbacks(ctypes.byref(callbacks))


def create_arena(nonce: int) -> int:
    """Makes this host's shared memory and returns its file descriptor, which the caller closes."""
    fd = _library().lockstep_create_arena(nonce)
    if fd < 0:
        raise EngineError(_library().lockstep_last_error().decode())
    return fd


def start(options: Options) -> None:
    """Maps the arena and makes the engine ready for collectives."""
    labels = (ctypes.c_char_p * len(options.labels))(*(text.encode() for text in options.labels))
    given = _Options(
        options.process,
        len(options.labels),
        ctypes.cast(labels, ctypes.POINTER(ctypes.c_char_p)),
        options.arena_fd,
        options.nonce,
        options.timeout_seconds,
        options.cores,
        options.crowded,
        options.device_id_bytes,
        options.single_copy,
    )
    _check(_library().lockstep_start(ctypes.byref(given)))


def set_devices(devices: Sequence[tuple[int, int]]) -> None:
    """The table of all devices: (global id, process index)."""
    array = ctypes.c_int * len(devices)
    ids, processes = array(*(d for d, _ in devices)), array(*(p for _, p in devices))
    _check(_library().lockstep_set_devices(len(devices), ids, processes))


def counts() -> dict[str, int]:
    """How many calls of each kind jaxlib has made to this process's engine.

    An all-reduce, all-gather or reduce-scatter is one call per device; an all-to-all is one per
    device and peer; a collective-permute is one per device that receives.
    """
    values = (ctypes.c_uint64 * 5)()
    _library().lockstep_counts(values)
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
    return dict(zip(names, values, strict=True))
