"""Calls the profiler plug-in as NCCL does: the events of its interface, versions 4 and 5.

The structs are written from NCCL's published headers (plugins/profiler/), not from ours.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from ctypes import c_char_p, c_int, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from lockstep.flight_recorder import run_records
from lockstep.nccl import library

GROUP, COLL, P2P, KERNEL = 1 << 0, 1 << 1, 1 << 2, 1 << 6
GROUP_API, COLL_API, P2P_API = 1 << 8, 1 << 9, 1 << 10
GROUP_END_API_START = 24
CHANNELS = 2


class CollApi(ctypes.Structure):
    _fields_ = [
        ("func", c_char_p),
        ("count", c_size_t),
        ("datatype", c_char_p),
        ("root", c_int),
        ("stream", c_void_p),
        ("graph_captured", ctypes.c_bool),
    ]


class P2pApi(ctypes.Structure):
    _fields_ = [
        ("func", c_char_p),
        ("count", c_size_t),
        ("datatype", c_char_p),
        ("stream", c_void_p),
        ("graph_captured", ctypes.c_bool),
    ]


class Coll4(ctypes.Structure):
    _fields_ = [
        ("seq_number", c_uint64),
        ("func", c_char_p),
        ("send_buff", c_void_p),
        ("recv_buff", c_void_p),
        ("count", c_size_t),
        ("root", c_int),
        ("datatype", c_char_p),
        ("n_channels", c_uint8),
        ("n_warps", c_uint8),
        ("algo", c_char_p),
        ("proto", c_char_p),
    ]


class Coll5(ctypes.Structure):
    _fields_ = [*Coll4._fields_, ("parent_group", c_void_p)]


class P2p4(ctypes.Structure):
    _fields_ = [
        ("func", c_char_p),
        ("buff", c_void_p),
        ("datatype", c_char_p),
        ("count", c_size_t),
        ("peer", c_int),
        ("n_channels", c_uint8),
    ]


class P2p5(ctypes.Structure):
    _fields_ = [*P2p4._fields_, ("parent_group", c_void_p)]


class KernelCh(ctypes.Structure):
    _fields_ = [("channel_id", c_uint8), ("p_timer", c_uint64)]


class Parts4(ctypes.Union):
    _fields_ = [("coll", Coll4), ("p2p", P2p4), ("kernel", KernelCh)]


class Parts5(ctypes.Union):
    _fields_ = [
        ("coll_api", CollApi),
        ("p2p_api", P2pApi),
        ("coll", Coll5),
        ("p2p", P2p5),
        ("kernel", KernelCh),
    ]


class Event4(ctypes.Structure):
    _fields_ = [("type", c_uint8), ("parent", c_void_p), ("rank", c_int), ("of", Parts4)]


class Event5(ctypes.Structure):
    _fields_ = [("type", c_uint64), ("parent", c_void_p), ("rank", c_int), ("of", Parts5)]


_OUT = ctypes.POINTER(c_void_p)
_MASK = ctypes.POINTER(c_int)
_STOP = ctypes.CFUNCTYPE(c_int, c_void_p)
_STATE = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)


def _profiler(init: Any, event: type) -> type:
    start = ctypes.CFUNCTYPE(c_int, c_void_p, _OUT, ctypes.POINTER(event))
    functions = [("init", init), ("start", start), ("stop", _STOP)]
    functions += [("state", _STATE), ("finalize", _STOP)]
    fields = [("name", c_char_p), *functions]
    return type("Profiler", (ctypes.Structure,), {"_fields_": fields})


_INIT4 = ctypes.CFUNCTYPE(c_int, _OUT, _MASK, c_char_p, c_uint64, c_int, c_int, c_int, c_void_p)
_INIT5 = ctypes.CFUNCTYPE(c_int, _OUT, c_uint64, _MASK, c_char_p, c_int, c_int, c_int, c_void_p)
Profiler4 = _profiler(_INIT4, Event4)
Profiler5 = _profiler(_INIT5, Event5)


class Process:
    """One process's NCCL with the plug-in: the library is copied, so it has state of its own."""

    def __init__(
        self,
        folder: Path,
        process: int = 0,
        processes: int = 2,
        devices: tuple[int, ...] | None = None,
        version: int = 5,
        site: int = 0,
        start: bool = True,
    ) -> None:
        self.file = folder / f"record_{process}"
        copy = folder / f"plugin_{process}.so"
        shutil.copy(library.path(), copy)
        self._attach(copy, version)
        loaded = self.loaded
        ids = (process,) if devices is None else devices
        self._site = ctypes.CFUNCTYPE(c_uint32)(lambda: site)
        if start:
            started = loaded.lockstep_nccl_start(
                str(self.file).encode(),
                process,
                processes,
                0,
                b"a",
                f"process {process} (pid 1 on a)".encode(),
                len(ids),
                (c_int * len(ids))(*ids),
                self._site,
            )
            assert started >= 0

    @classmethod
    def of_this_one(cls) -> Process:
        """This process's own plug-in, as Lockstep has started it for NCCL."""
        process = cls.__new__(cls)
        process._attach(Path(os.environ["NCCL_PROFILER_PLUGIN"]), 5)
        return process

    def _attach(self, file: Path, version: int) -> None:
        self.version, self.loaded = version, ctypes.CDLL(str(file))
        kind = Profiler5 if version == 5 else Profiler4
        self.profiler: Any = kind.in_dll(self.loaded, f"ncclProfiler_v{version}")

    def communicator(self, ident: int, ranks: int = 2, rank: int = 0) -> Communicator:
        context, mask = c_void_p(), c_int()
        out, masked = ctypes.byref(context), ctypes.byref(mask)
        if self.version == 5:
            status = self.profiler.init(out, ident, masked, None, 1, ranks, rank, None)
        else:
            status = self.profiler.init(out, masked, None, ident, 1, ranks, rank, None)
        assert status == 0
        return Communicator(self, context, mask.value, rank)

    def event(self, communicator: Communicator, kind: int, parent: Any = None, **parts: Any) -> Any:
        event = (Event5 if self.version == 5 else Event4)(kind, parent, communicator.rank)
        for name, value in parts.items():
            setattr(event.of, name, value)
        handle = c_void_p(0xDEAD)  # NCCL does not clear it before each call
        found = self.profiler.start(communicator.context, ctypes.byref(handle), ctypes.byref(event))
        assert found == 0
        return handle.value

    def stop(self, handle: Any) -> None:
        assert self.profiler.stop(handle) == 0

    def record(self) -> Any:
        return run_records.read_record(self.file)

    def entries(self) -> tuple[Any, ...]:
        return tuple(entry for ring in self.record().rings for entry in ring.entries)


class Communicator:
    """A communicator; ``launch`` runs a collective as far as its kernel, which `Launched` ends."""

    def __init__(self, process: Process, context: Any, mask: int, rank: int) -> None:
        self.process, self.context, self.mask, self.rank = process, context, mask, rank

    def finalize(self) -> None:
        assert self.process.profiler.finalize(self.context) == 0

    def launch(
        self,
        func: bytes,
        count: int,
        datatype: bytes = b"ncclFloat32",
        captured: bool = False,
        task: bool = True,
    ) -> Launched:
        nccl = self.process
        if nccl.version == 5:
            group = nccl.event(self, GROUP_API)
            api = CollApi(func, count, datatype, 0, None, captured)
            call = nccl.event(self, COLL_API, group, coll_api=api)
            nccl.stop(call) if call else None
            nccl.profiler.state(group, GROUP_END_API_START, None)
            coll: Any = Coll5(0, func, None, None, count, 0, datatype, CHANNELS, 4, b"RING", b"LL")
        else:
            group = call = nccl.event(self, GROUP)
            coll = Coll4(0, func, None, None, count, 0, datatype, CHANNELS, 4, b"RING", b"LL")
        tasks = []
        if task:
            handle = nccl.event(self, COLL, call, coll=coll)
            tasks.append((handle, CHANNELS))
            nccl.stop(handle) if handle else None
        nccl.stop(group)
        return Launched(self, tasks)

    def exchange(self, peers: list[tuple[bytes, int]], count: int) -> Launched:
        """Sends and receives, ``(b"Send", peer)``, in one group."""
        nccl, tasks = self.process, []
        group = nccl.event(self, GROUP_API if nccl.version == 5 else GROUP)
        calls = []
        for func, _ in peers:
            if nccl.version == 5:
                api = P2pApi(func, count, b"ncclFloat32", None, False)
                calls.append(nccl.event(self, P2P_API, group, p2p_api=api))
                nccl.stop(calls[-1])
            else:
                calls.append(group)
        if nccl.version == 5:
            nccl.profiler.state(group, GROUP_END_API_START, None)
        for call, (func, peer) in zip(calls, peers, strict=True):
            kind = P2p5 if nccl.version == 5 else P2p4
            p2p = kind(func, None, b"ncclFloat32", count, peer, 1)
            handle = nccl.event(self, P2P, call, p2p=p2p)
            nccl.stop(handle)
            tasks.append((handle, 1))
        nccl.stop(group)
        return Launched(self, tasks)


class Launched:
    def __init__(self, communicator: Communicator, tasks: list[tuple[Any, int]]) -> None:
        self.communicator, self.tasks = communicator, tasks
        self.kernels: list[Any] = []

    def begin(self) -> Launched:
        """The kernel begins, with a channel at a time."""
        nccl = self.communicator.process
        for task, channels in self.tasks:
            for channel in range(channels):
                part = KernelCh(channel, 1)
                self.kernels.append(nccl.event(self.communicator, KERNEL, task, kernel=part))
        return self

    def end(self) -> None:
        nccl = self.communicator.process
        for kernel in self.kernels:
            nccl.profiler.state(kernel, 22, None)
            nccl.stop(kernel)
