"""Whether this process launches the same programs, in the same order, as the first of each group.

Two launches are equal if they are of one module or of one executable: a process that took an array
from a checkpoint may give another module to the compiler, which makes the same of it; and with
another number of cores the compiler makes another executable of one module.

Each process publishes its latest launches, and digests of all before them at fixed numbers. One
reads those of the first process that takes part in its programs: that all are equal follows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.flight_recorder.format import Entry, ProcessRecord, State
from lockstep.job.kv_store import Store
from lockstep.programs.compilations import Program

_LAUNCHES = "lockstep/watch/launches"
_LATEST = 64
"""Launches of each group that are published."""
_MARK_EVERY = 64
_MARKS = 64
_MAX_GROUPS = 16
_EXECUTABLES = "executables"


class _Group:
    """The launches on one set of devices."""

    def __init__(self) -> None:
        self.latest: dict[int, int] = {}
        """Run ids by number; 0: not known which program it was."""
        self.marks: dict[int, list[str]] = {}
        """Digests of all launches below a number: of their modules, and of their executables."""
        self._digests = [hashlib.blake2b(digest_size=8) for _ in range(2)]
        self._is_whole = True
        """Whether no launch has been missed or was unknown: then the digests can be compared."""
        self._next = 0

    def add(self, entry: Entry, executable: str) -> None:
        # Sequences have 32 bits, and a job of some days has more launches.
        number = self._next + (entry.sequence - self._next + (1 << 31)) % (1 << 32) - (1 << 31)
        if number < self._next:
            return
        self._is_whole &= number == self._next and entry.run_id != 0
        self._next = number + 1
        for digest, name in zip(self._digests, (str(entry.run_id), executable), strict=True):
            digest.update(f"{name} ".encode())
        _put(self.latest, number, entry.run_id, _LATEST)
        if self._is_whole and self._next % _MARK_EVERY == 0:
            _put(self.marks, self._next, [each.hexdigest() for each in self._digests], _MARKS)

    def published(self) -> dict[str, Any]:
        return {"latest": list(self.latest.items()), "marks": list(self.marks.items())}


def _put(of: dict[int, Any], number: int, value: Any, most: int) -> None:
    of[number] = value
    if len(of) > most:
        del of[next(iter(of))]


class Launches:
    """Publishes this process's launches, and compares them."""

    def __init__(
        self,
        store: Store,
        process: int,
        owner: Mapping[int, int],
        programs: Callable[[], Mapping[int, Program]],
    ) -> None:
        """``owner``: the process of each device; ``programs``: by the run ids of launches."""
        self._store = store
        self._process = process
        self._owner = owner
        self._programs = programs
        self._executables: dict[int, str] = {}
        """What the compiler has made of each program, by the run ids of launches."""
        self._groups: dict[int, _Group] = {}
        self._written = 0
        self.where = ""
        """Where the difference is that was found: `` before the 129th launch``."""

    def differ(self, record: ProcessRecord, is_last: bool = False) -> bool:
        """Publishes what is new; whether a launch differs from one of another process.

        ``is_last``: this process has ended. Whichever of two processes ends last sees all launches
        of both, so the first of a group compares its own with those of all others, too.
        """
        [ring] = record.rings
        # What is in flight may be a guess.
        ended = [e for e in ring.entries if e.number > self._written and e.state == State.DONE]
        for entry in ended:
            group = self._groups.setdefault(entry.clique, _Group())
            group.add(entry, self._executable(entry.run_id))
        if ended:
            self._written = ended[-1].number
            some = list(self._groups.items())[-_MAX_GROUPS:]
            value = {str(clique): group.published() for clique, group in some}
            run_ids = {run_id for _, group in some for run_id in group.latest.values()}
            value[_EXECUTABLES] = {str(each): self._executable(each) for each in run_ids}
            self._store.put(f"{_LAUNCHES}/{self._process}/now", value, overwrite=True)
        return any(self._differs(*one) for one in self._partners(record, is_last).items())

    def _executable(self, run_id: int) -> str:
        """What the compiler has made of the program; the run id where that is not known."""
        if run_id not in self._executables:
            for known, program in self._programs().items():
                self._executables[known] = program.executable or str(known)
        return self._executables.get(run_id, str(run_id))

    def _partners(self, record: ProcessRecord, is_last: bool) -> dict[int, list[int]]:
        """The processes whose launches are compared, and the groups."""
        found: dict[int, list[int]] = {}
        for clique, members in record.cliques:
            processes = [self._owner[device] for device in members if device in self._owner]
            is_first = processes[:1] == [self._process]
            for process in (processes[1:] if is_last else ()) if is_first else processes[:1]:
                if clique in self._groups:
                    found.setdefault(process, []).append(clique)
        return found

    def _differs(self, process: int, cliques: list[int]) -> bool:
        theirs = self._store.values(f"{_LAUNCHES}/{process}").get("now", {})
        executables = theirs.get(_EXECUTABLES, {})
        return any(
            self._group_differs(self._groups[clique], theirs[str(clique)], executables)
            for clique in cliques
            if str(clique) in theirs
        )

    def _group_differs(
        self, own: _Group, theirs: Mapping[str, Any], executables: Mapping[str, str]
    ) -> bool:
        for number, run_id in theirs["latest"]:
            known = own.latest.get(number, 0)
            if not run_id or known in (0, run_id):
                continue
            if executables.get(str(run_id)) != self._executable(known):
                self.where = f" as their launch number {number + 1}"
                return True
        for number, digests in theirs["marks"]:
            here: list[str] = own.marks.get(number) or digests
            if all(one != other for one, other in zip(here, digests, strict=True)):
                self.where = f" before their launch number {number + 1}"
                return True
        return False
