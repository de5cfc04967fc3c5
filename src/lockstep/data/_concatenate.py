"""Different numbers of rows on each process as one global array, and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from lockstep._errors import DataError
from lockstep._words import processes
from lockstep.bootstrap.initialize import process_mesh
from lockstep.data import _layout, _spec
from lockstep.data._exchange import exchange

WORDS = "lockstep.data.concatenate_rows"


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of all processes, in the order of the processes, each with its padding behind it."""

    data: Any
    """A pytree of global arrays [padded, ...], zero where padded."""
    mask: jax.Array
    """bool[padded]: True for rows, False for padding."""
    counts: tuple[int, ...]
    """How many rows each process has brought."""
    _layout: _layout.BatchLayout = dataclasses.field(repr=False)

    @property
    def length(self) -> int:
        """The true number of rows, of all processes together."""
        return sum(self.counts)

    def local(self, data: Any = None) -> Any:
        """The rows of this process as NumPy, without padding; no communication.

        Args:
          data: a pytree of global arrays that have the rows and the sharding of ``self.data``, such
            as a result for each row. Default: ``self.data``.
        """
        own = self.counts[jax.process_index()]
        return jax.tree.map(
            lambda x: _held_rows(x, self._layout)[:own], self.data if data is None else data
        )


def concatenate_rows(local: Any, sharding: NamedSharding | None = None) -> Rows:
    """One global array of different numbers of rows on each process; every process calls this.

    Only the numbers of rows are exchanged: rows stay on their process. Each process's part of the
    array has as many rows as the largest needs, and zeros in the others.

    Args:
      local: a pytree of arrays of this process, with the same number of rows (0 or more) in the
        first axis.
      sharding: divides the first axis over all processes. Default: over all devices.

    Returns:
      A `Rows` with the arrays, the mask, and the true numbers of rows.

    Raises:
      DataError: on every process, if arrays have different numbers of rows within a process, other
        shapes or dtypes on other processes, or if processes would hold the same rows.
    """
    if sharding is None:
        mesh = process_mesh()
        sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    problem, block, count = _checked(local)
    found = exchange(WORDS, [problem, count, problem or _spec.spec_of(_spec.row_of(block))])
    if wrong := [process for process, (problem, _, _) in enumerate(found) if problem]:
        raise DataError(f"{WORDS}: {processes(wrong)}: {found[wrong[0]][0]}")
    specs = [spec for _, _, spec in found]
    if other := [process for process, spec in enumerate(specs) if spec != specs[0]]:
        raise DataError(
            f"{WORDS}: the rows of {processes(other)} differ from those of process 0:\n"
            f"  process 0: {_spec.text(specs[0])}\n"
            f"  process {other[0]}: {_spec.text(specs[other[0]])}"
        )
    counts = tuple(int(count) for _, count, _ in found)
    layout = _layout_for(counts, sharding)
    padded = _layout.padded(block, count, len(layout.rows))
    return Rows(layout.place(padded), layout.mask(count), counts, layout)


def _checked(local: Any) -> tuple[str, Any, int]:
    """The problem of this process's arrays, "" without one; NumPy; the number of rows."""
    try:
        block = _layout.checked(WORDS, local)
    except DataError as error:
        return str(error).removeprefix(f"{WORDS}: "), None, 0
    rows = {x.shape[0] if x.ndim else -1 for x in jax.tree.leaves(block)}
    if len(rows) != 1 or -1 in rows:
        shapes = [x.shape for x in jax.tree.leaves(block)]
        return f"expected arrays with one number of rows in the first axis; got {shapes}", None, 0
    return "", block, rows.pop()


def _layout_for(counts: tuple[int, ...], sharding: NamedSharding) -> _layout.BatchLayout:
    """The layout with the fewest rows that hold the largest count on its process."""
    parts = _layout.row_parts(sharding)
    # A layout of one row for each part shows how many parts a process has.
    one = _layout.layout(WORDS, parts, sharding)
    if one.held_twice and jax.process_count() > 1:
        raise DataError(
            f"{WORDS}: {processes(one.held_twice)} hold the same rows under {sharding.spec}, but "
            "each brings its own. Divide the first axis over all processes."
        )
    on_each = _layout.parts_of_processes(WORDS, sharding)
    of_part = max(-(-count // own) for count, own in zip(counts, on_each, strict=True))
    return _layout.layout(WORDS, max(1, of_part) * parts, sharding)


def _held_rows(x: jax.Array, layout: _layout.BatchLayout) -> np.ndarray:
    """The rows of a global array that lie here, as [len(layout.rows), ...]."""
    if x.shape[0] != layout.size:
        raise DataError(
            f"{WORDS}: an array with {x.shape[0]} rows is not one of these {layout.size} rows."
        )
    out = np.empty((len(layout.rows), *x.shape[1:]), x.dtype)
    filled = np.zeros(len(layout.rows), bool)
    for shard in x.addressable_shards:
        start, stop, _ = shard.index[0].indices(layout.size)
        at = np.searchsorted(layout.rows, start)
        here = slice(at, at + stop - start)
        if not np.array_equal(layout.rows[here], np.arange(start, stop)):
            break  # rows of other processes are in this shard: another sharding
        out[(here, *shard.index[1:])] = np.asarray(shard.data)
        filled[here] = True
    else:
        if filled.all():
            return out
    raise DataError(
        f"{WORDS}: the rows of this process are not those that its devices hold under "
        f"{x.sharding}. Use the sharding of `Rows.data`."
    )
