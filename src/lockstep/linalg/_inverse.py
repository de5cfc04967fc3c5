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

from lockstep.linalg import _cholesky, _tiles
from lockstep.linalg._layout import Axes, Layout
from lockstep.linalg._tiles import adjoint, gemm


def from_factor(low: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    """The whole inverse in slots, from the factor in slots (what is above it is not read)."""
    if layout.devices == 1:
        half = _tiles.trsm(low[:, 0, :], jnp.eye(layout.rows, dtype=low.dtype))
        return gemm(adjoint(half), half)[:, None, :]
    return _adjoint_times_self(_triangle(low, layout, axes), layout, axes)


def _triangle(low: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    """``low^-1`` in place of ``low``; what is above the diagonal blocks keeps its values.

    Superstep ``s`` solves its rows, of which each device takes the columns of its own slots, and
    leaves the rows below. What those hold left of column block ``s`` is already what the supersteps
    before left there; column block ``s`` is still that of the factor.
    """
    tile, me = layout.tile, lax.axis_index(axes)
    for s in range(layout.steps):
        top, end = s * tile, (s + 1) * tile
        inverse = _tiles.trtri(_cholesky.diagonal_block(low, top, layout, axes))
        mine = lax.dynamic_slice_in_dim(inverse, me * tile, tile, axis=1)
        if s:
            rows = lax.all_to_all(low[top:end, :, :top], axes, 1, 0, tiled=True)
            mine = jnp.concatenate([gemm(inverse, rows.reshape(-1, top)), mine], axis=1)
        solved = lax.all_gather(mine.reshape(-1, 1, end), axes, axis=1, tiled=True)
        low = low.at[top:end, :, :end].set(lax.dynamic_slice_in_dim(solved, me * tile, tile))
        if end < layout.rows:
            below = low[end:, :, top:end].reshape(layout.rows - end, -1)
            change = gemm(below, solved.reshape(solved.shape[0], -1))
            change = change.reshape(-1, layout.devices, end)
            low = low.at[end:, :, :top].add(-change[:, :, :top])
            low = low.at[end:, :, top:end].set(-change[:, :, top:])
    return low


def _adjoint_times_self(y: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    """``y^H y`` for a lower triangle ``y``, in place of it.

    Rows of ``y`` from superstep ``s`` on make the rows ``s`` of the product; nothing else needs
    the rows ``s`` of ``y`` afterwards.
    """
    tile = layout.tile
    for s in range(layout.steps):
        top, end = s * tile, (s + 1) * tile
        left = y[top:, :, top:end].reshape(layout.rows - top, -1)
        part = gemm(adjoint(left), y[top:, :, :end].reshape(left.shape[0], -1))
        rows = lax.psum_scatter(part, axes, scatter_dimension=0, tiled=True)
        rows = rows.reshape(tile, layout.devices, end)
        mirrored = lax.all_to_all(rows, axes, 1, 0, tiled=True)[:, 0, :]
        mirrored = adjoint(mirrored).reshape(end, layout.devices, tile)
        above = _above_in_block(layout, axes)
        rows = rows.at[:, :, top:].set(jnp.where(above, mirrored[top:], rows[:, :, top:]))
        y = y.at[top:end, :, :end].set(rows)
        y = y.at[:top, :, top:end].set(mirrored[:top])
    return y


def _above_in_block(layout: Layout, axes: Axes) -> jax.Array:
    """Which elements (tile, P, tile) of a diagonal block are above its diagonal."""
    place = jnp.arange(layout.devices * layout.tile).reshape(layout.devices, layout.tile)
    return place[lax.axis_index(axes)][:, None, None] < place
