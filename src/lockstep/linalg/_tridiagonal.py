"""Hermitian to real tridiagonal form by Householder reflections, and the way back.

One stage, blocked, as LAPACK's ``hetrd`` (Dongarra, Sorensen and Hammarling, "Block reduction of
matrices to condensed forms", 1989), over the slots of `_layout`: a panel is one superstep. The
panel's columns are gathered once, and its reflectors are formed on every device from the same
numbers; what a column then costs is one product of the local rows with a vector, and one all-gather
of n / P numbers. The trailing matrix shrinks in `STAGES` steps, for shapes are static.

Everything runs inside `jax.shard_map`. A vector over the slots has shape (P, R).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cholesky
from lockstep.linalg._layout import Axes, Layout
from lockstep.linalg._tiles import adjoint, gemm

STAGES = 8
"""Sizes that the trailing matrix takes at most; each is compiled by itself."""

STAGE_ROWS = 256
"""Rows of the matrix that a stage has at least."""
MOST_BLOCKS = 32
"""Blocks of reflectors of the way back; each is compiled by itself."""


class Reduced(NamedTuple):
    """``a = q t q^H``. The reflector of column k is in column k of ``reflectors``, below row k."""

    diagonal: jax.Array
    """(P R,), real, in the order of elimination."""
    off_diagonal: jax.Array
    """(P R,), real; entry k couples k and k + 1, the last is zero."""
    reflectors: jax.Array
    """(R, P, R), the local rows."""
    taus: jax.Array
    """(P R,)."""


def reduce(a: jax.Array, layout: Layout, axes: Axes) -> Reduced:
    """The tridiagonal form of a Hermitian matrix of slots; both triangles are read."""
    parts = []
    stages = max(1, min(STAGES, layout.padded // STAGE_ROWS))
    stage = -(-layout.steps // stages)
    for first in range(0, layout.steps, stage):
        last = min(first + stage, layout.steps)
        top = first * layout.tile
        active = Layout.cyclic((layout.rows - top) * layout.devices, layout.devices, layout.tile)
        rest, found = _reduce_steps(a[top:, :, top:], active, last - first, axes)
        a = a.at[top:, :, top:].set(rest)
        parts.append(found)
    diagonal, off, taus = (jnp.concatenate(x) for x in zip(*parts, strict=True))
    return Reduced(diagonal, off, a, taus)


Found = tuple[jax.Array, jax.Array, jax.Array]


def _reduce_steps(a: jax.Array, layout: Layout, steps: int, axes: Axes) -> tuple[jax.Array, Found]:
    """The first ``steps`` supersteps of a trailing matrix."""
    tile, me = layout.tile, lax.axis_index(axes)
    rows = a.shape[0]
    order = _cholesky.elimination_order(layout)

    def step(a: jax.Array, s: jax.Array) -> tuple[jax.Array, Found]:
        mine = lax.dynamic_slice_in_dim(a, s * tile, tile, axis=2).reshape(rows, -1)
        panel = lax.all_gather(mine.T, axes).swapaxes(0, 1)
        v, w, found = _panel(a.reshape(rows, -1), panel, s, order, axes)
        left = jnp.concatenate([v[:, me], w[:, me]]).T
        right = jnp.concatenate([w, v]).reshape(left.shape[1], -1)
        a = a - gemm(left, right.conj()).reshape(a.shape)
        kept = v[:, me].T.reshape(rows, layout.devices, tile)
        return lax.dynamic_update_slice_in_dim(a, kept, s * tile, axis=2), found

    a, found = lax.scan(step, a, jnp.arange(steps))
    return a, jax.tree.map(jnp.ravel, found)


def _panel(
    a: jax.Array, panel: jax.Array, s: jax.Array, order: jax.Array, axes: Axes
) -> tuple[jax.Array, jax.Array, Found]:
    """Reflectors ``v`` and vectors ``w`` of one superstep, both (width, P, R), on every device.

    The trailing matrix becomes ``a - v^T w^* - w^T v^*``. ``panel`` holds its columns, (width, P,
    R), before that.
    """
    width, real = panel.shape[0], panel.real.dtype

    def column(c: jax.Array, state: tuple) -> tuple:
        v, w, diagonal, off, taus = state
        k = s * width + c
        here = order == k
        v_row, w_row = (jnp.where(here, x, 0).sum((1, 2)).conj() for x in (v, w))
        x = panel[c] - _combine(w_row, v) - _combine(v_row, w)
        u, tau, beta = _reflector(x, order, k)
        y = lax.all_gather(a @ u.ravel(), axes)
        y = y - _combine(_inner(w, u), v) - _combine(_inner(v, u), w)
        y = jnp.where(order > k, tau * y, 0)
        y = y - tau / 2 * jnp.vdot(y, u) * u
        diagonal = diagonal.at[c].set(jnp.where(here, x.real, 0).sum())
        return v.at[c].set(u), w.at[c].set(y), diagonal, off.at[c].set(beta), taus.at[c].set(tau)

    zeros = functools.partial(jnp.zeros, width)
    start = (jnp.zeros_like(panel), jnp.zeros_like(panel), zeros(real), zeros(real), zeros(a.dtype))
    v, w, *found = lax.fori_loop(0, width, column, start)
    diagonal, off, taus = found
    return v, w, (diagonal, off, taus)


def _combine(weights: jax.Array, vectors: jax.Array) -> jax.Array:
    """The sum of the vectors with these weights."""
    return (weights @ vectors.reshape(len(weights), -1)).reshape(vectors.shape[1:])


def _inner(vectors: jax.Array, u: jax.Array) -> jax.Array:
    """The inner products of the vectors with ``u``."""
    return (vectors.reshape(len(vectors), -1) @ u.ravel().conj()).conj()


def _reflector(
    x: jax.Array, order: jax.Array, k: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """u, tau, beta with ``(I - tau u u^H)^H x = beta e`` below row k; beta is real (``larfg``)."""
    alpha = jnp.where(order == k + 1, x, 0).sum()
    tail = jnp.where(order > k + 1, x, 0)
    # Scaled, so that squares of the smallest numbers are not lost.
    scale = jnp.maximum(jnp.abs(tail).max(), jnp.abs(alpha))
    scale = jnp.where(scale > 0, scale, 1)
    tail_norm = jnp.sqrt((jnp.abs(tail / scale) ** 2).sum())
    size = scale * jnp.sqrt(tail_norm**2 + jnp.abs(alpha / scale) ** 2)
    trivial = (tail_norm == 0) & (alpha.imag == 0)
    beta = jnp.where(trivial, alpha.real, jnp.where(alpha.real > 0, -size, size))
    safe = jnp.where(trivial, 1, beta)
    tau = jnp.where(trivial, 0, (safe - alpha) / safe)
    tau = jnp.where(trivial, 0, tau).astype(x.dtype)
    u = jnp.where(order == k + 1, 1, tail / jnp.where(trivial, 1, alpha - beta))
    return jnp.where(trivial, 0, u), tau, beta


def apply(reduced: Reduced, z: jax.Array, layout: Layout, axes: Axes) -> jax.Array:
    """``q z`` for local rows ``z`` of shape (R, k): blocks of reflectors, the last one first.

    A block is ``I - v t v^H`` with ``t^-1 = diag(1 / tau) + triu(v^H v, 1)`` (Joffrain et al.,
    "Accumulating Householder transformations, revisited", ACM TOMS 32, 2006).
    """
    mine = _cholesky.elimination_order(layout)[lax.axis_index(axes)]
    steps = max(-(-layout.steps // MOST_BLOCKS), -(-64 // (layout.devices * layout.tile)))
    for first in reversed(range(0, layout.steps, steps)):
        top = first * layout.tile
        end = min(first + steps, layout.steps) * layout.tile
        k = jnp.arange(top * layout.devices, end * layout.devices)
        v = _in_order(reduced.reflectors[top:, :, top:end], layout)
        v = jnp.where(mine[top:, None] > k, v, 0)  # above is what the reduction left there
        taus = reduced.taus[top * layout.devices : end * layout.devices]
        products = lax.psum(gemm(adjoint(v), jnp.concatenate([v, z[top:]], axis=1)), axes)
        width = v.shape[1]
        inverse = jnp.triu(products[:, :width], 1) + jnp.diag(1 / jnp.where(taus == 0, 1, taus))
        turned = lax.linalg.triangular_solve(
            inverse, products[:, width:], left_side=True, lower=False
        )
        z = z.at[top:].add(-gemm(v, turned))
    return z


def _in_order(columns: jax.Array, layout: Layout) -> jax.Array:
    """(rows, P, count) to (rows, P count), the columns in the order of elimination."""
    rows, devices, count = columns.shape
    tiles = columns.reshape(rows, devices, count // layout.tile, layout.tile)
    return tiles.swapaxes(1, 2).reshape(rows, -1)
