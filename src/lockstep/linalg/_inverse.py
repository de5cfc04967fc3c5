"""The inverse from a Cholesky factor, ``a^-1 = low^-H low^-1``: potri, on local rows.

Two sweeps, both in place, after Bientinesi, Gunter and van de Geijn, "Families of algorithms
related to the inversion of a symmetric positive definite matrix" (ACM TOMS 35, 2008), 1/3 n^3
multiplications and as many additions together. The first inverts the triangle (trtri), the second
multiplies the result by its adjoint (lauum). Each block of rows of the product is mirrored as soon
as it is there.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels, _sweeps, _tiles
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._tiles import adjoint, gemm


def from_factor(low: jax.Array, layout: RowMap, axes: Axes, kernels: bool = False) -> jax.Array:
    """The whole inverse in slots, from the factor in slots (what is above it is not read)."""
    if layout.devices == 1:
        half = _tiles.trsm(low[:, 0, :], jnp.eye(layout.rows, dtype=low.dtype))
        return gemm(adjoint(half), half)[:, None, :]
    half = _triangle(low, layout, axes, kernels)
    return _adjoint_times_self(half, layout, axes, kernels)


def _triangle(low: jax.Array, layout: RowMap, axes: Axes, kernels: bool) -> jax.Array:
    """``low^-1`` in place of ``low``; what is above the diagonal blocks keeps its values.

    Superstep ``s`` makes its rows of the inverse: those of the factor, solved, times the rows of
    the inverse that are there. Each device has the columns of its own slots of the first, so its
    own rows of the second, and what it makes of them is summed.
    """
    tile, size, me = layout.tile, layout.devices * layout.tile, lax.axis_index(axes)
    leave = _leave_products_by_kernel if kernels else _leave_products
    solve_right = _sweeps.right_solver(kernels)
    for s in range(layout.steps):
        top, end = s * tile, (s + 1) * tile
        block = _sweeps.diagonal_block(low, top, layout, axes)
        # The first superstep's rows have nothing left of the diagonal block.
        rows = lax.all_to_all(low[top:end, :, :top], axes, 1, 0, tiled=True)
        own = lax.dynamic_slice_in_dim(jnp.eye(size, dtype=low.dtype), me * tile, tile)
        # Adjoints: the columns of this device in the rows that are solved, then in the inverse.
        solved = solve_right(jnp.concatenate([adjoint(rows.reshape(size, top)), own]), block)
        mine = (jnp.arange(layout.devices) == me)[:, None]
        part = jnp.where(mine, adjoint(solved[top:])[:, None], 0)
        part = jnp.pad(part, ((0, 0), (0, 0), (top, 0)))
        if s:
            part = leave(part, solved[:top], low, tile=tile)
        done = lax.psum_scatter(part, axes, scatter_dimension=0, tiled=True)
        low = _tiles.put(low, done, top, 0, 0)
    return low


def _leave_products(part: jax.Array, left: jax.Array, low: jax.Array, tile: int) -> jax.Array:
    """``part``, (W, P, end), without ``left^H`` (top, W) times the first rows of a triangle.

    Of ``low`` only the blocks of ``tile`` columns at or below the diagonal are read.
    """
    top = left.shape[0]
    for first, end in _sweeps.stages(top // tile):
        columns = slice(first * tile, end * tile)
        right = low[columns.start : top, :, columns]
        step = jnp.arange(right.shape[0]) // tile
        right = jnp.where(step[:, None, None] >= step[: right.shape[2]], right, 0)
        change = gemm(adjoint(left[columns.start :]), right.reshape(right.shape[0], -1))
        left_over = part[:, :, columns] - change.reshape(-1, *right.shape[1:])
        part = _tiles.put(part, left_over, 0, 0, columns.start)
    return part


@_cpu_kernels.with_derivatives_of(_leave_products)
def _leave_products_by_kernel(
    part: jax.Array, left: jax.Array, low: jax.Array, tile: int
) -> jax.Array:
    """Tile row by tile row of the triangle, each times as many columns as it has.

    So the BLAS packs what it needs of ``left`` once, not again for each column of blocks.
    """
    size, devices, _ = part.shape

    def leave_row(row: jax.Array, part: jax.Array) -> jax.Array:
        top = row * tile
        return _cpu_kernels.subtract_products(
            Blocks(part, step_l=(0, 1, 0)),
            Blocks(left[:, None], (top, 0, 0)),
            Blocks(low, (top, 0, 0), step_l=(0, 1, 0)),
            Sizes(size, top + tile, tile, count_l=devices, adjoint_a=True),
        )

    return lax.fori_loop(0, left.shape[0] // tile, leave_row, part)


def _adjoint_times_self(y: jax.Array, layout: RowMap, axes: Axes, kernels: bool) -> jax.Array:
    """``y^H y`` for a lower triangle ``y``, in place of it.

    Rows of ``y`` from superstep ``s`` on make the rows ``s`` of the product; nothing else needs
    the rows ``s`` of ``y`` afterwards.
    """
    tile, size = layout.tile, layout.devices * layout.tile
    rows_of_product = _rows_of_product_by_kernel if kernels else _rows_of_product
    above = _above_in_block(layout, axes)
    for s in range(layout.steps):
        top, end = s * tile, (s + 1) * tile
        part = rows_of_product(y[top:, :, top:end].reshape(-1, size), y, end=end)
        rows = lax.psum_scatter(part, axes, scatter_dimension=0, tiled=True)
        mirrored = lax.all_to_all(rows, axes, 1, 0, tiled=True)[:, 0, :]
        mirrored = adjoint(mirrored).reshape(end, layout.devices, tile)
        rows = _tiles.put(rows, jnp.where(above, mirrored[top:], rows[:, :, top:]), 0, 0, top)
        y = _tiles.put(y, rows, top, 0, 0)
        y = _tiles.put(y, mirrored[:top], 0, 0, top)
    return y


def _rows_of_product(left: jax.Array, y: jax.Array, end: int) -> jax.Array:
    """``left^H y``, (W, P, end), for the last rows of ``y``, as many as ``left``, (m, W), has."""
    right = y[y.shape[0] - left.shape[0] :, :, :end]
    product = gemm(adjoint(left), right.reshape(left.shape[0], -1))
    return product.reshape(-1, *right.shape[1:])


@_cpu_kernels.with_derivatives_of(_rows_of_product)
def _rows_of_product_by_kernel(left: jax.Array, y: jax.Array, end: int) -> jax.Array:
    (m, size), (rows, devices, _) = left.shape, y.shape
    return _cpu_kernels.products(
        Blocks(jax.ShapeDtypeStruct((size, devices, end), y.dtype), step_l=(0, 1, 0)),
        Blocks(left[:, None]),
        Blocks(y, (rows - m, 0, 0), step_l=(0, 1, 0)),
        Sizes(size, end, m, count_l=devices, adjoint_a=True),
    )


def _above_in_block(layout: RowMap, axes: Axes) -> jax.Array:
    """Which elements (tile, P, tile) of a diagonal block are above its diagonal."""
    place = jnp.arange(layout.devices * layout.tile).reshape(layout.devices, layout.tile)
    return place[lax.axis_index(axes)][:, None, None] < place
