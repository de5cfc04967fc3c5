"""Which columns change places when a panel of an LU factorization on a grid has found its pivots.

The ``W`` columns that won leave the matrix, from wherever they are. The places of the superstep,
``W / c`` in each column of the grid, have to be empty afterwards. What stands there and has not won
moves to a place that a winner left: in the same column of the grid as many as can, and the others
to another one. So every column of the grid keeps as many columns as the others.

All devices compute this from the same numbers; nothing is sent.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lockstep.linalg._layout import Grid

NONE = np.int32(np.iinfo(np.int32).max)
"""The slot of no column."""


class Listed(NamedTuple):
    """Columns of the matrix, by the column of the grid in which they are."""

    slots: jax.Array
    """(c, k): where they are; then `NONE`."""
    targets: jax.Array
    """(c, k): where each goes."""
    counts: jax.Array
    """(c,): how many are in each column of the grid."""

    def batch(self, start: jax.Array | int, length: int) -> tuple[jax.Array, jax.Array]:
        """``length`` columns from each column of the grid, without its first ``start``: (c,
        length) slots and targets."""
        spare = ((0, 0), (0, length))

        def some(x: jax.Array) -> jax.Array:
            padded = jnp.pad(x, spare, constant_values=NONE)
            return lax.dynamic_slice_in_dim(padded, start, length, axis=1)

        return some(self.slots), some(self.targets)


class Moves(NamedTuple):
    winners: Listed
    """The columns of the winners: a target is a number in the order of elimination."""
    within: Listed
    """Columns that stay in their column of the grid."""
    between: Listed
    """Columns that leave it."""


def find(won: jax.Array, grid: Grid, rows: int, top: int, end: int) -> Moves:
    """The moves for the slots ``won``, (W,), and the superstep of local rows ``top`` to ``end``."""
    size, count = len(won), grid.columns
    first = jnp.asarray(grid.slots(rows)[:, :, top:end].ravel())
    everything = jnp.ones(size, bool)
    order, counts = _by_column(everything, grid.column_of(won, rows), count, size)
    winners = Listed(_at(won, order), jnp.where(order < size, order, NONE), counts)
    is_loser = ~(first[:, None] == won).any(1)
    order, losing = _by_column(is_loser, grid.column_of(first, rows), count, size // count)
    losers = _at(first, order)
    is_hole = won % rows >= end
    order, free = _by_column(is_hole, grid.column_of(won, rows), count, size)
    holes = _at(won, order)
    here, nth = jnp.minimum(losing, free), jnp.arange(size)
    is_here = nth[: size // count] < here[:, None]
    holes_here = holes[:, : size // count]
    within = Listed(jnp.where(is_here, losers, NONE), jnp.where(is_here, holes_here, NONE), here)
    # What is left of both, each in the order of the columns of the grid, goes together.
    number = _before(free - here)[:, None] + nth - here[:, None]
    number = jnp.where((nth >= here[:, None]) & (holes < NONE), number, size)
    targets = jnp.full(size, NONE).at[number].set(holes, mode="drop")
    leave = losing - here
    nth = nth[: size // count]
    slots = jnp.take_along_axis(losers, jnp.minimum(nth + here[:, None], size // count - 1), 1)
    is_left = nth < leave[:, None]
    entry = jnp.where(is_left, _before(leave)[:, None] + nth, size)
    between = Listed(jnp.where(is_left, slots, NONE), _at(targets, entry), leave)
    return Moves(winners, within, between)


def _by_column(
    mask: jax.Array, column: jax.Array, count: int, most: int
) -> tuple[jax.Array, jax.Array]:
    """Which numbers with a true ``mask`` are in each column of the grid, (count, most), then a
    number beyond all; and how many are.

    By comparisons of all with all: XLA compiles a sum for that, and many operations for a sort.
    """
    number = jnp.arange(len(mask), dtype=jnp.int32)
    before = (number[:, None] > number) & mask & (column[:, None] == column)
    place = jnp.where(mask, before.sum(1), most)
    table = jnp.full((count, most), len(mask), jnp.int32)
    counts = (mask & (column == jnp.arange(count)[:, None])).sum(1)
    return table.at[column, place].set(number, mode="drop"), counts


def _before(counts: jax.Array) -> jax.Array:
    """The sum of all counts before each."""
    number = jnp.arange(len(counts))
    return jnp.where(number[:, None] > number, counts, 0).sum(1)


def _at(slots: jax.Array, entry: jax.Array) -> jax.Array:
    return jnp.append(slots, NONE)[entry]


def reordered(order: jax.Array, won: jax.Array, moves: Moves, first: jax.Array) -> jax.Array:
    """``order``, the column of ``a`` in each slot, after the moves; winners go to ``first``."""
    others = moves.within, moves.between
    sources = jnp.concatenate([won, *(x.slots.ravel() for x in others)])
    targets = jnp.concatenate([first, *(x.targets.ravel() for x in others)])
    moved = jnp.take(order, sources, mode="clip")
    return order.at[targets].set(moved, mode="drop")
