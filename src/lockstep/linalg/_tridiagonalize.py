"""Hermitian to real tridiagonal form by Householder reflections.

One stage, blocked, as LAPACK's ``hetrd`` (Dongarra, Sorensen and Hammarling, "Block reduction of
matrices to condensed forms", 1989), over the slots of `_layout`: a panel is one superstep. The
panel's columns are gathered once, and every device computes the reflectors from the same numbers.
Each column then needs one product of the local rows with a vector, and one collective of the size
of that vector. The trailing matrix shrinks in place: loops over chunks of it have bounds that are
known only at run time, so that all supersteps share one compiled body.

With ``kernels`` (see `_cpu_kernels`) the product reads one triangle and only that is updated; plain
JAX keeps both, since a product that reads one would have to read it twice.

Everything runs inside `jax.shard_map`. A vector over the slots has shape (P, R).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels
from lockstep.linalg._back_transformation import Reflectors
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._tiles import gemm

CHUNK = 256
"""Local rows of a chunk of the trailing matrix, at most."""


class Reduced(NamedTuple):
    """``a = q t q^H``. The reflector of column k begins below row k."""

    diagonal: jax.Array
    """(P R,), real, in the order of elimination."""
    off_diagonal: jax.Array
    """(P R,), real; entry k couples k and k + 1, the last is zero."""
    q: Reflectors


def reduce(
    a: jax.Array, layout: RowMap, axes: Axes, kernels: bool, chunked: bool = True
) -> Reduced:
    """The tridiagonal form of a Hermitian matrix of slots; both triangles are read.

    Without ``chunked`` every product and update takes all of the local rows: up to three
    times the work, but no loop with bounds of run time, each turn of which a GPU waits for.
    """
    tile, rows, me = layout.tile, layout.rows, lax.axis_index(axes)
    order = jnp.asarray(layout.elimination_order)
    chunk = tile * layout.even_steps(min(CHUNK, rows // 4) // tile) if chunked else rows

    def step(a: jax.Array, s: jax.Array) -> tuple[jax.Array, Found]:
        top = s * tile
        mine = lax.dynamic_slice_in_dim(a, top, tile, axis=2).reshape(rows, -1)
        panel = lax.all_gather(mine.T, axes).swapaxes(0, 1)

        def product(u: jax.Array) -> jax.Array:
            if kernels:
                return lax.psum(_cpu_kernels.hemv(a, u, tile, top, me), axes)
            return lax.all_gather(_rows_times(a, u, top, chunk), axes)

        v, w, found = _panel(product, panel, s, order, kernels)
        a = _update(a, v, w, me, top, chunk, lower=kernels)
        kept = v[:, me].T.reshape(rows, layout.devices, tile)
        return lax.dynamic_update_slice_in_dim(a, kept, top, axis=2), found

    a, found = lax.scan(step, a, jnp.arange(layout.steps))
    diagonal, off, taus = (x.ravel() for x in found)
    return Reduced(diagonal, off, Reflectors(a, taus))


Found = tuple[jax.Array, jax.Array, jax.Array]


def _rows_times(a: jax.Array, u: jax.Array, top: jax.Array, chunk: int) -> jax.Array:
    """The local rows, from the chunk of row ``top`` on, times a vector: (R,)."""
    rows, width = a.shape[0], u.size
    if chunk == rows:
        return a.reshape(rows, width) @ u.ravel()

    def part(i: jax.Array, y: jax.Array) -> jax.Array:
        some = lax.dynamic_slice_in_dim(a, i * chunk, chunk).reshape(chunk, width)
        return lax.dynamic_update_slice_in_dim(y, some @ u.ravel(), i * chunk, axis=0)

    return lax.fori_loop(top // chunk, rows // chunk, part, jnp.zeros(rows, a.dtype))


def _update(
    a: jax.Array, v: jax.Array, w: jax.Array, me: jax.Array, top: jax.Array, chunk: int, lower: bool
) -> jax.Array:
    """``a - v^T w^* - w^T v^*`` from local row ``top`` on, in place; ``lower``: that triangle only.

    Chunks that begin above ``top`` are left as they are there, for ``v`` and ``w`` are zero there.
    """
    left = jnp.concatenate([v[:, me], w[:, me]]).T
    right = jnp.concatenate([w, v]).conj()
    first, end = top // chunk, a.shape[0] // chunk

    def block(i: jax.Array | int, j: jax.Array | int, a: jax.Array) -> jax.Array:
        some = lax.dynamic_slice_in_dim(left, i * chunk, chunk)
        others = lax.dynamic_slice_in_dim(right, j * chunk, chunk, axis=2)
        product = gemm(some, others.reshape(left.shape[1], -1))
        at = (i * chunk, 0, j * chunk)
        here = lax.dynamic_slice(a, at, (chunk, a.shape[1], chunk))
        return lax.dynamic_update_slice(a, here - product.reshape(here.shape), at)

    if end == 1:
        return block(0, 0, a)

    def row(i: jax.Array, a: jax.Array) -> jax.Array:
        return lax.fori_loop(first, i + 1 if lower else end, functools.partial(block, i), a)

    return lax.fori_loop(first, end, row, a)


def _panel(
    product: Callable[[jax.Array], jax.Array],
    panel: jax.Array,
    s: jax.Array,
    order: jax.Array,
    kernels: bool,
) -> tuple[jax.Array, jax.Array, Found]:
    """Reflectors ``v`` and vectors ``w`` of one superstep, both (width, P, R), on every device.

    The trailing matrix becomes ``a - v^T w^* - w^T v^*``. ``panel`` holds its columns, (width, P,
    R), before that; ``product`` multiplies the trailing matrix of before with a vector.
    """
    width = panel.shape[0]

    def column(c: jax.Array, state: tuple) -> tuple:
        v, w, scalars = state
        k = s * width + c
        if kernels:
            u, here = _cpu_kernels.reflector(panel, v, w, s, c)
        else:
            u, here = _next_reflector(panel[c], v, w, order, k)
        # `v` is complete before it is read again, whose last row meets a zero row of `w`: were the
        # old one read, XLA would copy it for every column.
        v = with_row(v, u, c)
        if kernels:
            y = _cpu_kernels.correct(product(u), u, here[2], v, w, s, c)
        else:
            y = _correct(product(u), u, here[2], v, w, order, k)
        return v, with_row(w, y, c), with_row(scalars, here, c)

    start = jnp.zeros_like(panel), jnp.zeros_like(panel), jnp.zeros((width, 3), panel.dtype)
    v, w, scalars = lax.fori_loop(0, width, column, start)
    diagonal, off, taus = scalars.T
    return v, w, (diagonal.real, off.real, taus)


def _next_reflector(
    x: jax.Array, v: jax.Array, w: jax.Array, order: jax.Array, k: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The reflector of column ``x`` after those of its panel; and its diagonal, beta and tau."""
    here = order == k
    v_row, w_row = (jnp.where(here, x, 0).sum((1, 2)).conj() for x in (v, w))
    x = x - _combine(w_row, v) - _combine(v_row, w)
    u, tau, beta = _reflector(x, order, k)
    diagonal = jnp.where(here, x.real, 0).sum()
    return u, jnp.stack([diagonal.astype(x.dtype), beta.astype(x.dtype), tau])


def _correct(
    y: jax.Array,
    u: jax.Array,
    tau: jax.Array,
    v: jax.Array,
    w: jax.Array,
    order: jax.Array,
    k: jax.Array,
) -> jax.Array:
    """The vector w of column ``k`` from ``y``, the matrix before the panel times ``u``."""
    y = y - _combine(_inner(w, u), v) - _combine(_inner(v, u), w)
    y = jnp.where(order > k, tau * y, 0)
    return y - tau / 2 * jnp.vdot(y, u) * u


def with_row(rows: jax.Array, row: jax.Array, index: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(rows, row, index, axis=0)


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
