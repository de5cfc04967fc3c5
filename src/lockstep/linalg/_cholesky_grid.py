"""Cholesky factorization over a grid of devices, ``r`` rows by ``c`` columns, on local rows.

Left-looking by panels, as in `lockstep.linalg._cholesky`, with the distributions of Elemental
(Poulson, Marker, van de Geijn, Hammond and Romero, "Elemental: a new framework for distributed
memory dense matrix computations", ACM TOMS 39, 2013). The matrix and its factor stay in the layout
of the line, so what comes before and after is the same. Beside them each device has its part of the
factor in the layout of the grid: the rows of the slots of all devices in its row of the grid,
and of those the columns of the slots of all devices in its column. That is one share more.

A panel takes four collectives. Along the columns of the grid an all-gather of the factor's rows of
the panel, left of it; along the rows a reduce-scatter of their products with the rows below, which
leaves each device what its own rows are left; over all devices an all-gather of the diagonal block,
which every device factors; and along the rows an all-to-all of the new columns, into the layout of
the grid. A device sends ``n^2 / 2 (1 / r + 1 / c)`` numbers in the first two, ``n^2 / 2 P`` in the
last, and up to ``n`` for each column of a panel in the third.

Everything here runs inside `jax.shard_map`. ``a`` has shape (R, P, R) as in `_layout`; ``grown``,
the factor in the layout of the grid, has shape (c, R, r R): the rows of the slots ``(p, i)``, and
the columns in the order of the panels, then of the devices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels, _redistribute, _tiles
from lockstep.linalg._cholesky import potrf_by_kernel, refuse_infinite, update_status
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._layout import Axes, Grid, RowMap
from lockstep.linalg._sweeps import right_solver
from lockstep.linalg._tiles import adjoint, gemm


def factor(
    a: jax.Array,
    layout: RowMap,
    grid: Grid,
    axes: Axes,
    with_status: bool = False,
    kernels: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """The factor and its status; for the arguments see `lockstep.linalg._cholesky.factor`."""
    status, me = jnp.int32(0), lax.axis_index(axes)
    potrf = potrf_by_kernel if kernels else _tiles.potrf
    solve_right = right_solver(kernels)
    panels = grid.panels(layout)
    grown = jnp.zeros((grid.columns, layout.rows, grid.rows * panels[-1][0]), a.dtype)
    for top, end in panels:
        panel = a[top:, :, top:end]
        if top:
            panel = panel - _products(grown, top, end, grid, axes, kernels).reshape(panel.shape)
        panel = _redistribute.in_order(panel, layout.tile)
        block = _diagonal_block(panel[: end - top], layout, axes)
        l_block = potrf(block)
        if with_status:
            status = update_status(status, block, l_block, top * layout.devices)
        mine = _rows_of(l_block, me, layout)
        if end < layout.rows:
            below = solve_right(panel[end - top :], l_block)
            below = _redistribute.in_slots(below, layout)
            a = _tiles.put(a, below, end, 0, top)
            grown = _tiles.put(grown, to_grid(below, grid, axes), 0, end, grid.rows * top)
        a = _tiles.put(a, _redistribute.in_slots(mine, layout), top, 0, top)
    return refuse_infinite(a, axes), status


def _diagonal_block(rows: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """The block (W, W) of which each device has ``rows``, (t, W), in the order of elimination.

    What is above the diagonal blocks of its supersteps is not sent, but mirrored: derivatives of
    the factor read it.
    """
    tile, width = layout.tile, rows.shape[1]
    size = tile * layout.devices
    widths = range(size, width + 1, size)
    strips = [rows[k * tile : (k + 1) * tile, :wide].reshape(-1) for k, wide in enumerate(widths)]
    gathered = lax.all_gather(jnp.concatenate(strips), axes)
    found, start = [], 0
    for strip, wide in zip(strips, widths, strict=True):
        part = gathered[:, start : start + strip.size].reshape(size, wide)
        found.append(jnp.pad(part, ((0, 0), (0, width - wide))))
        start += strip.size
    block, step = jnp.concatenate(found), jnp.arange(width) // size
    return jnp.where(step[:, None] < step, adjoint(block), block)


def _products(
    grown: jax.Array, top: int, end: int, grid: Grid, axes: Axes, kernels: bool
) -> jax.Array:
    """What the columns left of a panel leave to it, in this device's rows from ``top`` on: (m, W).

    Each device makes the products of its own columns; their sum over a row of the grid is meant.
    """
    left = grown[:, top:end, : grid.rows * top]
    rows = lax.all_gather(left, axes, axis_index_groups=grid.column_groups)
    rows = rows.reshape(-1, left.shape[-1])
    make = _make_products_by_kernel if kernels else _make_products
    return lax.psum_scatter(make(grown, rows, top=top), axes, axis_index_groups=grid.row_groups)


def _make_products(grown: jax.Array, rows: jax.Array, top: int) -> jax.Array:
    """The rows of ``grown`` from ``top`` on times the adjoint of ``rows``, (W, k): (c, m, W)."""
    width, inner = rows.shape
    left = grown[:, top:, :inner]
    return gemm(left.reshape(-1, inner), adjoint(rows)).reshape(*left.shape[:2], width)


@_cpu_kernels.with_derivatives_of(_make_products)
def _make_products_by_kernel(grown: jax.Array, rows: jax.Array, top: int) -> jax.Array:
    (columns, height, _), (width, inner) = grown.shape, rows.shape
    shape = columns, height - top, width
    return _cpu_kernels.products(
        Blocks(jax.ShapeDtypeStruct(shape, grown.dtype), row_axis=1, step_i=(1, 0, 0)),
        Blocks(grown, (0, top, 0), row_axis=1, step_i=(1, 0, 0)),
        Blocks(rows[None], row_axis=1),
        Sizes(height - top, width, inner, count_i=columns, adjoint_b=True),
    )


def to_grid(below: jax.Array, grid: Grid, axes: Axes) -> jax.Array:
    """This device's rows of columns, (m, P, t), in the layout of the grid: (c, m, r t)."""
    height, _, width = below.shape
    sent = below.reshape(height, grid.rows, grid.columns, width).transpose(2, 0, 1, 3)
    sent = sent.reshape(grid.columns, height, -1)
    return lax.all_to_all(sent, axes, 0, 0, axis_index_groups=grid.row_groups, tiled=True)


def _rows_of(block: jax.Array, device: jax.Array, layout: RowMap) -> jax.Array:
    """The rows of one device, (t, W), of a diagonal block."""
    steps = block.reshape(-1, layout.devices, layout.tile, block.shape[1])
    return lax.dynamic_index_in_dim(steps, device, 1, keepdims=False).reshape(-1, block.shape[1])
