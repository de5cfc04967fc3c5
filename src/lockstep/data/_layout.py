"""Which rows of a global batch lie on which process, and the global array of them. Local work only:
nothing here communicates, so any thread may do it."""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from lockstep._errors import DataError
from lockstep._words import processes

Tree = Any
"""A pytree of arrays whose first axis is that of the rows."""


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """The rows ``0 <= row < size`` of a global batch on the devices of this process."""

    size: int
    shardings: Any
    """A `NamedSharding`, or a pytree of them that is a prefix of the batch's."""
    rows_sharding: NamedSharding
    """The sharding of an array with the axis of the rows alone: the mask."""
    rows: np.ndarray
    """The rows that lie here, ascending."""
    held_twice: tuple[int, ...]
    """The processes that hold rows which another process holds too."""

    def place(self, tree: Tree) -> Tree:
        """The global arrays whose rows ``self.rows`` are ``tree``: pytree of [len(rows), ...]."""
        return jax.tree.map(
            lambda sharding, part: jax.tree.map(lambda x: self._leaf(x, sharding), part),
            self.shardings,
            tree,
        )

    def mask(self, count: int) -> jax.Array:
        """bool[size]: True for the first ``count`` rows of those that lie here."""
        return self._leaf(np.arange(len(self.rows)) < count, self.rows_sharding)

    def _leaf(self, x: Any, sharding: NamedSharding) -> jax.Array:
        x = np.asarray(x)
        shape = (self.size, *x.shape[1:])
        sharding = _without_trailing_axes(sharding, x.ndim)
        blocks = []
        for device, index in sharding.addressable_devices_indices_map(shape).items():
            assert index is not None
            start, stop, _ = index[0].indices(self.size)
            # The rows of a shard follow each other, here as in the batch.
            at = int(np.searchsorted(self.rows, start))
            block = x[at : at + stop - start][(slice(None), *index[1:])]
            # Putting an array on one local device makes no check with other processes.
            blocks.append(jax.device_put(block, device))
        return jax.make_array_from_single_device_arrays(shape, sharding, blocks)


def layout(words: str, size: int, shardings: Any) -> BatchLayout:
    """The layout of batches of ``size`` rows under ``shardings``; raises `DataError`, `TypeError`.

    ``words`` names the call of the user in errors.
    """
    leaves = jax.tree.leaves(shardings)
    for leaf in leaves:
        if not isinstance(leaf, NamedSharding):
            raise TypeError(
                f"{words}: sharding has a {type(leaf).__name__}; expected a NamedSharding, such as "
                "NamedSharding(mesh, PartitionSpec('data')), or a pytree of them."
            )
    if not leaves:
        raise TypeError(f"{words}: sharding is a pytree without a NamedSharding.")
    own = [_rows_by_process(words, size, leaf) for leaf in leaves]
    rows = [np.unique(np.concatenate([of[p] for of in own])) for p in range(jax.process_count())]
    held = np.zeros(size, np.int32)
    for part in rows:
        held[part] += 1
    twice = tuple(p for p, part in enumerate(rows) if (held[part] > 1).any())
    first = leaves[0]
    rows_sharding = NamedSharding(first.mesh, PartitionSpec(*first.spec[:1]))
    return BatchLayout(size, shardings, rows_sharding, rows[jax.process_index()], twice)


def row_parts(sharding: NamedSharding) -> int:
    """Into how many parts the sharding divides the axis of the rows."""
    axes = sharding.spec[0] if len(sharding.spec) else None
    names = axes if isinstance(axes, tuple) else (axes,) if axes is not None else ()
    return int(np.prod([sharding.mesh.shape[name] for name in names], dtype=int))


def parts_of_processes(words: str, sharding: NamedSharding) -> list[int]:
    """How many of the parts lie on each process."""
    return [len(rows) for rows in _rows_by_process(words, row_parts(sharding), sharding)]


def _rows_by_process(words: str, size: int, sharding: NamedSharding) -> list[np.ndarray]:
    parts = row_parts(sharding)
    if size % parts or not size:
        below, above = size // parts * parts, (size // parts + 1) * parts
        near = f"{below} or {above}" if below else f"{above}"
        raise DataError(
            f"{words}: batch_size is {size}, and the sharding divides the rows into {parts} parts "
            f"({sharding.spec} on a mesh of {dict(sharding.mesh.shape)}). Take a multiple of "
            f"{parts}: {near}."
        )
    over_rows = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
    intervals: list[set[tuple[int, int]]] = [set() for _ in range(jax.process_count())]
    for device, index in over_rows.devices_indices_map((size,)).items():
        assert index is not None
        start, stop, _ = index[0].indices(size)
        intervals[device.process_index].add((start, stop))
    if without := [process for process, found in enumerate(intervals) if not found]:
        raise DataError(
            f"{words}: {processes(without)} has no device in the sharding's mesh, which has those "
            f"of {len(intervals) - len(without)} of {len(intervals)} processes. Every process of "
            "the job takes part in a batch."
        )
    return [np.concatenate([np.arange(*own) for own in sorted(found)]) for found in intervals]


def _without_trailing_axes(sharding: NamedSharding, rank: int) -> NamedSharding:
    """The sharding for an array of this rank: a spec may be longer by axes that divide nothing."""
    spec = sharding.spec
    if len(spec) <= rank or any(axes is not None for axes in spec[rank:]):
        return sharding  # where it does not fit, JAX says so
    return NamedSharding(sharding.mesh, PartitionSpec(*spec[:rank]))


def as_numpy(x: Any) -> np.ndarray:
    """A copy as NumPy, also of a torch tensor of a type that NumPy lacks: bfloat16, float8."""
    try:
        return np.array(np.asarray(x))  # torch has no copying conversion
    except TypeError:
        torch = sys.modules.get("torch")
        name = str(getattr(x, "dtype", "")).removeprefix("torch.")
        if torch is None or not hasattr(ml_dtypes, name):
            raise
        kind = np.dtype(getattr(ml_dtypes, name))
        bits = x.detach().contiguous().view(torch.int16 if kind.itemsize == 2 else torch.int8)
        return np.array(np.asarray(bits)).view(kind)


def padded(block: Tree, count: int, rows: int) -> Tree:
    """The first ``count`` rows of the arrays, and zeros up to ``rows`` rows."""
    if count == rows:
        return block
    behind = (0, rows - count)
    return jax.tree.map(lambda x: np.pad(x[:count], [behind, *[(0, 0)] * (x.ndim - 1)]), block)


def leaf_name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "(the row itself)"


def checked(words: str, tree: Tree) -> Tree:
    """``tree`` with NumPy leaves of numbers; raises `DataError` for others."""

    def check(path: Any, leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)
        if not _is_held(array.dtype):
            raise DataError(
                f"{words}: {leaf_name(path)} has dtype {array.dtype}, which no device holds. Leave "
                "it out, or make numbers of it; rows of different lengths must be padded first."
            )
        return array

    return jax.tree_util.tree_map_with_path(check, tree)


@functools.cache
def _is_held(dtype: np.dtype) -> bool:
    """Whether a device can hold arrays of ``dtype``."""
    if dtype.kind != "V":
        return dtype.kind not in "OSUMm"
    try:  # structures, and the small types of ml_dtypes, not all of which jaxlib has
        jax.device_put(np.zeros(1, dtype), jax.local_devices()[0]).block_until_ready()
    except Exception:
        return False
    return True
