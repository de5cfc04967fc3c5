"""Launch records for tests, with executables and functions that only look like JAX's."""

from __future__ import annotations

import dataclasses
import os
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep import _jax_compat
from lockstep.job.topology import Peer
from lockstep.programs import compilations, launches
from lockstep.programs.compilations import Program
from lockstep.programs.launches import Record

OWNER = {0: 0, 1: 0, 2048: 1, 2049: 1}


class Executable:
    def __init__(self, fingerprint: bytes) -> None:
        self.fingerprint = fingerprint


class Jitted:
    def __init__(self, function: Any) -> None:
        self.__wrapped__ = function


class Result:
    """An array on some devices."""

    def __init__(self, *devices: int) -> None:
        self.sharding = SimpleNamespace(device_set={Device(d) for d in devices})


@dataclasses.dataclass(frozen=True)
class Device:
    id: int


LOCAL, EVERYWHERE = Result(0, 1), Result(*OWNER)


def program(name: str, digest: str) -> Program:
    return Program(f"jit_{name}", "a.py:7", digest, tuple(OWNER), "")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, list[Program]]:
    known: dict[bytes, list[Program]] = {
        b"step": [program("step", "11")],
        b"other": [program("other", "22")],
        b"wide": [program("step", "33")],
        b"quiet": [program("quiet", "44")],
    }
    texts = {b"quiet": "HloModule jit_quiet, "}
    monkeypatch.setattr(_jax_compat, "text_of_executable", lambda e: texts.get(e.fingerprint, ""))
    monkeypatch.setattr(compilations, "of_executable", lambda print_: known.get(print_, []))
    monkeypatch.setattr(_jax_compat, "is_compiled_function", lambda it: isinstance(it, Jitted))
    return known


def record(process: int = 0) -> Record:
    device = min(d for d, of in OWNER.items() if of == process)
    peer = Peer(process, 10 + process, "vm", "vm", (0,))
    empty = launches.empty(peer, 2, 0, device)
    return Record(os.memfd_create("launches"), empty, OWNER)


@pytest.fixture
def own(programs: dict[bytes, list[Program]]) -> Record:
    """The record of process 0, which has launched nothing."""
    return record()


def entries(of: Record) -> list[tuple[int, int, int]]:
    return [(e.sequence, e.run_id, e.state) for e in of.read().rings[0].entries]


def in_thread(run: Any, *args: Any, name: str | None = None) -> None:
    thread = threading.Thread(target=run, args=args, name=name)
    thread.start()
    thread.join()


def fast(of: Record, jitted: Jitted, results: Any = EVERYWHERE, size: int = -1) -> None:
    """A call with an argument of ``size`` elements; -1: of another kind."""
    of.fast(jitted, (np.ones(size),) if size >= 0 else (), {}, results)


def slow(of: Record, fingerprint: bytes, error: Exception | None = None) -> None:
    of.end(of.begin(Executable(fingerprint)), error)


def function(of: Record, *executables: bytes) -> Jitted:
    """A function with a program for each: for arguments of 0, 1, ... elements."""
    jitted = Jitted(lambda: None)
    for size, each in enumerate(executables):
        of.learn(jitted.__wrapped__, Executable(each), (np.ones(size),), {})
    return jitted
