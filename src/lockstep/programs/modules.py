"""The programs that processes have compiled, in JAX's key-value store: each of them once.

A difference between two programs can be explained only with both at hand, and the process that
compiled the other one may have ended or stand in a collective by then.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

from lockstep._errors import InitializationError
from lockstep.flight_recorder.program_difference import Difference
from lockstep.job.kv_store import Store
from lockstep.programs import compilations
from lockstep.programs.compilations import Program

_PREFIX = "lockstep/module"
_WRITER = "lockstep/writer-of-module"
_SHORT = 1 << 14
"""Bytes of a packed module that every process sends: the store keeps the first. Of a longer one
the process that is first to say so sends it, so that not all of a large job do."""
_WAIT_SECONDS = 3.0
_MAX_PUBLISHED = 1 << 25
"""Bytes that one process publishes at most: then differences are found and not explained."""

_published: dict[str, int] = {}
"""The size of each module that is in the store, by the digest of its program."""


def publish(store: Store) -> None:
    """Publishes what this process has compiled since the last call.

    Raises what JAX's client does.
    """
    for program in compilations.fresh():
        size = len(program.module)
        if not size or program.digest in _published:
            continue
        if sum(_published.values()) + size > _MAX_PUBLISHED:
            continue
        _published[program.digest] = size
        with contextlib.suppress(InitializationError):  # another process has compiled it too
            if size > _SHORT:
                store.put(f"{_WRITER}/{program.digest}", "")
            store.put(f"{_PREFIX}/{program.digest}", program.to_json())


def explain(store: Store, found: Mapping[int, Program]) -> Difference | None:
    """As `compilations.explain`, with the modules that the processes have published."""
    return compilations.explain({process: _whole(store, one) for process, one in found.items()})


def _whole(store: Store, program: Program) -> Program:
    if program.module:
        return program
    with contextlib.suppress(Exception):  # too long, or the service is gone
        value = store.once(f"{_PREFIX}/{program.digest}", "a program", _WAIT_SECONDS)
        return dataclasses.replace(program, module=Program.from_json(value).module)
    return program
