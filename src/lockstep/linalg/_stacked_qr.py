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

from lockstep.linalg import _cholesky, _dealt_columns, _products, _sweeps
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._sweeps import Triangle
from lockstep.linalg._tiles import adjoint, gemm


class Stacked(NamedTuple):
    """The adjoints of own rows of both blocks, (P, R, R)."""

    q1: jax.Array
    q2: jax.Array


def factor(x: jax.Array, one: jax.Array, layout: RowMap, axes: Axes) -> Stacked:
    """The factorization for own rows of ``x``, as their adjoints; ``one`` is the number 1."""
    local, how = jnp.arange(layout.rows), (layout, axes, False)

    def nearer(_: jax.Array, q: Stacked) -> Stacked:
        low, _ = _cholesky.factor(gram(q.q1, layout, axes, q.q2), layout, axes, False, False)
        solved = (_dealt_columns.solve_columns(Triangle(low), x, *how) for x in q)
        return Stacked(*solved)

    zeros = jnp.broadcast_to(one - 1, x.shape).astype(x.dtype)
    identity = zeros.at[lax.axis_index(axes), local, local].set(one.astype(x.dtype))
    # A loop, because XLA compiles its body once.
    return lax.fori_loop(0, 2, nearer, Stacked(x, identity))


def gram(x: jax.Array, layout: RowMap, axes: Axes, stairs: jax.Array | None = None) -> jax.Array:
    """``y^H y`` in slots for the rows ``y`` of all devices, whose adjoints are ``x``, (P, R, R).

    With ``stairs`` the sum with theirs. It is made at and left of the diagonal blocks; further
    right it holds anything finite.
    """
    tile = layout.tile
    found = _products.unset((layout.rows, layout.devices, layout.rows), x)
    for first, end in _sweeps.stages(layout.steps):

        def step(s: jax.Array, found: jax.Array, end: int = end * tile) -> jax.Array:
            top, part = s * tile, jnp.zeros((layout.devices * tile, layout.devices, end), x.dtype)
            part = _add_products(part, _rows(x, top, tile), x)
            if stairs is not None:
                part = _add_products(part, _rows(stairs, top, tile), stairs)
            rows = lax.psum_scatter(part, axes, scatter_dimension=0, tiled=True)
            return lax.dynamic_update_slice(found, rows, (top, 0, 0))

        found = lax.fori_loop(first, end, step, found)
    return found


def _rows(x: jax.Array, top: jax.Array, tile: int) -> jax.Array:
    """The rows of a superstep, (W, c)."""
    return lax.dynamic_slice_in_dim(x, top, tile, 1).reshape(-1, x.shape[2])


def _add_products(part: jax.Array, rows: jax.Array, x: jax.Array) -> jax.Array:
    """``part``, (W, P, end), and the products of ``rows``, (W, c), with the adjoint of ``x``."""

    # A device's rows at a time, so that no copy of the size of a share is made.
    def step(p: jax.Array, part: jax.Array) -> jax.Array:
        products = gemm(rows, adjoint(x[p, : part.shape[2]]))
        return part.at[:, p].add(products)

    return lax.fori_loop(0, len(x), step, part)
