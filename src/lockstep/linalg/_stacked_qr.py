"""The QR factorization of a square matrix on top of the identity, ``[x; 1] = [q1; q2] r``.

Cholesky's, twice (Yamamoto, Nakatsukasa, Yanagisawa and Fukaya, ETNA 44, 2015), for `_qdwh`, which
bounds the condition. In the order of elimination ``q2``, the inverse of ``r``, is an upper
triangle.

Everything here runs inside `jax.shard_map`. A device has its own rows of ``x``, ``q1`` and ``q2``
as their adjoints, (P, R, R): for these it solves by itself (`_dealt_columns`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cholesky, _cpu_kernels, _dealt_columns, _products, _sweeps
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._dealt_columns import Triangle
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._tiles import adjoint, gemm


class Stacked(NamedTuple):
    """The adjoints of own rows of both blocks, (P, R, R)."""

    q1: jax.Array
    q2: jax.Array
    """Column j is zero in all supersteps before that of slot j."""


def factor(x: jax.Array, one: jax.Array, layout: RowMap, axes: Axes, kernels: bool) -> Stacked:
    """The factorization for own rows of ``x``, as their adjoints; ``one`` is the number 1."""
    local, how = jnp.arange(layout.rows), (layout, axes, kernels)

    def nearer(_: jax.Array, q: Stacked) -> Stacked:
        low, _ = _cholesky.factor(gram(q.q1, *how, q.q2), layout, axes, False, kernels)
        q1 = _dealt_columns.solve_columns(Triangle(low), q.q1, *how)
        return Stacked(q1, _dealt_columns.solve_columns(Triangle(low), q.q2, *how, staircase=True))

    zeros = jnp.broadcast_to(one - 1, x.shape).astype(x.dtype)
    identity = zeros.at[lax.axis_index(axes), local, local].set(one.astype(x.dtype))
    # A loop, because XLA compiles its body once.
    return lax.fori_loop(0, 2, nearer, Stacked(x, identity))


def gram(
    x: jax.Array, layout: RowMap, axes: Axes, kernels: bool, stairs: jax.Array | None = None
) -> jax.Array:
    """``y^H y`` in slots for the rows ``y`` of all devices, whose adjoints are ``x``, (P, R, R).

    With ``stairs`` the sum with theirs, which are zero as in `Stacked.q2`. It is made at and left
    of the diagonal blocks; further right it holds anything finite.
    """
    tile = layout.tile
    add = _add_products_by_kernel if kernels else _add_products
    found = _products.unset((layout.rows, layout.devices, layout.rows), x)
    for first, end in _sweeps.stages(layout.steps):

        def step(s: jax.Array, found: jax.Array, end: int = end * tile) -> jax.Array:
            top, part = s * tile, jnp.zeros((layout.devices * tile, layout.devices, end), x.dtype)
            part = add(part, _rows(x, top, tile), x, jnp.int32(x.shape[2]))
            if stairs is not None:
                part = add(part, _rows(stairs, top, tile), stairs, top + tile)
            rows = lax.psum_scatter(part, axes, scatter_dimension=0, tiled=True)
            return lax.dynamic_update_slice(found, rows, (top, 0, 0))

        found = lax.fori_loop(first, end, step, found)
    return found


def _rows(x: jax.Array, top: jax.Array, tile: int) -> jax.Array:
    """The rows of a superstep, (W, c)."""
    return lax.dynamic_slice_in_dim(x, top, tile, 1).reshape(-1, x.shape[2])


def _add_products(part: jax.Array, rows: jax.Array, x: jax.Array, count: jax.Array) -> jax.Array:
    """``part``, (W, P, end), and the products of ``rows``, (W, c), with the adjoint of ``x``.

    Only the first ``count`` columns of ``rows`` are not zero.
    """

    # A device's rows at a time, so that no copy of the size of a share is made.
    def step(p: jax.Array, part: jax.Array) -> jax.Array:
        products = gemm(rows, adjoint(x[p, : part.shape[2]]))
        return part.at[:, p].add(products)

    return lax.fori_loop(0, len(x), step, part)


@_cpu_kernels.with_derivatives_of(_add_products)
def _add_products_by_kernel(
    part: jax.Array, rows: jax.Array, x: jax.Array, count: jax.Array
) -> jax.Array:
    width, devices, end = part.shape
    return _cpu_kernels.subtract_products(
        Blocks(part, step_i=(0, 1, 0)),
        Blocks(-rows[:, None]),
        Blocks(x, row_axis=1, step_i=(1, 0, 0)),
        Sizes(width, end, count, count_i=devices, adjoint_b=True),
    )
