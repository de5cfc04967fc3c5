"""How an array is cut into blocks, and which devices hold each. Pure.

A block is named by its number along each dimension.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Block = tuple[int, ...]
MAX_ALONG = 8
"""Blocks that are drawn along a side; of more, the first and the last ones."""
MAX_GRIDS = 4
"""Grids that are drawn where more than two dimensions are cut."""


@dataclass(frozen=True)
class Dimension:
    size: int
    starts: tuple[int, ...]
    """The places at which the blocks along the dimension begin."""
    axes: tuple[str, ...]
    """The axes of the mesh that cut it."""

    @property
    def blocks(self) -> int:
        return len(self.starts)

    def span(self, block: int) -> str:
        """``8:16``, as in an index."""
        stop = self.starts[block + 1] if block + 1 < self.blocks else self.size
        return f"{self.starts[block]}:{stop}"


@dataclass(frozen=True)
class ArrayLayout:
    """An array over devices."""

    dtype: str
    dimensions: tuple[Dimension, ...]
    blocks: Mapping[Block, tuple[int, ...]]
    """Block -> the ids of the devices that hold it, ascending."""
    processes: Mapping[int, int]
    """Device -> its process; empty for devices that do not exist yet."""
    mesh: str = ""
    spec: str = ""
    note: str = ""
    is_local: bool = False
    """Whether each device has an array of its own (in `jax.shard_map`): then there is no grid."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(dimension.size for dimension in self.dimensions)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of the largest block."""
        return tuple(-(-d.size // d.blocks) for d in self.dimensions)

    def shown_along(self, dimension: int | None) -> list[int | None]:
        """The blocks along a dimension that are drawn; None stands for those that are left out."""
        count = 1 if dimension is None else self.dimensions[dimension].blocks
        if count <= MAX_ALONG:
            return list(range(count))
        head = MAX_ALONG // 2
        return [*range(head), None, *range(count - MAX_ALONG + head + 1, count)]

    @property
    def copies(self) -> int:
        """How many devices hold a block."""
        return max(map(len, self.blocks.values()))

    @property
    def type(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def cut(self) -> list[int]:
        """The dimensions that have more than one block."""
        return [at for at, d in enumerate(self.dimensions) if d.blocks > 1]

    def sides(self) -> tuple[int | None, int | None]:
        """The dimensions that a grid has as rows and as columns; None: there is none.

        The last two that are cut; a single one keeps its place: the last dimension lies along the
        columns, every other one along the rows.
        """
        if len(self.cut) >= 2:
            return self.cut[-2], self.cut[-1]
        if not self.cut:
            return None, None
        only = self.cut[0]
        is_last = only == len(self.dimensions) - 1
        return (None, only) if is_last else (only, None)

    def grids(self) -> list[dict[int, int]]:
        """What is the same in all blocks of each grid: dimension -> block."""
        if self.is_local:
            return []
        outer = self.cut[:-2]
        counts = (range(self.dimensions[at].blocks) for at in outer)
        return [dict(zip(outer, each, strict=True)) for each in itertools.product(*counts)]

    def holders(self, fixed: Mapping[int, int], row: int, column: int) -> tuple[int, ...]:
        """The devices of the block in a grid."""
        rows, columns = self.sides()
        at = dict(fixed)
        at |= {rows: row} if rows is not None else {}
        at |= {columns: column} if columns is not None else {}
        return self.blocks.get(tuple(at.get(d, 0) for d in range(len(self.dimensions))), ())


def from_indices(
    shape: Sequence[int], indices: Mapping[int, Sequence[slice]]
) -> tuple[list[tuple[int, ...]], dict[Block, tuple[int, ...]]]:
    """The starts along each dimension, and the blocks, from the index of each device's part."""
    ranges = {
        device: [part.indices(size)[0] for part, size in zip(index, shape, strict=True)]
        for device, index in indices.items()
    }
    starts = [tuple(sorted({r[at] for r in ranges.values()})) for at in range(len(shape))]
    blocks: dict[Block, list[int]] = {}
    for device, begins in sorted(ranges.items()):
        block = tuple(starts[at].index(begin) for at, begin in enumerate(begins))
        blocks.setdefault(block, []).append(device)
    return starts, {block: tuple(devices) for block, devices in blocks.items()}


def from_spec(
    shape: Sequence[int],
    spec: Sequence[Sequence[str]],
    axes: Mapping[str, int],
) -> tuple[list[tuple[int, ...]], dict[Block, tuple[int, ...]]]:
    """The same for a mesh without devices: they are numbered in the order of the mesh."""
    counts = [math.prod(axes[name] for name in names) for names in spec]
    sizes = [-(-n // count) for n, count in zip(shape, counts, strict=True)]
    starts = [
        tuple(size * at for at in range(count)) for size, count in zip(sizes, counts, strict=True)
    ]
    blocks: dict[Block, list[int]] = {}
    for device, place in enumerate(itertools.product(*map(range, axes.values()))):
        at = dict(zip(axes, place, strict=True))
        block = tuple(_number(names, at, axes) for names in spec)
        blocks.setdefault(block, []).append(device)
    return starts, {block: tuple(devices) for block, devices in blocks.items()}


def _number(names: Sequence[str], at: Mapping[str, int], axes: Mapping[str, int]) -> int:
    number = 0
    for name in names:
        number = number * axes[name] + at[name]
    return number
