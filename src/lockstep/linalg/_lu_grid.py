"""LU factorization over a grid of devices, ``r`` rows by ``c`` columns, on local rows.

The factors are those of `lockstep.linalg._lu` by tournament pivoting, in the same layout: ``a Q =
l u`` in slots, on the line. What is left of the matrix is in the layout of the grid meanwhile, as
in `lockstep.linalg._cholesky_grid`: a device has the rows of the slots of all devices in its row of
the grid, and of those the columns of the slots of all devices in its column.

Right-looking by supersteps (ScaLAPACK's pdgetrf; Grigori, Demmel and Xiang, "CALU", SIAM J. Matrix
Anal. Appl. 32, 2011). For the panel of a superstep, ``W`` rows:

1. an all-to-all along the columns of the grid gives each device its own columns of the panel, and
   all devices play a tournament for the pivots, as on the line;
2. the columns that won leave the grid. Each device gets them for its own rows, by an all-to-all
   along the rows, and makes its rows of ``l``, which an all-gather along the rows collects;
3. columns that were not chosen, but stand where the eliminated ones belong, go where those were:
   on the same device where they can, else by an all-gather along the rows (`_column_moves`);
4. a second all-to-all of the panel gives each device its columns of ``u``; an all-gather along the
   columns collects them, and an all-to-all over all devices brings them to the line.

How many columns a column of the grid has to give is known only at run time. Steps 2 and 3 send so
many at a time, and repeat until all are where they belong: once, mostly, for random matrices.

Everything here runs inside `jax.shard_map`. ``a`` has shape (R, P, R) as in `_layout`; ``left``,
what is left of it in the layout of the grid, (c, R, r, R).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lockstep.linalg import (
    _cholesky_grid,
    _column_moves,
    _cpu_kernels,
    _lu,
    _sweeps,
    _tiles,
    _tournament,
)
from lockstep.linalg._column_moves import Listed, Moves
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._layout import Axes, Grid, RowMap
from lockstep.linalg._lu import Factors


def batches(size: int, columns: int) -> tuple[int, int]:
    """Columns that a column of the grid sends at a time, of those that won and of the others.

    Of a random matrix, each column of the grid has its share of the ``size`` winners, up to some
    standard deviations.
    """
    share = size // columns
    spread = math.ceil(3 * share**0.5)
    return min(size, share + spread), min(share, spread)


def factor(a: jax.Array, layout: RowMap, grid: Grid, axes: Axes, kernels: bool = False) -> Factors:
    """The factors in place of ``a``; for the arguments see `lockstep.linalg._lu.factor`."""
    tile, rows, devices = layout.tile, layout.rows, layout.devices
    trsm = _sweeps.trsm_by_kernel if kernels else _tiles.trsm
    solve_right = _sweeps.right_solver(kernels)
    subtract = _subtract_by_kernel if kernels else _subtract
    me, order, orders = lax.axis_index(axes), jnp.arange(layout.padded, dtype=jnp.int32), []
    place = np.arange(layout.padded, dtype=np.int32).reshape(devices, rows)
    left = _cholesky_grid.to_grid(a, grid, axes).reshape(grid.columns, rows, grid.rows, rows)
    for top in range(0, rows, tile):
        end = top + tile
        own = _own_columns(left, top, end, top, grid, axes)
        won, block = _tournament.factor_columns(
            own, jnp.asarray(place[:, top:])[me], rows, axes, devices, kernels
        )
        moves = _column_moves.find(won, grid, rows, top, end)
        first = jnp.asarray(place[:, top:end].ravel())
        order = _column_moves.reordered(order, won, moves, first)
        orders.append(order)
        mine = lax.dynamic_slice_in_dim(block, me * tile, tile).reshape(tile, devices, tile)
        a = _tiles.put(a, mine, top, 0, top)
        if end == rows:
            break
        taken = _take_in_few_rounds(left, moves.winners, end=end, grid=grid, axes=axes)
        below = solve_right(taken, _tiles.unit_lower(block))
        a = _tiles.put(a, below.reshape(rows - end, devices, tile), end, 0, top)
        left = _move_in_few_rounds(left, moves, top=top, grid=grid, axes=axes)
        own = _own_columns(left, top, end, end, grid, axes)
        right = trsm(_tournament.divisible(block), own)
        a = _tiles.put(a, _to_line(right, tile, axes), top, 0, end)
        below = lax.all_gather(below, axes, axis_index_groups=grid.row_groups)
        right = lax.all_gather(right, axes, axis=1, axis_index_groups=grid.column_groups)
        left = subtract(left, below, right, end=end)
    return Factors(_in_last_order(a, orders, tile), _exchanges(order, layout), order)


def _own_columns(
    left: jax.Array, top: int, end: int, first: int, grid: Grid, axes: Axes
) -> jax.Array:
    """The panel's rows, in the order of elimination, of the columns of this device's slots from
    ``first`` on: (W, m / P)."""
    sent = left[:, top:end, :, first:].transpose(2, 0, 1, 3)
    found = lax.all_to_all(sent, axes, 0, 0, axis_index_groups=grid.column_groups, tiled=True)
    return found.reshape(-1, found.shape[3])


def _to_line(right: jax.Array, tile: int, axes: Axes) -> jax.Array:
    """Own columns of ``u``, (W, m / P), to own rows of it, (T, P, m / P)."""
    sent = right.reshape(-1, tile, right.shape[1])
    return lax.all_to_all(sent, axes, 0, 0, tiled=True).swapaxes(0, 1)


def _take(
    left: jax.Array, winners: Listed, end: int, grid: Grid, axes: Axes, few: bool = False
) -> jax.Array:
    """The columns that won, in the order of their elimination, of this device's rows from ``end``
    on: (m, W). ``few``: in as many rounds as are needed, and not in as many as may be."""
    count, rows, _, _ = left.shape
    size, height = winners.slots.shape[1], rows - end
    length, _ = batches(size, count)
    column = lax.axis_index(axes) % count
    flat = left.reshape(count, rows, -1)

    def step(k: jax.Array, found: jax.Array) -> jax.Array:
        slots, numbers = winners.batch(k * length, length)
        sent = jnp.take(flat, grid.place_of(slots[column], rows), axis=2, mode="clip")[:, end:]
        got = lax.all_to_all(sent, axes, 0, 0, axis_index_groups=grid.row_groups, tiled=True)
        got = got.swapaxes(0, 1).reshape(height, -1)
        return found.at[:, numbers.ravel()].set(got, mode="drop")

    start = jnp.zeros((height, size), left.dtype)
    return lax.fori_loop(0, _rounds(winners, length, axes, few), step, start)


# These two are as in `lockstep.linalg._tournament`: a loop of a known number of rounds has all
# derivatives.
@_cpu_kernels.with_derivatives_of(_take)
def _take_in_few_rounds(
    left: jax.Array, winners: Listed, end: int, grid: Grid, axes: Axes
) -> jax.Array:
    return _take(left, winners, end, grid, axes, few=True)


def _rounds(listed: Listed, length: int, axes: Axes, few: bool) -> jax.Array | int:
    if few:
        return _tournament.rounds_of(listed.counts.max(), axes, length)
    return -(-listed.slots.shape[1] // length)


def _move(
    left: jax.Array, moves: Moves, top: int, grid: Grid, axes: Axes, few: bool = False
) -> jax.Array:
    """``left`` after the moves of the columns that did not win, in the rows from ``top`` on;
    ``few`` as for `_take`."""
    count, rows = grid.columns, left.shape[3]
    share = moves.winners.slots.shape[1] // count
    _, length = batches(moves.winners.slots.shape[1], count)
    column = lax.axis_index(axes) % count

    def taken(flat: jax.Array, slots: jax.Array) -> jax.Array:
        return jnp.take(flat, grid.place_of(slots[column], rows), axis=2, mode="clip")[:, top:]

    def put(flat: jax.Array, columns: jax.Array, targets: jax.Array) -> jax.Array:
        here = grid.column_of(targets, rows) == column
        places = jnp.where(
            here & (targets < count * flat.shape[2]), grid.place_of(targets, rows), flat.shape[2]
        )
        return flat.at[:, top:, places].set(columns, mode="drop")

    def step(k: jax.Array, flat: jax.Array) -> jax.Array:
        slots, targets = moves.between.batch(k * length, length)
        some = lax.all_gather(taken(flat, slots), axes, axis=2, axis_index_groups=grid.row_groups)
        return put(flat, some.reshape(*some.shape[:2], -1), targets.ravel())

    flat = left.reshape(count, rows, -1)
    slots, targets = moves.within.batch(0, share)
    flat = put(flat, taken(flat, slots), targets[column])
    rounds = _rounds(moves.between, length, axes, few)
    return lax.fori_loop(0, rounds, step, flat).reshape(left.shape)


@_cpu_kernels.with_derivatives_of(_move)
def _move_in_few_rounds(
    left: jax.Array, moves: Moves, top: int, grid: Grid, axes: Axes
) -> jax.Array:
    return _move(left, moves, top, grid, axes, few=True)


def _subtract(left: jax.Array, below: jax.Array, right: jax.Array, end: int) -> jax.Array:
    """``left`` without the products of new columns of ``l`` and rows of ``u`` from ``end`` on.

    ``below``: (c, m, W); ``right``: (W, r, m).
    """
    product = jnp.einsum("imw,wrn->imrn", below, right, precision=lax.Precision.HIGHEST)
    return _tiles.put(left, left[:, end:, :, end:] - product, 0, end, 0, end)


@_cpu_kernels.with_derivatives_of(_subtract)
def _subtract_by_kernel(left: jax.Array, below: jax.Array, right: jax.Array, end: int) -> jax.Array:
    (columns, rows, grid_rows, _), (_, height, width) = left.shape, below.shape
    return _cpu_kernels.subtract_products(
        Blocks(
            left.reshape(-1, grid_rows, rows), (end, 0, end), step_i=(rows, 0, 0), step_l=(0, 1, 0)
        ),
        Blocks(below, row_axis=1, step_i=(1, 0, 0)),
        Blocks(right, step_l=(0, 1, 0)),
        Sizes(height, height, width, count_i=columns, count_l=grid_rows),
    ).reshape(left.shape)


def _in_last_order(a: jax.Array, orders: list[jax.Array], tile: int) -> jax.Array:
    """``a`` with the rows of ``u``, each in the order of its superstep, in that of the last one."""
    rows, devices, _ = a.shape
    for s, order in enumerate(orders[:-1]):
        top, end = s * tile, (s + 1) * tile
        slots = _lu.inverse_of(order)[orders[-1].reshape(devices, rows)[:, end:].ravel()]
        places = slots // rows * (rows - end) + slots % rows - end
        right = jnp.take(a[top:end, :, end:].reshape(tile, -1), places, axis=1)
        a = _tiles.put(a, right.reshape(tile, devices, rows - end), top, 0, end)
    return a


def _exchanges(order: jax.Array, layout: RowMap) -> jax.Array:
    """`Factors.pivots` that lead to ``order``."""
    eliminated = np.empty(layout.padded, np.int32)
    eliminated[layout.elimination_order.ravel()] = np.arange(layout.padded)
    place = jnp.asarray(layout.elimination_order.ravel())
    swaps, _ = _lu.exchanges(place[order[eliminated]], layout.padded)
    return jnp.asarray(eliminated)[swaps]
