"""Which devices hold the same piece of an array, and have to hold the same values. Pure."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from lockstep._words import grouped

Index = tuple[tuple[int, int], ...]
"""Where a piece lies in its array: first and behind the last, for each dimension."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of an array that several devices hold."""

    index: Index
    processes: tuple[int, ...]
    """Those of the devices, in ascending order."""
    devices: tuple[Any, ...]
    """All that hold it, by their ids."""

    def of_process(self, process: int) -> tuple[Any, ...]:
        return tuple(d for d in self.devices if d.process_index == process)


@functools.lru_cache(maxsize=4096)
def of(sharding: Any, shape: tuple[int, ...]) -> tuple[Piece, ...]:
    """The pieces that several devices hold, in the order of their indices."""
    indices = sharding.devices_indices_map(shape)
    holders = grouped((_index(slices, shape), device) for device, slices in indices.items())
    return tuple(
        Piece(
            index,
            tuple(sorted({device.process_index for device in devices})),
            tuple(sorted(devices, key=lambda device: device.id)),
        )
        for index, devices in sorted(holders.items())
        if len(devices) > 1
    )


def _index(slices: Sequence[slice], shape: Sequence[int]) -> Index:
    return tuple(each.indices(size)[:2] for each, size in zip(slices, shape, strict=True))


def position(index: Index, flat: int) -> tuple[int, ...]:
    """Where element ``flat`` of a piece, counted in row-major order, lies in the array."""
    place = []
    for first, end in reversed(index):
        flat, rest = divmod(flat, end - first)
        place.append(first + rest)
    return tuple(reversed(place))
