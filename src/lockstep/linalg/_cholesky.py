"""Cholesky factorization and the two triangular sweeps, on the local rows of every device.

Left-looking by supersteps (Golub and Van Loan, Matrix Computations, 4th ed., 4.2.8), over the
layout of `lockstep.linalg._layout`: the panel of superstep ``s`` is the ``W = P T`` columns of its
slots, and the rows from its own tiles on. Each panel is written once, with one product whose inner
dimension is everything to the left. Two all-gathers a superstep: the tile rows to the left
(``W`` x ``s W``), and the diagonal block (``W`` x ``W``), which every device then factors for
itself.

Everything here runs inside `jax.shard_map`. ``a`` and ``low`` have shape (R, P, R) as in `_layout`,
and a right-hand side is (R, k): the rows of this device's slots.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _tiles
from lockstep.linalg._layout import Axes, Layout
from lockstep.linalg._tiles import adjoint, gemm

STAGES = 4
"""Loops of a triangular sweep (`_stages`)."""


def factor(
    a: jax.Array, layout: Layout, axes: Axes, with_status: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The lower factor in place of the lower triangle of ``a``; what is above keeps its values.

    Lower and upper are meant in the order of elimination. Returns the factor and the status: 0, or
    the index (from 1, in that order) of the first leading minor that is not positive; the status is
    0 unless ``with_status``. From the superstep of that minor on the factor is NaN.
    """
    if layout.devices == 1:
        return _factor_alone(a, with_status)
    tile, size = layout.tile, layout.devices * layout.tile
    status = jnp.int32(0)
    for s in range(layout.steps):
        top, end = s * tile, (s + 1) * tile
        panel = a[top:, :, top:end].reshape(-1, size)
        if s:
            left = a[top:, :, :top].reshape(panel.shape[0], -1)
            panel = panel - gemm(left, adjoint(gather_rows(left[:tile], axes)))
        block = gather_rows(panel[:tile], axes)
        l_block = _tiles.potrf(block)
        if with_status:
            status = _update_status(status, block, l_block, s * size)
        below = _tiles.solve_right(panel[tile:], l_block)
        mine = lax.dynamic_slice_in_dim(l_block, lax.axis_index(axes) * tile, tile)
        panel = jnp.concatenate([mine, below])
        a = a.at[top:, :, top:end].set(panel.reshape(-1, layout.devices, tile))
    return a, status


def _factor_alone(a: jax.Array, with_status: bool) -> tuple[jax.Array, jax.Array]:
    """LAPACK's own: with one device there is nothing to distribute."""
    low = _tiles.potrf(a[:, 0, :])
    status = jnp.int32(0)
    if with_status:
        status = _update_status(status, a[:, 0, :], low, 0)
    return low[:, None, :], status


def _update_status(
    status: jax.Array, block: jax.Array, l_block: jax.Array, before: int
) -> jax.Array:
    block, l_block = lax.stop_gradient((block, l_block))
    # What follows a failure is NaN, so the first failure counts.
    failed = (status == 0) & ~jnp.isfinite(l_block).all()

    def find() -> jax.Array:
        return jnp.int32(before + 1) + _tiles.first_bad_pivot(block)

    return lax.cond(failed, find, lambda: status)


def gather_rows(tile_rows: jax.Array, axes: Axes) -> jax.Array:
    return lax.all_gather(tile_rows, axes, axis=0, tiled=True)


def diagonal_block(low: jax.Array, top: int | jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    """The diagonal block whose local rows start at ``top``, on every device."""
    tile = layout.tile
    own = lax.dynamic_slice(low, (top, 0, top), (tile, layout.devices, tile))
    return gather_rows(own.reshape(tile, -1), axes)


def forward(low: jax.Array, b: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    """``low^-1 b``, row by row: what is solved is on every device, and leaves the next rows."""
    if layout.devices == 1:
        return _tiles.trsm(low[:, 0, :], b)
    return _in_columns(_forward, low, b, layout, axes)


def backward(low: jax.Array, b: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    """``low^-H b``: what is solved leaves all rows before; an all-reduce sums that a superstep."""
    if layout.devices == 1:
        return _tiles.trsm(low[:, 0, :], b, conjugate_transpose=True)
    return _in_columns(_backward, low, b, layout, axes)


def _in_columns(
    sweep: Callable[..., jax.Array], low: jax.Array, b: jax.Array, layout: Layout, axes: Axes
) -> jax.Array:
    """``sweep`` over so many columns at a time that all their rows fit in half of a share."""
    most = max(1, layout.padded // (2 * layout.devices))
    width = b.shape[1]
    if width <= most:
        return sweep(low, b, layout, axes)
    parts = -(-width // most)
    each = -(-width // parts)
    wide = jnp.pad(b, ((0, 0), (0, parts * each - width)))
    wide = wide.reshape(-1, parts, each).swapaxes(0, 1)
    done = lax.map(lambda part: sweep(low, part, layout, axes), wide)
    return done.swapaxes(0, 1).reshape(b.shape[0], -1)[:, :width]


def _stages(layout: Layout) -> list[tuple[int, int]]:
    """Supersteps (first, end) of each stage.

    The supersteps of a stage are one loop. It takes rows of the factor as long as its last one
    needs: with `STAGES` of them the products are 1 + 1 / STAGES times the least, and as many loop
    bodies are compiled, however many supersteps there are.
    """
    ends = [layout.steps * k // STAGES for k in range(STAGES + 1)]
    return [(first, end) for first, end in itertools.pairwise(ends) if first < end]


def _left_of(low: jax.Array, top: jax.Array, width: int, layout: Layout) -> jax.Array:
    """The factor in the tile rows from ``top`` on, left of their diagonal block, then zeros."""
    rows = lax.dynamic_slice(low, (top, 0, 0), (layout.tile, layout.devices, width))
    # What is above the diagonal may be anything, so it is not multiplied by zero.
    return jnp.where(jnp.arange(width) < top, rows, 0).reshape(layout.tile, -1)


def _forward(low: jax.Array, b: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    tile = layout.tile
    done = jnp.zeros((layout.devices, *b.shape), b.dtype)
    for first, end in _stages(layout):
        width = end * tile

        def step(s: jax.Array, done: jax.Array, width: int = width) -> jax.Array:
            top = s * tile
            left = _left_of(low, top, width, layout)
            rest = lax.dynamic_slice_in_dim(b, top, tile)
            rest = rest - gemm(left, done[:, :width].reshape(left.shape[1], -1))
            solved = _tiles.trsm(diagonal_block(low, top, layout, axes), gather_rows(rest, axes))
            solved = solved.reshape(layout.devices, tile, -1)
            return lax.dynamic_update_slice_in_dim(done, solved, top, 1)

        done = lax.fori_loop(first, end, step, done)
    return done[lax.axis_index(axes)]


def _backward(low: jax.Array, b: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    tile, me = layout.tile, lax.axis_index(axes)
    # What the rows of this device that are solved leave to each row of every device.
    left_over = jnp.zeros((layout.devices, *b.shape), b.dtype)
    for first, end in reversed(_stages(layout)):
        width = end * tile

        def step(
            back: jax.Array, state: tuple[jax.Array, jax.Array], width: int = width, end: int = end
        ) -> tuple[jax.Array, jax.Array]:
            b, left_over = state
            top = (end - 1 - back) * tile
            rest = lax.dynamic_slice_in_dim(left_over, top, tile, 1)
            rest = rest.at[me].add(lax.dynamic_slice_in_dim(b, top, tile))
            rest = lax.psum(rest.reshape(-1, b.shape[1]), axes)
            block = diagonal_block(low, top, layout, axes)
            solved = _tiles.trsm(block, rest, conjugate_transpose=True)
            own = lax.dynamic_slice_in_dim(solved, me * tile, tile)
            change = gemm(adjoint(_left_of(low, top, width, layout)), own)
            left_over = left_over.at[:, :width].add(-change.reshape(layout.devices, width, -1))
            return lax.dynamic_update_slice_in_dim(b, own, top, 0), left_over

        b, left_over = lax.fori_loop(0, end - first, step, (b, left_over))
    return b


def log_determinant(low: jax.Array, axes: Axes) -> jax.Array:
    """log det of the factored matrix: the logarithm of the diagonal, twice. Padding adds zero."""
    local = jnp.arange(low.shape[0])
    diagonal = low[local, lax.axis_index(axes), local].real
    return 2 * lax.psum(jnp.log(diagonal).sum(), axes)


def lower_part(low: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    """``low`` with zeros above the diagonal of the order of elimination."""
    return jnp.where(is_above(layout, axes), jnp.zeros((), low.dtype), low)


def is_above(layout: Layout, axes: Axes) -> jax.Array:
    """Which local elements, (R, P, R), are above the diagonal of the order of elimination."""
    place = elimination_order(layout)
    return place[lax.axis_index(axes)][:, None, None] < place


def elimination_order(layout: Layout) -> jax.Array:
    """Shape (P, R): when each slot is eliminated."""
    step, within = jnp.divmod(jnp.arange(layout.rows), layout.tile)
    first = jnp.arange(layout.devices)[:, None] * layout.tile
    return step * layout.tile * layout.devices + first + within
