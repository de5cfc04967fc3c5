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
from collections.abc import Callable, Mapping, Sequence
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

    def difference(
        self,
        execution: int,
        peer: int,
        theirs: int,
        has_run: Callable[[int, int], bool] = lambda process, number: False,
    ) -> Difference | None:
        """In what the programs of two executions differ, which `same` has found to differ.

        ``has_run``: whether a process is known to have made an execution of this number. None where
        it is not known what a process runs.
        """
        numbers = {process: [execution, theirs] for process in range(len(self._peers))}
        numbers |= {self._process: [execution], peer: [theirs]}
        # A process that has both programs by now may run either: its record shows which one.
        found = self._found(numbers, has_run)
        if self._process not in found or peer not in found:
            return None
        return modules.explain(self._store, found)

    def meshes(self, executions: Mapping[int, int]) -> Difference | None:
        """In what the meshes differ on which processes run a function, by what each executes.

        None where they do not, or where a process has the program of another one too: then it is
        their order that differs.
        """
        found = self._found({process: [number] for process, number in executions.items()})
        if (
            len({p.name for p in found.values()}) != 1
            or len({p.devices for p in found.values()}) < 2
        ):
            return None
        for process, own in found.items():
            known = self._published if process == self._process else self._of(process)
            keys = {program.key for near in known.values() for program in _programs(near)}
            if keys & {program.key for program in found.values()} != {own.key}:
                return None
        return modules.explain(self._store, found)

    def _found(
        self,
        numbers: Mapping[int, Sequence[int]],
        has_run: Callable[[int, int], bool] = lambda process, number: False,
    ) -> dict[int, Program]:
        """The program of each process, by the numbers of which it executes one, where it is known
        in time."""
        found: dict[int, Program] = {}
        end = time.monotonic() + _OTHERS_SECONDS
        while True:
            for process in numbers.keys() - found.keys():
                some = numbers[process]
                run = [n for n in some if has_run(process, n)] if len(some) > 1 else []
                if program := self._compiled(process, run or some):
                    found[process] = program
            if len(found) == len(numbers) or time.monotonic() > end:
                return found
            time.sleep(_POLL_SECONDS)

    def _compiled(self, process: int, numbers: Sequence[int]) -> Program | None:
        """None also where it is not known which one of two: it has both programs."""
        values = self._published if process == self._process else self._of(process)
        found = [near for number in numbers if (near := _near(values, number))]
        programs = [program for near in found for program in _programs(near)[:1]]
        return programs[0] if len({program.key for program in programs}) == 1 else None

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
