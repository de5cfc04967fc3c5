"""The QR factorization of a square matrix on top of the identity, ``[x; 1] = [q1; q2] r``.

Cholesky's, twice (Yamamoto, Nakatsukasa, Yanagisawa and Fukaya, ETNA 44, 2015), for `_qdwh`, which
bounds the condition. In the order of elimination ``q2``, the inverse of ``r``, is an upper
triangle, and a Gram matrix is needed at and below the diagonal only. So they share one array: a
device holds two of the size of its share. Everything here runs inside `jax.shard_map`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cholesky, _sweeps
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._tiles import adjoint, gemm, solve_right

State = TypeVar("State")
Columns = tuple[jax.Array, ...]
"""Columns of blocks of rows. As one array they would be copied for their products."""


class Stacked(NamedTuple):
    """``q1`` and, in blocks of supersteps, ``q2`` and the lower triangle of a Hermitian matrix."""

    q1: jax.Array
    """(R, P, R), as in `_layout`."""
    packed: jax.Array
    """(R, P, R): above the diagonal blocks ``q2``, elsewhere the other triangle."""
    diagonal: jax.Array
    """(R, W): the local rows of the diagonal blocks of ``q2``."""

    def columns(self, s: jax.Array, layout: RowMap) -> Columns:
        """The columns of superstep ``s`` of both blocks, (R, W) each."""
        tile = layout.tile
        above = jnp.arange(layout.rows)[:, None] < s * tile
        low = jnp.where(above, columns(self.packed, s, layout), 0)
        own = lax.dynamic_slice_in_dim(self.diagonal, s * tile, tile)
        low = lax.dynamic_update_slice_in_dim(low, own, s * tile, 0)
        return columns(self.q1, s, layout), low

    def with_columns(self, found: Columns, s: jax.Array, layout: RowMap) -> Stacked:
        tile, (top, low) = layout.tile, found
        own = lax.dynamic_slice_in_dim(low, s * tile, tile)
        above = jnp.arange(layout.rows)[:, None] < s * tile
        low = jnp.where(above, low, columns(self.packed, s, layout))
        return Stacked(
            with_columns(self.q1, top, s, layout),
            with_columns(self.packed, low, s, layout),
            lax.dynamic_update_slice_in_dim(self.diagonal, own, s * tile, 0),
        )

    def rows_of_q2(self, s: jax.Array, layout: RowMap) -> jax.Array:
        """The rows of ``q2`` of superstep ``s``, (T, P R)."""
        tile = layout.tile
        right = jnp.arange(layout.rows) >= (s + 1) * tile
        rows = jnp.where(right, lax.dynamic_slice_in_dim(self.packed, s * tile, tile), 0)
        own = lax.dynamic_slice_in_dim(self.diagonal, s * tile, tile)
        own = own.reshape(tile, layout.devices, tile)
        rows = lax.dynamic_update_slice_in_dim(rows, own, s * tile, 2)
        return rows.reshape(tile, -1)


def factor(x: jax.Array, one: jax.Array, layout: RowMap, axes: Axes, kernels: bool) -> Stacked:
    """``[q1; q2]`` for the slots (R, P, R) of ``x``; ``one`` is the number 1."""
    tile, rows, me = layout.tile, layout.rows, lax.axis_index(axes)
    within = me * tile + jnp.arange(rows) % tile
    diagonal = jnp.where(jnp.arange(tile * layout.devices) == within[:, None], one, 0)

    def nearer(_: jax.Array, q: Stacked) -> Stacked:
        packed = _gram(q, layout, axes)
        low, _ = _cholesky.factor(packed, layout, axes, False, kernels)
        if layout.devices == 1:  # `low` has zeros above the diagonal.
            low = jnp.where(_is_above(jnp.arange(rows)[:, None, None], layout), packed, low)
        return times_adjoint_inverse(
            q._replace(packed=low),
            lambda q, s: q.columns(s, layout),
            lambda q, found, s: q.with_columns(found, s, layout),
            lambda q: q.packed,
            layout,
            axes,
        )

    # ``q2`` is the identity first. A loop, because XLA compiles its body once.
    zeros = jnp.broadcast_to(one - 1, x.shape).astype(x.dtype)
    start = Stacked(x, zeros, diagonal.astype(x.dtype))
    return lax.fori_loop(0, 2, nearer, start)


def _is_above(local: jax.Array, layout: RowMap) -> jax.Array:
    """Which columns of these local rows are right of their diagonal block."""
    return jnp.arange(layout.rows) // layout.tile > local // layout.tile


def _gram(q: Stacked, layout: RowMap, axes: Axes) -> jax.Array:
    """``packed`` with ``q1^H q1 + q2^H q2`` at and left of the diagonal blocks."""
    tile, devices = layout.tile, layout.devices

    def step(s: jax.Array, packed: jax.Array) -> jax.Array:
        now = q._replace(packed=packed)
        own = now.columns(s, layout)

        def left(j: jax.Array, rows: jax.Array) -> jax.Array:
            pairs = zip(own, now.columns(j, layout), strict=True)
            found = sum(gemm(adjoint(mine), theirs) for mine, theirs in pairs)
            return with_columns(rows, cast(jax.Array, found), j, layout)

        rows = jnp.zeros((devices * tile, devices, layout.rows), packed.dtype)
        rows = lax.fori_loop(0, s + 1, left, rows)
        rows = lax.psum_scatter(rows, axes, scatter_dimension=0, tiled=True)
        above = _is_above(s * tile + jnp.arange(tile)[:, None, None], layout)
        rows = jnp.where(above, lax.dynamic_slice_in_dim(packed, s * tile, tile), rows)
        return lax.dynamic_update_slice_in_dim(packed, rows, s * tile, axis=0)

    return lax.fori_loop(0, layout.steps, step, q.packed)


# Blocks of supersteps are gathered one by one in loops, because an unrolled loop over panels of
# several sizes takes long to compile.


def times_adjoint_inverse(
    x: State,
    columns_of: Callable[[State, jax.Array], Columns],
    with_columns: Callable[[State, Columns, jax.Array], State],
    low_of: Callable[[State], jax.Array],
    layout: RowMap,
    axes: Axes,
) -> State:
    """``x low^-H`` for local rows of ``x``, superstep by superstep of its columns."""

    def step(s: jax.Array, x: State) -> State:
        def left(j: jax.Array, here: Columns) -> Columns:
            right = adjoint(block(low_of(x), s, j, layout, axes))
            done = columns_of(x, j)
            return tuple(mine - gemm(some, right) for mine, some in zip(here, done, strict=True))

        here = lax.fori_loop(0, s, left, columns_of(x, s))
        own = block(low_of(x), s, s, layout, axes)
        return with_columns(x, tuple(solve_right(some, own) for some in here), s)

    return lax.fori_loop(0, layout.steps, step, x)


def columns(x: jax.Array, s: jax.Array, layout: RowMap) -> jax.Array:
    """The columns of superstep ``s``, (r, W), in the order of elimination."""
    some = lax.dynamic_slice_in_dim(x, s * layout.tile, layout.tile, axis=2)
    return some.reshape(x.shape[0], -1)


def with_columns(x: jax.Array, columns: jax.Array, s: jax.Array, layout: RowMap) -> jax.Array:
    some = columns.reshape(x.shape[0], layout.devices, layout.tile)
    return lax.dynamic_update_slice_in_dim(x, some, s * layout.tile, axis=2)


def block(low: jax.Array, s: jax.Array, j: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """The rows of superstep ``s`` and the columns of ``j``, (W, W), of all devices."""
    rows = lax.dynamic_slice_in_dim(low, s * layout.tile, layout.tile)
    return _sweeps.gather_rows(columns(rows, j, layout), axes)
