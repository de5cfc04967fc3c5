"""The inverse from a Cholesky factor, ``a^-1 = low^-H low^-1``: potri, on local rows.

Two sweeps and a mirror, after Bientinesi, Gunter and van de Geijn, "Families of algorithms related
to the inversion of a symmetric positive definite matrix" (ACM TOMS 35, 2008). The first is the
forward sweep with the identity on the right, of which only the lower triangle is filled; the second
the backward sweep, of which only the lower triangle is asked for. Together 2/3 n^3 flops.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cholesky, _redistribute, _tiles
from lockstep.linalg._cholesky import gather_rows
from lockstep.linalg._layout import Axes, Layout
from lockstep.linalg._tiles import adjoint, gemm


def from_factor(low: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    """The whole inverse in slots, from the factor in slots (what is above it is not read)."""
    if layout.devices == 1:
        lower = _one_device(low[:, 0, :])[:, None, :]
    else:
        lower = _backward_lower(low, _forward_identity(low, layout, axes), layout, axes)
    above = _cholesky.is_above(layout, axes)
    return jnp.where(above, _redistribute.adjoint(lower, axes), lower)


def _one_device(low: jax.Array) -> jax.Array:
    half = _tiles.trsm(low, jnp.eye(low.shape[0], dtype=low.dtype))
    return gemm(adjoint(half), half)


def _forward_identity(low: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    """``low^-1``: superstep ``s`` fills its rows, and leaves those below it."""
    tile, me = layout.tile, lax.axis_index(axes)
    y = _own_identity(low, layout, axes)
    for s in range(layout.steps):
        top, end = s * tile, (s + 1) * tile
        width = layout.devices * tile
        inverse = _tiles.trtri(_cholesky.diagonal_block(low, s, layout, axes))
        rows = gather_rows(y[top:end, :, :end].reshape(tile, -1), axes)
        mine = lax.dynamic_slice_in_dim(inverse, me * tile, tile)
        solved = gemm(mine, rows).reshape(tile, layout.devices, end)
        y = y.at[top:end, :, :end].set(solved)
        if end < layout.rows:
            below = gemm(low[end:, :, top:end].reshape(-1, width), inverse)
            change = gemm(below, rows).reshape(-1, layout.devices, end)
            y = y.at[end:, :, :end].add(-change)
    return y


def _backward_lower(low: jax.Array, y: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    """The lower triangle of ``low^-H y``, in place of ``y``."""
    tile, me = layout.tile, lax.axis_index(axes)
    for s in reversed(range(layout.steps)):
        top, end = s * tile, (s + 1) * tile
        rows = gather_rows(y[top:end, :, :end].reshape(tile, -1), axes)
        if end < layout.rows:
            below = low[end:, :, top:end].reshape(layout.rows - end, -1)
            done = y[end:, :, :end].reshape(layout.rows - end, -1)
            rows = rows - lax.psum(gemm(adjoint(below), done), axes)
        inverse = _tiles.trtri(_cholesky.diagonal_block(low, s, layout, axes))
        mine = lax.dynamic_slice_in_dim(inverse, me * tile, tile, axis=1)
        solved = gemm(adjoint(mine), rows).reshape(tile, layout.devices, end)
        y = y.at[top:end, :, :end].set(solved)
    return y


def _own_identity(low: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    local = jnp.arange(layout.rows)
    return jnp.zeros_like(low).at[local, lax.axis_index(axes), local].set(1)
