"""Local rows of a matrix over a grid of devices, and what products with them need to be sent.

On the line a device has whole rows. On a grid of ``r`` rows and ``c`` columns of devices it has the
rows of all devices in its row of the grid and, of those, every ``c``-th column. So a tall matrix
that all devices multiply with is gathered along the rows of the grid, and sums of products, which
are as wide as the columns of a device, go along its columns.

Everything here runs inside `jax.shard_map`.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg._layout import Axes, Grid


@dataclasses.dataclass(frozen=True)
class Spread:
    """``grid`` is None for the line, which is a grid with a single column."""

    grid: Grid | None
    axes: Axes

    @property
    def columns(self) -> int:
        return 1 if self.grid is None else self.grid.columns

    def take(self, rows: jax.Array) -> jax.Array:
        """Own rows, (R, k), to the rows of this row of the grid and this device's columns of them:
        (c, R, k / c), zeros at the end where c does not divide k."""
        return self._exchange(self._parted(rows).transpose(2, 0, 1))

    def give(self, parts: jax.Array, count: int) -> jax.Array:
        """The inverse of `take`: own rows, with the first ``count`` columns."""
        _, rows, each = parts.shape
        parts = self._exchange(parts).transpose(1, 2, 0)
        return parts.reshape(rows, each * self.columns)[:, :count]

    def gather(self, rows: jax.Array) -> jax.Array:
        """Own rows, (R, w), to the rows of this row of the grid: (c, R, w)."""
        if self.grid is None:
            return rows[None]
        return lax.all_gather(rows, self.axes, axis_index_groups=self.grid.row_groups)

    def own_columns(self, block: jax.Array) -> jax.Array:
        """This device's columns, in the order of `take`, of a ``block`` that all devices have."""
        if self.grid is None:
            return block
        me = lax.axis_index(self.axes) % self.columns
        return lax.dynamic_index_in_dim(self._parted(block), me, 2, keepdims=False)

    def sum(self, products: jax.Array) -> jax.Array:
        """The sum over all devices that have the same columns."""
        if self.grid is None:
            return lax.psum(products, self.axes)
        return lax.psum(products, self.axes, axis_index_groups=self.grid.column_groups)

    def _parted(self, rows: jax.Array) -> jax.Array:
        """(R, k) to (R, k / c, c)."""
        each = -(-rows.shape[1] // self.columns)
        rows = jnp.pad(rows, ((0, 0), (0, each * self.columns - rows.shape[1])))
        return rows.reshape(rows.shape[0], each, self.columns)

    def _exchange(self, parts: jax.Array) -> jax.Array:
        if self.grid is None:
            return parts
        groups = self.grid.row_groups
        return lax.all_to_all(parts, self.axes, 0, 0, axis_index_groups=groups, tiled=True)


def flat(parts: jax.Array) -> jax.Array:
    """(c, R, k) to (c R, k)."""
    return parts.reshape(parts.shape[0] * parts.shape[1], parts.shape[2])
