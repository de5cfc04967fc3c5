"""LU factorization with pivoting, on the local rows of every device.

``a Q = l u``: ``l`` lower triangular, ``u`` unit upper triangular, ``Q`` a permutation of columns.
It is the transpose of LAPACK's getrf (partial pivoting by rows) on the transpose of ``a``, and as
stable (Golub and Van Loan, Matrix Computations, 4th ed., 3.4). A device holds whole rows
(`lockstep.linalg._layout`), so it exchanges columns without sending anything.

Right-looking by supersteps: the panel of superstep ``s`` is its ``W = P T`` rows, right of what is
eliminated. It is gathered (the only collective of a superstep, ``W`` x ``m`` numbers, ``n^2 / 2``
a device in all), and its pivots are found in one of two ways:

- *partial pivoting*: every device (with kernels: every process) factors the whole panel;
- *tournament pivoting* (Grigori, Demmel and Xiang, "CALU: a communication optimal LU factorization
  algorithm", SIAM J. Matrix Anal. Appl. 32, 2011): each device chooses ``W`` of its own columns of
  the panel by partial pivoting, and the devices play these off in rounds.

The first costs ``n^2 W / 2`` flops on every device, so the cost model takes it for few devices.

Everything here runs inside `jax.shard_map`. ``a`` has shape (R, P, R) as in `_layout`. Columns of a
panel are numbered with the ``W`` of its superstep first (`to_panel`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lockstep.linalg import _cpu_kernels, _sweeps, _tiles, _tournament
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._tiles import gemm


class Factors(NamedTuple):
    """``a Q = l u``; ``l`` and what of ``u`` is above its diagonal are in place of ``a``."""

    slots: jax.Array
    """(R, P, R) on each device."""
    pivots: jax.Array
    """(P R,), replicated: the column slot with which the k-th eliminated one was exchanged."""
    order: jax.Array
    """(P R,), replicated: the column of ``a`` (its slot) that is in each column slot of ``a Q``."""


class Panel(NamedTuple):
    """A factored panel ``l u``, (W, m), after the exchanges of its columns."""

    packed: jax.Array
    swaps: jax.Array
    """(W,): column k was exchanged with column ``swaps[k]``, one after another, as in LAPACK."""
    permutation: jax.Array
    """(m,): the same as the former number of each column."""


def factor(
    a: jax.Array, layout: RowMap, axes: Axes, kernels: bool = False, tournament: bool = False
) -> Factors:
    """The factors in place of ``a``, and the exchanges of columns."""
    tile, devices, rows = layout.tile, layout.devices, layout.rows
    slots = np.arange(layout.padded, dtype=np.int32).reshape(devices, rows)
    order, pivots = jnp.asarray(slots), []
    find = _panel_by_tournament if tournament else _panel_by_partial_pivoting
    eliminate = _eliminate_by_kernel if kernels else _eliminate
    me = lax.axis_index(axes) if devices > 1 else jnp.int32(0)
    for s in range(layout.steps):
        top = s * tile
        panel = find(a[top : top + tile, :, top:], axes, kernels)
        pivots.append(to_panel(jnp.asarray(slots[:, top:]), tile)[panel.swaps])
        moved = to_panel(order[:, top:], tile)[panel.permutation]
        order = _tiles.put(order, from_panel(moved, devices, tile), 0, top)
        a = eliminate(a, *panel, me, top=top)
    return Factors(a, jnp.concatenate(pivots), order.ravel())


def to_panel(x: jax.Array, tile: int) -> jax.Array:
    """(..., P, m / P) to (..., m): the first ``tile`` columns of every device, then the others."""
    parts = x[..., :tile], x[..., tile:]
    return jnp.concatenate([part.reshape(*x.shape[:-2], -1) for part in parts], axis=-1)


def from_panel(x: jax.Array, devices: int, tile: int) -> jax.Array:
    """The inverse of `to_panel`."""
    size = devices * tile
    parts = [part.reshape(*x.shape[:-1], devices, -1) for part in (x[..., :size], x[..., size:])]
    return jnp.concatenate(parts, axis=-1)


def _panel_by_partial_pivoting(tiles: jax.Array, axes: Axes, kernels: bool) -> Panel:
    """The panel of which each device has ``tiles``, (T, P, m / P), factored on every device."""
    tile, devices, _ = tiles.shape
    rows = to_panel(tiles, tile)
    if devices > 1:
        rows = _sweeps.gather_rows(rows, axes)
    return Panel(*_tournament.getrf(rows, devices, kernels))


def _panel_by_tournament(tiles: jax.Array, axes: Axes, kernels: bool) -> Panel:
    """The same; each device factors the columns of its own slots.

    The pivots are those of the tournament, in the order of its last round, so the factorization of
    the panel exchanges no more columns.
    """
    tile, devices, each = tiles.shape
    own = lax.all_to_all(tiles, axes, 1, 0, tiled=True)[:, 0]  # (W, m / P)
    numbers = jnp.asarray(to_panel_numbers(devices, tile, each))
    columns, block = _tournament.play(own, numbers[lax.axis_index(axes)], axes, devices, kernels)
    trsm = _sweeps.trsm_by_kernel if kernels else _tiles.trsm
    solved = trsm(_tournament.divisible(block), own)
    rows = lax.all_gather(solved, axes, axis=1)
    swaps, permutation = exchanges(columns, devices * each)
    packed = jnp.take(to_panel(rows, tile), permutation, axis=1)
    return Panel(_tiles.put(packed, block, 0, 0), swaps, permutation)


def to_panel_numbers(devices: int, tile: int, each: int) -> np.ndarray:
    """(P, m / P): the number in the panel of each column."""
    device, column = np.indices((devices, each), np.int32)
    first = device * tile + column
    rest = devices * tile + device * (each - tile) + column - tile
    return np.where(column < tile, first, rest)


def exchanges(columns: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Exchanges, one after another, that put ``columns``, (W,), of ``count`` first, and the result.

    As `Panel.swaps` and `Panel.permutation`.
    """

    def step(k: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        swaps, which, where = state
        old, new = which[k], columns[k]
        at = where[new]
        which = which.at[k].set(new).at[at].set(old)
        where = where.at[new].set(k).at[old].set(at)
        return swaps.at[k].set(at), which, where

    every = jnp.arange(count, dtype=jnp.int32)
    swaps, which, _ = lax.fori_loop(
        0, len(columns), step, (jnp.zeros(len(columns), jnp.int32), every, every)
    )
    return swaps, which


def _eliminate(
    a: jax.Array,
    packed: jax.Array,
    swaps: jax.Array,
    permutation: jax.Array,
    me: jax.Array,
    top: int,
) -> jax.Array:
    """``a`` after the superstep whose local rows start at ``top``: its columns exchanged, its panel
    in place, and the rows below without what the panel leaves to them."""
    devices, size = a.shape[1], packed.shape[0]
    tile = size // devices
    end = top + tile
    right = jnp.take(to_panel(a[:, :, top:], tile), permutation, axis=1)
    right = _tiles.put(right, lax.dynamic_slice_in_dim(packed, me * tile, tile), top, 0)
    if end < a.shape[0]:
        below = _tiles.solve_right(right[end:, :size], _tiles.unit_lower(packed[:, :size]))
        rest = right[end:, size:] - gemm(below, packed[:, size:])
        right = _tiles.put(right, jnp.concatenate([below, rest], axis=1), end, 0)
    return _tiles.put(a, from_panel(right, devices, tile), 0, 0, top)


@_cpu_kernels.with_derivatives_of(_eliminate)
def _eliminate_by_kernel(
    a: jax.Array,
    packed: jax.Array,
    swaps: jax.Array,
    permutation: jax.Array,
    me: jax.Array,
    top: int,
) -> jax.Array:
    return _cpu_kernels.eliminate(a, packed, swaps, top, me)


def inverse_of(order: jax.Array) -> jax.Array:
    return jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))


def status(factors: Factors, layout: RowMap, axes: Axes) -> jax.Array:
    """0; or the row (from 1) of the first pivot, in the order of elimination, that is zero or not
    finite; or `DIFFERENT`."""
    pivot = diagonal(factors.slots, axes)
    place = jnp.asarray(layout.elimination_order)[device(axes)]
    failed = jnp.where(jnp.isfinite(pivot) & (pivot != 0), layout.padded, place).min()
    if layout.devices > 1:
        failed = lax.pmin(failed, axes)
    row = np.zeros(layout.padded + 1, np.int32)
    row[layout.elimination_order.ravel()] = layout.row_of_slot.ravel() + 1
    return jnp.where(agree(factors, layout, axes), jnp.asarray(row)[failed], DIFFERENT)


DIFFERENT = -1
"""The status where devices found different pivots."""


def agree(factors: Factors, layout: RowMap, axes: Axes) -> jax.Array:
    """Whether all devices exchanged the same columns.

    Each finds the pivots of a panel for itself. Processors of several kinds may round differently,
    and of two nearly equal numbers take another one.
    """
    if layout.devices == 1:
        return jnp.bool(True)
    pivots = factors.pivots
    return (lax.pmax(pivots, axes) == lax.pmin(pivots, axes)).all()


def determinant(factors: Factors, layout: RowMap, axes: Axes) -> tuple[jax.Array, jax.Array]:
    """The sign of the determinant (its phase, if complex) and the logarithm of its size."""
    pivot = diagonal(factors.slots, axes)
    size = jnp.abs(pivot)
    sign = jnp.where(size == 0, 0, pivot / jnp.where(size == 0, 1, size)).prod()
    log = jnp.log(size).sum()
    if layout.devices > 1:
        sign, log = lax.all_gather(sign, axes).prod(), lax.psum(log, axes)
    own = np.empty(layout.padded, np.int32)
    own[layout.elimination_order.ravel()] = np.arange(layout.padded)
    odd = jnp.count_nonzero(factors.pivots != own) % 2
    log = jnp.where(agree(factors, layout, axes), log, jnp.nan)
    return sign * (1 - 2 * odd).astype(sign.dtype), log


def diagonal(slots: jax.Array, axes: Axes) -> jax.Array:
    local = jnp.arange(slots.shape[0])
    return slots[local, device(axes), local]


def device(axes: Axes) -> jax.Array:
    return lax.axis_index(axes) if axes else jnp.int32(0)
