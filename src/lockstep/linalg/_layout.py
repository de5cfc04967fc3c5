"""Which device holds which row, and where: every index map of `lockstep.linalg`.

A matrix is spread over ``P`` devices by rows. Device ``p`` has ``R`` local rows, and local row
``i`` of device ``p`` is the *slot* ``(p, i)``. A layout is the map from slots to global rows. The
columns of a square matrix are addressed by the same slots, so the local part of one is an array
``[i, q, j]`` of shape ``(R, P, R)``: the element of the rows and columns of slots ``(p, i)`` and
``(q, j)``.

Two maps exist.

*Blocks*: the layout of a sharding, contiguous rows ``starts[p] ... starts[p] + counts[p] - 1``.
*Cyclic*: tile ``k`` of ``T`` consecutive rows is on device ``k mod P``.

Factorizations walk over *supersteps*: superstep ``s`` eliminates the slots ``(q, i)`` with
``s T <= i < (s + 1) T`` of every device, ``W = P T`` of them, in the order of ``(q, i)``. After
every superstep all devices have the same number of rows left, with both maps. With *cyclic* the
order of elimination is that of the rows, with *blocks* it is a symmetric permutation of it.
Solutions, inverses and eigenvalues do not depend on the permutation, so a matrix that is sharded by
rows needs no redistribution. A Cholesky factor, and the index of a leading minor that is not
positive, depend on the order of the rows.

Slots beyond the matrix are padding: they hold rows and columns of the identity. They are numbered
``n, n + 1, ...`` in the order of ``(p, i)``, so that a layout is always a permutation of
``0 ... P R - 1``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Axes = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Sharded:
    """How a matrix is sharded over a mesh: names of mesh axes by dimension.

    Devices are numbered in the order of the mesh axes, the last one fastest.
    """

    mesh_shape: tuple[tuple[str, int], ...]
    row_axes: Axes
    column_axes: Axes

    @classmethod
    def over(cls, mesh_shape: Mapping[str, int], row_axes: Axes, column_axes: Axes) -> Sharded:
        return cls(tuple(mesh_shape.items()), row_axes, column_axes)

    @property
    def axes(self) -> Axes:
        """Every mesh axis, in the order that numbers the devices."""
        return tuple(name for name, _ in self.mesh_shape)

    @property
    def idle_axes(self) -> Axes:
        """The axes over which the matrix is replicated."""
        return tuple(x for x in self.axes if x not in self.row_axes + self.column_axes)

    @property
    def devices(self) -> int:
        return self.size(self.axes)

    def size(self, axes: Axes) -> int:
        sizes = dict(self.mesh_shape)
        return math.prod(sizes[name] for name in axes)

    def rows_each(self, n: int) -> int:
        """The most rows a device gets when the rows of every shard are split among its holders."""
        holders = self.size(self.idle_axes + self.column_axes)
        return -(-n // self.size(self.row_axes) // holders) if n else 0

    def blocks(self, n: int) -> tuple[tuple[int, int], ...]:
        """(first row, number of rows) of each device, when every device takes rows of its own.

        A shard of rows is split among its holders: first over the axes that replicate it, then over
        those that split its columns. The last holders of a ragged shard have fewer rows, or none.
        """
        shard, each = n // self.size(self.row_axes), self.rows_each(n)
        split = self.idle_axes + self.column_axes
        found = []
        for place in np.ndindex(*(size for _, size in self.mesh_shape)):
            at = dict(zip(self.axes, place, strict=True))
            within = min(self._index(at, split) * each, shard)
            start = self._index(at, self.row_axes) * shard + within
            found.append((start, min(each, shard - within)))
        return tuple(found)

    def _index(self, place: Mapping[str, int], axes: Axes) -> int:
        sizes, index = dict(self.mesh_shape), 0
        for name in axes:
            index = index * sizes[name] + place[name]
        return index


@dataclasses.dataclass(frozen=True)
class RowMap:
    """The map between slots ``(device, local row)`` and rows of an ``n`` x ``n`` matrix.

    ``rows`` (local rows of every device, padding included) is a multiple of ``tile``. ``blocks`` is
    None for the cyclic map.
    """

    n: int
    devices: int
    tile: int
    rows: int
    blocks: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def cyclic(cls, n: int, devices: int, tile: int) -> RowMap:
        return cls(n, devices, tile, -(-n // (tile * devices)) * tile)

    @classmethod
    def in_blocks(cls, sharded: Sharded, n: int, tile: int = 1) -> RowMap:
        rows = -(-sharded.rows_each(n) // tile) * tile
        return cls(n, sharded.devices, tile, rows, sharded.blocks(n))

    @property
    def steps(self) -> int:
        """Supersteps."""
        return self.rows // self.tile

    @classmethod
    def halving(cls, sharded: Sharded, n: int, width: int) -> RowMap:
        """A power of two of supersteps, of about ``width`` rows, and padding at the end.

        Supersteps are up to four times as wide where that saves much of the padding.
        """
        each = -(-n // sharded.devices)
        width = max(min(width, max(16, n // 8)), sharded.devices)
        steps = 1 << max(0, (n // width).bit_length() - 1)
        tile = -(-each // steps)
        for _ in range(2):
            wider = -(-2 * each // steps)
            if steps > 1 and 20 * tile * steps > 21 * wider * (steps // 2):
                steps, tile = steps // 2, wider
        if tile * steps * sharded.devices == n and sharded.rows_each(n) == each:
            return cls.in_blocks(sharded, n, tile)
        return cls(n, sharded.devices, tile, tile * steps)

    def even_steps(self, most: int) -> int:
        """How many supersteps, of ``most`` at most, divide all of them evenly."""
        return max(k for k in range(1, max(1, most) + 1) if self.steps % k == 0)

    @property
    def padded(self) -> int:
        """Rows of the matrix with its padding."""
        return self.devices * self.rows

    @property
    def is_plain(self) -> bool:
        """Whether slot (p, i) is row ``p rows + i``: blocks, in order, without padding."""
        return self.blocks == tuple((p * self.rows, self.rows) for p in range(self.devices))

    @functools.cached_property
    def row_of_slot(self) -> NDArray[np.int32]:
        """Shape (devices, rows): the global row of each slot; ``n`` and more for padding."""
        local = np.arange(self.rows)
        if self.blocks is None:
            step, within = np.divmod(local, self.tile)
            first = np.arange(self.devices)[:, None] * self.tile
            table = step * self.tile * self.devices + first + within
        else:
            starts, counts = np.array(self.blocks).T[:, :, None]
            table = np.where(local < counts, starts + local, self.n)
        table[table >= self.n] = self.n + np.arange(np.count_nonzero(table >= self.n))
        return table.astype(np.int32)

    @functools.cached_property
    def elimination_order(self) -> NDArray[np.int32]:
        """Shape (devices, rows): when each slot is eliminated."""
        step, within = np.divmod(np.arange(self.rows, dtype=np.int32), self.tile)
        first = np.arange(self.devices, dtype=np.int32)[:, None] * self.tile
        return step * self.tile * self.devices + first + within

    @functools.cached_property
    def slot_of_row(self) -> NDArray[np.int32]:
        """Shape (padded,): ``device * rows + local row`` of each global row, padding included."""
        slots = np.empty(self.padded, np.int32)
        slots[self.row_of_slot.ravel()] = np.arange(self.padded)
        return slots


@dataclasses.dataclass(frozen=True)
class Grid:
    """The devices as ``rows`` x ``columns``: device ``p`` is in row ``p // columns``."""

    rows: int
    columns: int
    supersteps: int
    """The supersteps of one panel."""

    @property
    def row_groups(self) -> list[list[int]]:
        """The devices of each row."""
        return np.arange(self.rows * self.columns).reshape(self.rows, -1).tolist()

    @property
    def column_groups(self) -> list[list[int]]:
        """The devices of each column."""
        return np.arange(self.rows * self.columns).reshape(self.rows, -1).T.tolist()

    def column_of(self, slots: Any, rows: int) -> Any:
        """The column of the grid that has the columns of these slots, ``device * rows + row``."""
        return slots // rows % self.columns

    def place_of(self, slots: Any, rows: int) -> Any:
        """Which of the columns of its column of the grid each of these slots is."""
        return slots // (self.columns * rows) * rows + slots % rows

    def slots(self, rows: int) -> NDArray[np.int32]:
        """Shape (columns, rows of the grid, ``rows``): the slots ``device * rows + row`` whose
        columns each column of the grid has, in the order in which its devices have them."""
        slots = np.arange(self.rows * self.columns * rows, dtype=np.int32)
        return slots.reshape(self.rows, self.columns, rows).swapaxes(0, 1)

    def panels(self, layout: RowMap) -> list[tuple[int, int]]:
        """The first local row of each panel, and the one after its last."""
        tops = range(0, layout.rows, self.supersteps * layout.tile)
        return [*itertools.pairwise([*tops, layout.rows])]


@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """Tables of one all-to-all that takes rows from one layout to another.

    ``send[p, q, k]``: the local row of device ``p`` that is its ``k``-th for device ``q``.
    ``take[q, i]``: where, among the rows received by ``q`` (``devices * width`` of them, in the
    order of the senders), its local row ``i`` is. An index beyond the end stands for "no row".
    """

    send: NDArray[np.int32]
    take: NDArray[np.int32]

    @property
    def width(self) -> int:
        """Rows that every device sends to every other, used or not."""
        return self.send.shape[2]


def exchange(source: RowMap, target: RowMap) -> Exchange:
    """The tables from ``source`` to ``target``: layouts of the same rows over the same devices."""
    assert (source.n, source.devices) == (target.n, target.devices)
    devices, n = source.devices, source.n
    came = source.slot_of_row[:n] // max(source.rows, 1)
    goes = target.slot_of_row[:n] // max(target.rows, 1)
    # The k-th row of a pair, in the order of the rows.
    pair = came * devices + goes
    order = np.argsort(pair, kind="stable")
    counts = np.bincount(pair, minlength=devices * devices)
    kth = np.empty(n, np.int32)
    kth[order] = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    width = int(counts.max(initial=0))
    send = np.full((devices, devices, width), source.rows, np.int32)
    send[came, goes, kth] = source.slot_of_row[:n] % max(source.rows, 1)
    take = np.full((devices, target.rows), devices * width, np.int32)
    take[goes, target.slot_of_row[:n] % max(target.rows, 1)] = came * width + kth
    return Exchange(send, take)


def reordering(source: RowMap, target: RowMap) -> NDArray[np.int32]:
    """Shape (target.padded,): the slot in ``source`` of the row of each slot of ``target``. An
    index beyond the end stands for "no row"."""
    rows = target.row_of_slot.ravel()
    slots = np.append(source.slot_of_row[: source.n], np.int32(source.padded))
    return slots[np.minimum(rows, source.n)]
