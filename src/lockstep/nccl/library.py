"""NCCL's profiler plug-in (``native/nccl/profiler.cc``), through ctypes.

NCCL opens the same file through ``NCCL_PROFILER_PLUGIN``; the loader gives both the same instance,
so NCCL records into the file that is given here.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from collections.abc import Callable, Sequence

from lockstep.engine import bindings
from lockstep.nccl import known_hangs

FILE = "liblockstep_nccl.so"
VARIABLE = "NCCL_PROFILER_PLUGIN"
FIRST = (2, 27, 0)
"""The first NCCL with version 4 of the interface."""
_Site = ctypes.CFUNCTYPE(ctypes.c_uint32)
_kept: list[object] = []
"""Callbacks: ctypes frees one when its object dies, and NCCL may call it until the process ends."""


def is_loaded_by(nccl: str) -> bool:
    """Whether this version of NCCL loads the plug-in; so does one that is not known."""
    own = known_hangs.numbers(nccl)
    return not any(own) or own >= FIRST


def path() -> pathlib.Path:
    """The plug-in; raises `EngineError` where this copy of Lockstep was not built."""
    return bindings.installed(FILE)


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(path()))
    library.lockstep_nccl_start.argtypes = [
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.POINTER(ctypes.c_int),
        _Site,
    ]
    library.lockstep_nccl_leave.argtypes = [ctypes.c_int]
    library.lockstep_nccl_leave.restype = None
    return library


def start(
    file: str | None,
    process: int,
    processes: int,
    attempt: int,
    host: str,
    label: str,
    devices: Sequence[int],
    site: Callable[[], int] | None = None,
) -> int:
    """Has NCCL's collectives recorded, from the next communicator on; returns a descriptor.

    ``file``: where; None: in memory. ``devices``: the ids of the GPUs that CUDA shows, -1 for those
    of other processes.
    ``site``: gives a hash of the line that calls a collective. Raises OSError where the record
    cannot be kept.
    """
    callback = _Site(site) if site else _Site()
    _kept.append(callback)
    found = _library().lockstep_nccl_start(
        file.encode() if file else None,
        process,
        processes,
        attempt,
        host.encode(),
        label.encode(),
        len(devices),
        (ctypes.c_int * len(devices))(*devices),
        callback,
    )
    if found < 0:
        raise OSError("the record of NCCL's collectives cannot be kept")
    os.environ[VARIABLE] = str(path())
    return found


def leave(state: bindings.Leaving) -> None:
    """Writes into this process's record how its program has ended."""
    _library().lockstep_nccl_leave(state)
