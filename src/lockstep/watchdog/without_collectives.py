"""Programs without collectives, on devices of several processes: whether they differ.

Each process computes its own part of their results, so nothing that moves data shows a difference,
and no process waits for another one. A process may also run one that the others do not, such as a
sum of replicated values for a log. So what is compared are programs of one kind: of one function,
line and mesh, with arguments of the same shapes, which were compiled between the same two programs
with collectives. There is a difference where each of two processes has one that the other has not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from lockstep import _config, _jax_compat
from lockstep.callsites import hlo_text
from lockstep.flight_recorder.program_difference import Difference
from lockstep.job.kv_store import Store
from lockstep.programs import compilations, modules
from lockstep.programs.compilations import Program

_PREFIX = "lockstep/without-collectives"
_MAX_KINDS = 128
"""The latest that are published."""
_EAGER_LOOKS = 60
"""After so many looks without a new program each `_LATER`-th look reads what the others have."""
_LATER = 10
_NOW = "now"
_OTHERS_SECONDS = 1.5
"""How long a difference waits for the programs of all: which of two is the odd one, they show."""
_POLL_SECONDS = 0.05

Variant = tuple[str, str]
"""The digest of a program as it was lowered, and the identity of what it was compiled to."""
Kinds = Mapping[str, Mapping[int, list[Variant]]]
"""The programs of each kind, by how many programs with collectives had been compiled."""
Place = tuple[str, int]


def differing(own: Kinds, theirs: Kinds) -> Place | None:
    """The kind of programs that differ, and their place among those with collectives. Pure."""
    for kind in own.keys() & theirs.keys():
        ours, others = ([v for some in k[kind].values() for v in some] for k in (own, theirs))
        for at in own[kind].keys() & theirs[kind].keys():
            if _alone(own[kind][at], others) and _alone(theirs[kind][at], ours):
                return kind, at
    return None


def of_each(some: Mapping[int, list[Variant]]) -> dict[int, Variant]:
    """Returns, by process, the first of its programs that not all have. Pure."""
    shared = set.intersection(*map(set, some.values()))
    return {p: next((v for v in own if v not in shared), own[0]) for p, own in some.items()}


def _alone(some: list[Variant], others: list[Variant]) -> list[Variant]:
    """Returns the variants that are not among ``others``, neither as lowered nor as compiled."""
    known = {name for variant in others for name in variant}
    return [variant for variant in some if not known & set(variant)]


class Comparison:
    """Publishes what this process compiles of such programs, and compares it."""

    def __init__(
        self,
        store: Store,
        process: int,
        owner: Callable[[], Mapping[int, int]],
        has_collectives: Callable[[bytes], bool | None],
        start: int = 0,
    ) -> None:
        """``owner``: the process of each device; ``has_collectives``: of a program that is known
        by its fingerprint; ``start``: how many starts of the collectives this job had before."""
        self._store = store
        self._folder = f"{_PREFIX}/{start}"
        self._process = process
        self._owner = owner
        self._has_collectives = has_collectives
        self._with: set[str] = set()
        """The titles of programs with collectives."""
        self._kinds: dict[str, dict[int, list[Variant]]] = {}
        self._programs: dict[str, Program] = {}
        """One of each kind."""
        self._looks = 0
        self._seen: Place | None = None
        """What differed at the last look, where a process may still compile more there."""
        self._is_over = _config.current().check_programs == _config.OFF

    def difference(self, is_last: bool = False) -> Difference | None:
        """What differs, once. Raises what JAX's client does.

        ``is_last``: this process has ended. Whichever of two processes ends last sees all programs
        of both, so it compares with all others then.
        """
        made = compilations.made()
        if self._is_over:
            return None
        if sum([self._add(*one) for one in made]):
            self._looks = 0
            name = f"{self._folder}/{self._process}/{_NOW}"
            self._store.put(name, self._published(), overwrite=True)
        self._looks += 1
        if not self._kinds or (not is_last and self._looks > _EAGER_LOOKS and self._looks % _LATER):
            return None
        seen, self._seen = self._seen, None
        for count, theirs in self._others(is_last).values():
            if found := differing(self._kinds, theirs):
                is_past = is_last or min(count, len(self._with)) > found[1]
                if is_past or found == seen:
                    self._is_over = True
                    return self._explain(*found)
                self._seen = found
        return None

    def _add(self, program: Program, executable: Any) -> bool:
        """Whether it has none, and was not known."""
        if self._has_collectives(executable.fingerprint):
            self._with.add(program.title)
            return False
        text = _jax_compat.text_of_executable(executable)
        if _jax_compat.has_collectives(text):
            self._with.add(program.title)
            return False
        given = program.name, program.at, program.devices, hlo_text.arguments(text, program.names)
        kind = hashlib.blake2b(repr(given).encode(), digest_size=8).hexdigest()
        self._programs.setdefault(kind, program)
        variants = self._kinds.setdefault(kind, {}).setdefault(len(self._with), [])
        made = compilations.identity(executable, text, program.devices)
        if is_new := (program.digest, made) not in variants:
            variants.append((program.digest, made))
        return is_new

    def _published(self) -> Any:
        kinds = list(self._kinds.items())[-_MAX_KINDS:]
        return len(self._with), [(kind, list(places.items())) for kind, places in kinds]

    def _others(self, is_last: bool) -> dict[int, tuple[int, Kinds]]:
        """What the first process of each program has published; of all, if ``is_last``."""
        if is_last:
            found = self._store.values(self._folder)
            return {int(name.partition("/")[0]): _read(value) for name, value in found.items()}
        owner = self._owner()
        first = {min(owner[d] for d in p.devices) for p in self._programs.values()}
        others = {p: self._store.values(f"{self._folder}/{p}") for p in first - {self._process}}
        return {p: _read(found[_NOW]) for p, found in others.items() if _NOW in found}

    def _explain(self, kind: str, at: int) -> Difference | None:
        owner = self._owner()
        processes = {owner[device] for device in self._programs[kind].devices}
        end = time.monotonic() + _OTHERS_SECONDS
        while True:
            there = {p: kinds.get(kind, {}).get(at) for p, (_, kinds) in self._others(True).items()}
            variants = {process: some for process, some in there.items() if some}
            if variants.keys() >= processes or time.monotonic() > end:
                break
            time.sleep(_POLL_SECONDS)
        chosen = of_each(variants)
        own = dataclasses.replace(self._programs[kind], module=b"")
        found = {
            process: dataclasses.replace(own, digest=digest, executable=made)
            for process, (digest, made) in chosen.items()
        }
        return modules.explain(self._store, found)


def _read(value: Any) -> tuple[int, Kinds]:
    count, kinds = value
    read = {
        str(kind): {int(at): [(str(d), str(m)) for d, m in some] for at, some in places}
        for kind, places in kinds
    }
    return int(count), read
