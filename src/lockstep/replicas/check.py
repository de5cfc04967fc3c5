"""Compares the copies of replicated arrays: hashes first, elements only where hashes differ.

The processes that hold the arrays do this together, round by round (`exchange`), and come to the
same result, because each decides from what all have published:

1. a digest over the hashes of all pieces that the same processes hold; equal ones end the check;
2. such digests for each array;
3. the hashes of the pieces of the arrays that differ;
4. digests of the parts of the first piece that differs, until one element is left;
5. the element.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lockstep import _jax_compat
from lockstep._words import grouped
from lockstep.job import topology
from lockstep.replicas import elements, hashes, pieces
from lockstep.replicas.exchange import Exchange
from lockstep.replicas.pieces import Index, Piece
from lockstep.replicas.report import Copy, Difference

MAX_ARRAYS = 32
"""The first difference is looked for in at most so many arrays that differ."""

_Received = Mapping[int, Mapping[str, Any]]


class Plan:
    """What has to be compared of arrays with the shardings and shapes of ``arrays``.

    Every process of the members gets the same members from its own arrays, because the shardings
    name all devices.
    """

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.process = place()
        self.pieces: dict[int, tuple[Piece, ...]] = {}
        """Those of which this process has a copy, by the number of their array."""
        members: set[int] = set()
        for i, array in enumerate(arrays):
            found = pieces.of(array.sharding, array.shape)
            holders = {process for piece in found for process in piece.processes}
            if own := tuple(piece for piece in found if self.process in piece.processes):
                self.pieces[i] = own
            if len(holders) > 1:
                members |= holders
        self.members = tuple(sorted(members)) if self.process in members else (self.process,)
        """The processes that come together for these arrays."""


def place() -> int:
    """The index of this process in its job."""
    return 0 if _jax_compat.distributed_client() is None else _jax_compat.distributed_place()[0]


def _copies(array: Any) -> dict[Any, Any]:
    """What each device of this process has of an array."""
    devices = array.sharding.addressable_devices
    if len(devices) == 1 and array.is_fully_replicated:
        # JAX does not give the shards of such an array if `jax.device_put` has made it.
        return {next(iter(devices)): array.addressable_data(0)}
    return {shard.device: shard.data for shard in array.addressable_shards}


class Comparison:
    """One check. Calls at another ``position`` are not compared with this one."""

    def __init__(self, plan: Plan, arrays: Sequence[Any], position: str) -> None:
        self._plan = plan
        self._position = position
        self._data = {i: _copies(arrays[i]) for i in plan.pieces}
        self.labels: dict[int, str] = {}
        """How to name the processes that have come."""
        self.positions: dict[int, str] = {}
        """Where they have come to."""

    def run(self, exchange: Exchange | None) -> Difference | None:
        """The first difference; ``exchange``: None if this process has all that is compared."""
        self._exchange = exchange
        own = self._hashes()
        received = self._round(
            "sets",
            {
                "label": topology.this_process(self._plan.process, None, "").label,
                "position": self._position,
                "sets": self._sets(own, self._plan.pieces),
                "local": bool(self._differing_here(own)),
            },
        )
        self.labels = {process: each["label"] for process, each in received.items()}
        self.positions = {process: each["position"] for process, each in received.items()}
        received = {p: each for p, each in received.items() if each["position"] == self._position}
        if exchange is not None:
            exchange.expected = set(received)
        if not any(each["local"] for each in received.values()):
            if not _vary(each["sets"] for each in received.values()):
                return None
        return self._difference(own)

    def _round(self, name: str, value: Mapping[str, Any]) -> _Received:
        if self._exchange is None:
            return {self._plan.process: value}
        return self._exchange.round(name, value)

    def _hashes(self) -> dict[int, dict[Any, int]]:
        """The hashes of the copies of this process, by array and device."""
        together = grouped(
            (tuple(sorted(data, key=lambda d: d.id)), i) for i, data in self._data.items()
        )
        found = {}
        for devices, arrays in together.items():
            values = hashes.of([[self._data[i][d] for d in devices] for i in arrays])
            for i, own in zip(arrays, values, strict=True):
                found[i] = dict(zip(devices, own, strict=True))
        return found

    def _sets(self, own: Mapping[int, Mapping[Any, int]], arrays: Iterable[int]) -> dict[str, str]:
        """A digest over the pieces of ``arrays`` for each set of several processes that have some.

        The copy on the first device of this process stands for its others.
        """
        found: dict[str, Any] = {}
        for i in arrays:
            for piece in self._plan.pieces[i]:
                if len(piece.processes) > 1:
                    words = str(piece.processes)
                    digest = found.setdefault(words, hashlib.blake2b(digest_size=8))
                    first, *_ = piece.of_process(self._plan.process)
                    digest.update(own[i][first].to_bytes(8, "little"))
        return {words: digest.hexdigest() for words, digest in found.items()}

    def _differing_here(self, own: Mapping[int, Mapping[Any, int]]) -> list[int]:
        """The arrays of which devices of this process have different copies."""
        return [
            i
            for i, found in self._plan.pieces.items()
            if any(len({own[i][d] for d in p.of_process(self._plan.process)}) > 1 for p in found)
        ]

    def _difference(self, own: Mapping[int, Mapping[Any, int]]) -> Difference | None:
        here = self._differing_here(own)
        received = self._round(
            "arrays",
            {"arrays": {str(i): self._sets(own, [i]) for i in own}, "local": here},
        )
        local = {i for each in received.values() for i in each["local"]}
        numbers = sorted({int(i) for each in received.values() for i in each["arrays"]} | local)
        differing = [
            i
            for i in numbers
            if i in local or _vary(each["arrays"].get(str(i), {}) for each in received.values())
        ]
        compared = len(numbers)
        found = self._first_piece(own, differing[:MAX_ARRAYS])
        if found is None:
            first = differing[0] if differing else 0
            return Difference(first, others=tuple(differing[1:]), compared=compared)
        array, index, copies = found
        others = tuple(i for i in differing if i != array)
        values, at, parts = self._first_element(array, index, own)
        by_hash = [Copy(tuple(devices), *values.get(value, ("", ""))) for value, devices in copies]
        position = None if at is None else pieces.position(index, at)
        return Difference(array, tuple(by_hash), position, parts, others, compared)

    def _first_piece(
        self, own: Mapping[int, Mapping[Any, int]], arrays: Sequence[int]
    ) -> tuple[int, Index, list[tuple[int, list[tuple[int, int]]]]] | None:
        """The first piece that differs: its array, where it lies, and the devices of each hash."""
        received = self._round(
            "pieces",
            {
                str(i): [
                    [piece.index, [[d.id, own[i][d]] for d in piece.of_process(self._plan.process)]]
                    for piece in self._plan.pieces[i]
                ]
                for i in arrays
                if i in own
            },
        )
        for i in arrays:
            copies: dict[Index, dict[int, list[tuple[int, int]]]] = {}
            for process, each in received.items():
                for index, devices in each.get(str(i), []):
                    found = copies.setdefault(tuple(tuple(ends) for ends in index), {})
                    for device, value in devices:
                        found.setdefault(value, []).append((process, device))
            for index in sorted(copies):
                if len(copies[index]) > 1:
                    return i, index, sorted(copies[index].items(), key=lambda each: min(each[1]))
        return None

    def _first_element(
        self, array: int, index: Index, own: Mapping[int, Mapping[Any, int]]
    ) -> tuple[dict[int, tuple[str, str]], int | None, tuple[int, int, int]]:
        """The values by the hash of their copy, where in the piece, and `Difference.parts`."""
        read = self._read(array, index, own)
        first, end = 0, int(np.prod([b - a for a, b in index]))
        extent = (0, 0, 0)
        while True:
            value = {str(h): elements.digests(copy, first, end) for h, copy in read.items()}
            received = self._round(f"parts {first}-{end}", value)
            differing = elements.differing([d for each in received.values() for d in each.values()])
            if not differing:
                return {}, None, extent
            parts = elements.parts(first, end)
            extent = extent if any(extent) else (len(differing), len(parts), parts[0][1] - first)
            first, end = parts[differing[0]]
            if end - first == 1:
                break
        received = self._round(
            "element", {str(h): elements.shown(c, first) for h, c in read.items()}
        )
        values = {int(h): tuple(shown) for each in received.values() for h, shown in each.items()}
        return values, first, extent

    def _read(
        self, array: int, index: Index, own: Mapping[int, Mapping[Any, int]]
    ) -> dict[int, Any]:
        """The copies of a piece on this process, those with the same hash once, as NumPy arrays."""
        import jax

        found: dict[int, Any] = {}
        for piece in self._plan.pieces.get(array, ()):
            if piece.index == index:
                for device in piece.of_process(self._plan.process):
                    found.setdefault(own[array][device], device)
        return {value: jax.device_get(self._data[array][d]) for value, d in found.items()}


def _vary(values: Iterable[Mapping[str, str]]) -> bool:
    """Whether two of the mappings have different values for a key."""
    first: dict[str, str] = {}
    return any(
        first.setdefault(key, value) != value for each in values for key, value in each.items()
    )
