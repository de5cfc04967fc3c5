"""Whether two numbers of executions belong to one program.

JAX numbers the executions of a program from a hash that covers where in the user's program it was
traced. So one program carries two numbers when one process calls it first from another line, traces
it again, or takes it from a compilation cache. The engine then asks, once for each pair of numbers;
what decides is what the processes gave to the compiler (`lockstep.programs`), and for programs that
came as executables the compiled text without all that says where it comes from.

Each process publishes digests of its programs, by their first number, in the key-value store of
JAX's coordination service: that is there with and without a launcher.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from lockstep import _config
from lockstep.callsites.hlo_metadata import Digests
from lockstep.flight_recorder.program_difference import Difference
from lockstep.job.kv_store import Store
from lockstep.job.topology import Peer
from lockstep.programs import modules
from lockstep.programs.compilations import Program

TIMEOUT_SECONDS = 5.0
"""How long the other process may take to publish; its watchdog publishes every second."""
_POLL_SECONDS = 0.02
_OTHERS_SECONDS = 1.5
"""How long a difference waits for the programs of all: which of two is the odd one, they show."""
_FIRST_EXECUTIONS = 1 << 12
"""Programs meet at their first executions; the next program's first number is far away."""
_PREFIX = "lockstep/program"
_VARY = "lockstep/programs-vary"


Published = dict[str, Any]
"""`Digests`, and under "programs" what was compiled, as `Program.to_json` without the module."""


class Comparison:
    """What this process knows of the programs of all."""

    def __init__(self, store: Store, peers: Sequence[Peer], process: int) -> None:
        self._store = store
        self._peers = peers
        self._process = process
        self._published: dict[int, Published] = {}
        self._varies = _config.current().check_programs == _config.OFF

    def publish(self, found: dict[int, Digests], programs: dict[int, list[Program]]) -> None:
        """Tells the others the programs of this process, by first number."""
        for execution, digests in found.items():
            compiled = [p.without_module().to_json() for p in programs.get(execution, ())]
            value = {**digests, "programs": compiled}
            if self._published.get(execution) != value:
                key = f"{_PREFIX}/{self._process}/{execution}"
                self._store.put(key, value, overwrite=True)
                self._published[execution] = value
        modules.publish(self._store)

    def same(self, execution: int, peer: int, theirs: int) -> bool | None:
        """Whether these executions are of one program; None when it cannot be known yet."""
        own = _near(self._published, execution)
        other = _near(self._of(peer), theirs)
        if own is None or other is None:
            return None
        both = [_programs(each) for each in (own, other)]
        compiled = [[p for p in some if not p.is_loaded] for some in both]
        if compiled[0] and compiled[1]:
            keys = [{p.key for p in some} for some in compiled]
            return bool(keys[0] & keys[1]) or _became_the_same(own, other)
        devices = [{p.devices for p in some} for some in both]
        if devices[0] and devices[1] and not devices[0] & devices[1]:
            return False
        # The compiler cuts loops by the number of cores: then only the collectives are compared.
        cores = {len(self._peers[p].cpus) for p in (self._process, peer)}
        which = "whole" if len(cores) == 1 else "collectives"
        if not (own[which] and other[which]):  # the text of one was not found
            return None
        return bool({*own[which]} & {*other[which]})

    def _of(self, peer: int) -> dict[int, Published]:
        there = self._store.values(f"{_PREFIX}/{peer}")
        return {int(execution): value for execution, value in there.items()}

    def difference(self, execution: int, peer: int, theirs: int) -> Difference | None:
        """In what the programs of two executions differ, which `same` has found to differ.

        None where it is not known what a process runs.
        """
        found: dict[int, Program] = {}
        end = time.monotonic() + _OTHERS_SECONDS
        while True:
            for process in set(range(len(self._peers))) - found.keys():
                # A process runs one of the two programs: under its number, or under another one.
                numbers = (execution, theirs) if process != peer else (theirs,)
                if program := self._compiled(process, numbers):
                    found[process] = program
            if len(found) == len(self._peers) or time.monotonic() > end:
                break
            time.sleep(_POLL_SECONDS)
        if self._process not in found or peer not in found:
            return None
        return modules.explain(self._store, found)

    def _compiled(self, process: int, numbers: Sequence[int]) -> Program | None:
        values = self._published if process == self._process else self._of(process)
        near = next(filter(None, (_near(values, number) for number in numbers)), None)
        return next(iter(_programs(near)), None) if near else None

    def note_that_programs_vary(self) -> None:
        if not self._varies:
            self._varies = True
            self._store.put(f"{_VARY}/{self._process}", True, overwrite=True)

    def programs_vary(self) -> bool:
        """Whether some process has found two numbers for one program."""
        if not self._varies:
            # When the service is gone, so is process 0 or the launcher: the job ends anyway.
            with contextlib.suppress(Exception):
                self._varies = any(self._store.values(_VARY).values())
        return self._varies


def _programs(published: Published) -> list[Program]:
    return [Program.from_json(one) for one in published["programs"]]


def _became_the_same(own: Published, other: Published) -> bool:
    """Whether the compiler made the same executable of two modules that differ.

    A custom call of another library may have a pointer in its configuration, which differs between
    processes and is no part of the compiled text that is compared.
    """
    devices = [{p.devices for p in _programs(each)} for each in (own, other)]
    return bool({*own["exact"]} & {*other["exact"]}) and bool(devices[0] & devices[1])


def _near(digests: dict[int, Published], execution: int) -> Published | None:
    """Those of the program that has this execution, one of its first."""
    after = {(execution - first) % (1 << 32): found for first, found in digests.items()}
    nearest = min(after, default=None)
    return after[nearest] if nearest is not None and nearest < _FIRST_EXECUTIONS else None


def poll(
    compare: Callable[[], bool | None], refresh: Callable[[], None], seconds: float
) -> bool | None:
    """The answer of `compare`, asked again until it is known; None when it is not in time."""
    end = time.monotonic() + seconds
    while (answer := compare()) is None and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        refresh()
    return answer
