"""Cholesky factorization, on the local rows of every device.

Left-looking by supersteps (Golub and Van Loan, Matrix Computations, 4th ed., 4.2.8), over the
layout of `lockstep.linalg._layout`: the panel of superstep ``s`` is the ``W = P T`` columns of its
slots, and the rows from its own tiles on. Each panel is written once, with one product whose inner
dimension is everything to the left. Two all-gathers a superstep: the tile rows up to the diagonal
block (``W`` x ``(s + 1) W``), and that block without what is left of it (``W`` x ``W``), of which
each device has made a part. Every device then factors it for itself; with kernels, every process.

Everything here runs inside `jax.shard_map`. ``a`` and ``low`` have shape (R, P, R) as in `_layout`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels, _tiles
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._sweeps import gather_rows
from lockstep.linalg._tiles import adjoint, gemm

STRIPS = 2
"""Strips of each device in a diagonal block (`_block_to_factor`); an even number balances the work,
but an odd tile is one strip."""


def factor(
    a: jax.Array, layout: RowMap, axes: Axes, with_status: bool = False, kernels: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The lower factor in place of the lower triangle of ``a``; what is above keeps its values.

    Lower and upper are meant in the order of elimination. Returns the factor and the status: 0, or
    the index (from 1, in that order) of the first leading minor that is not positive; the status is
    0 unless ``with_status``. From the superstep of that minor on the factor is NaN; after an
    infinite pivot it is NaN in its place only.
    """
    if layout.devices == 1:
        low, status = _factor_alone(a, with_status)
        return refuse_infinite(low, axes), status
    tile, size = layout.tile, layout.devices * layout.tile
    status = jnp.int32(0)
    factor_panel = _factor_panel_by_kernel if kernels else _factor_panel
    potrf = potrf_by_kernel if kernels else _tiles.potrf
    me = lax.axis_index(axes)
    for s in range(layout.steps):
        top, end = s * tile, (s + 1) * tile
        rows = gather_rows(a[top:end, :, :end], axes)
        block = _block_to_factor(rows, layout, axes, kernels)
        l_block = potrf(block)
        if with_status:
            status = update_status(status, block, l_block, s * size)
        a = factor_panel(a, rows, l_block, me, top=top)
    return refuse_infinite(a, axes), status


def refuse_infinite(low: jax.Array, axes: Axes) -> jax.Array:
    """``low`` with NaN for infinite pivots, after which LAPACK goes on: solutions are NaN then."""
    local, me = jnp.arange(low.shape[0]), lax.axis_index(axes)
    pivots = low[local, me, local]
    return low.at[local, me, local].set(jnp.where(jnp.isinf(pivots.real), jnp.nan, pivots))


def _block_to_factor(rows: jax.Array, layout: RowMap, axes: Axes, kernels: bool) -> jax.Array:
    """The diagonal block at the end of ``rows``, (W, P, end), without what is left of it.

    The devices take strips of its rows, to and fro: a kernel makes only what is at or below the
    diagonal, and so all have as much to do. Nothing above the diagonal is meant to be read.
    """
    tile, devices = layout.tile, layout.devices
    top = rows.shape[2] - tile
    block = rows[:, :, top:].reshape(rows.shape[0], -1)
    if not top:
        return block
    leave = _leave_strip_by_kernel if kernels else _leave_strip
    count = STRIPS if tile % STRIPS == 0 else 1
    height, me = tile // count, lax.axis_index(axes)
    strips = []
    for k in range(count):
        first = (k * devices + (devices - 1 - me if k % 2 else me)) * height
        strip = lax.dynamic_slice_in_dim(block, first, height)
        strips.append(leave(strip, rows, first, top=top))
    found = lax.all_gather(jnp.stack(strips), axes, axis=1)
    found = [strips[::-1] if k % 2 else strips for k, strips in enumerate(found)]
    return jnp.concatenate(found).reshape(block.shape)


def _leave_strip(strip: jax.Array, rows: jax.Array, first: jax.Array, top: int) -> jax.Array:
    """``strip``, (h, W), of the diagonal block, without the products of what is left of it.

    ``rows``, (W, P, top) and more, are those of the block; the strip's begin at ``first``.
    """
    rows = rows[:, :, :top].reshape(rows.shape[0], -1)
    own = lax.dynamic_slice_in_dim(rows, first, strip.shape[0])
    return strip - gemm(own, adjoint(rows))


@_cpu_kernels.with_derivatives_of(_leave_strip)
def _leave_strip_by_kernel(
    strip: jax.Array, rows: jax.Array, first: jax.Array, top: int
) -> jax.Array:
    height = strip.shape[0]
    return _cpu_kernels.subtract_products(
        Blocks(strip[:, None]),
        Blocks(rows, (first, 0, 0), step_l=(0, 1, 0)),
        Blocks(rows, step_l=(0, 1, 0)),
        Sizes(height, first + height, top, count_l=rows.shape[1], adjoint_b=True),
    )[:, 0]


potrf_by_kernel = _cpu_kernels.with_derivatives_of(_tiles.potrf)(_cpu_kernels.potrf)


def _factor_panel(
    a: jax.Array, rows: jax.Array, l_block: jax.Array, me: jax.Array, top: int
) -> jax.Array:
    """``a`` with the factor in the columns of the superstep whose local rows start at ``top``.

    ``rows``, (W, P, top) and more, are those of the factor that these columns belong to; its
    diagonal block is ``l_block``, (W, W).
    """
    size, devices, _ = rows.shape
    end = top + size // devices
    # The rows below first: what they come from is then read before anything is written, and XLA
    # needs no copy of the matrix.
    if end < a.shape[0]:
        below = a[end:, :, top:end].reshape(-1, size)
        if top:
            left = a[end:, :, :top].reshape(below.shape[0], -1)
            below = below - gemm(left, adjoint(rows[:, :, :top].reshape(size, -1)))
        below = _tiles.solve_right(below, l_block).reshape(-1, devices, end - top)
        a = _tiles.put(a, below, end, 0, top)
    mine = lax.dynamic_slice_in_dim(l_block, me * (end - top), end - top)
    return _tiles.put(a, mine.reshape(end - top, devices, -1), top, 0, top)


@_cpu_kernels.with_derivatives_of(_factor_panel)
def _factor_panel_by_kernel(
    a: jax.Array, rows: jax.Array, l_block: jax.Array, me: jax.Array, top: int
) -> jax.Array:
    return _cpu_kernels.factor_panel(a, rows, l_block, top, me)


def _factor_alone(a: jax.Array, with_status: bool) -> tuple[jax.Array, jax.Array]:
    """LAPACK's own: with one device there is nothing to distribute."""
    low = _tiles.potrf(a[:, 0, :])
    status = jnp.int32(0)
    if with_status:
        status = update_status(status, a[:, 0, :], low, 0)
    return low[:, None, :], status


def update_status(
    status: jax.Array, block: jax.Array, l_block: jax.Array, before: int
) -> jax.Array:
    block, l_block = lax.stop_gradient((block, l_block))
    # What follows a failure is NaN, so the first failure counts.
    failed = (status == 0) & ~jnp.isfinite(l_block).all()

    def find() -> jax.Array:
        return jnp.int32(before + 1) + _tiles.first_bad_pivot(block)

    return lax.cond(failed, find, lambda: status)


def log_determinant(low: jax.Array, axes: Axes) -> jax.Array:
    """log det of the factored matrix: the logarithm of the diagonal, twice. Padding adds zero."""
    local = jnp.arange(low.shape[0])
    diagonal = low[local, lax.axis_index(axes), local].real
    return 2 * lax.psum(jnp.log(diagonal).sum(), axes)


def lower_part(low: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """``low`` with zeros above the diagonal of the order of elimination."""
    return jnp.where(is_above(layout, axes), jnp.zeros((), low.dtype), low)


def is_above(layout: RowMap, axes: Axes) -> jax.Array:
    """Which local elements, (R, P, R), are above the diagonal of the order of elimination."""
    place = jnp.asarray(layout.elimination_order)
    return place[lax.axis_index(axes)][:, None, None] < place
