"""Products of matrices whose rows are spread over the devices, a block of rows at a time.

XLA's own partitioning may gather a whole operand. Here a device holds, beside its share, one
superstep's rows of one operand. All of it runs inside `jax.shard_map`, on local rows in the layouts
of `_layout`: a matrix whose columns are summed over has them as slots, (r, P, R).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _posdef, _redistribute
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._posdef import Plan
from lockstep.linalg._sweeps import gather_rows
from lockstep.linalg._tiles import adjoint, gemm
from lockstep.linalg._validation import Placed


def times(x: jax.Array, y: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """``x y``: the local rows (r, n) for local rows (r, P, R) of ``x`` and (R, n) of ``y``."""
    tile = layout.tile

    def step(s: jax.Array, sums: jax.Array) -> jax.Array:
        rows = gather_rows(lax.dynamic_slice_in_dim(y, s * tile, tile), axes)
        some = lax.dynamic_slice_in_dim(x, s * tile, tile, axis=2)
        return sums + gemm(some.reshape(x.shape[0], -1), rows)

    return lax.fori_loop(0, layout.steps, step, jnp.zeros((x.shape[0], y.shape[1]), y.dtype))


def times_adjoint(x: jax.Array, y: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """``x y^H``: the local rows (r, P, R), for local rows (r, n) of ``x`` and (R, n) of ``y``."""
    tile = layout.tile

    def step(s: jax.Array, found: jax.Array) -> jax.Array:
        rows = gather_rows(lax.dynamic_slice_in_dim(y, s * tile, tile), axes)
        part = gemm(x, adjoint(rows)).reshape(x.shape[0], layout.devices, tile)
        return lax.dynamic_update_slice_in_dim(found, part, s * tile, axis=2)

    found = unset((x.shape[0], layout.devices, layout.rows), y)
    return lax.fori_loop(0, layout.steps, step, found)


def adjoint_times(
    x: jax.Array, y: jax.Array, layout: RowMap, axes: Axes, scale: float | jax.Array = 1
) -> jax.Array:
    """``scale x^H y``: the local rows (R, n); ``x``, (r, P, R), and ``y``, (r, n), are local rows.

    ``layout`` is that of the columns of ``x``, which are the rows of the result.
    """
    tile = layout.tile

    def step(s: jax.Array, found: jax.Array) -> jax.Array:
        some = scale * lax.dynamic_slice_in_dim(x, s * tile, tile, axis=2)
        part = gemm(adjoint(some.reshape(x.shape[0], -1)), y)
        rows = lax.psum_scatter(part, axes, scatter_dimension=0, tiled=True)
        return lax.dynamic_update_slice_in_dim(found, rows, s * tile, axis=0)

    found = unset((layout.rows, y.shape[1]), x).astype(y.dtype)
    return lax.fori_loop(0, layout.steps, step, found)


def unset(shape: tuple[int, ...], like: jax.Array) -> jax.Array:
    """An array whose elements are all written before they are read.

    XLA moves zeros out of a loop around it, and holds them while that loop runs.
    """
    some = like[(0,) * like.ndim] if like.size else jnp.zeros((), like.dtype)
    return jnp.broadcast_to(some, shape)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def product(
    x: jax.Array, y: jax.Array, plan: Plan, y_placed: Placed, adjoint_x: bool = False
) -> jax.Array:
    """``x y`` or ``x^H y`` of a square ``x``, placed as ``plan``; the result is placed as ``y``."""
    return _product(x, y, plan, y_placed, adjoint_x)


@product.defjvp
def _product_jvp(plan: Plan, y_placed: Placed, adjoint_x: bool, primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    turn = functools.partial(_posdef.adjoint, placed=plan.placed) if adjoint_x else lambda x: x
    changes = _posdef.matmul(turn(dx), y, y_placed) + _posdef.matmul(turn(x), dy, y_placed)
    return product(x, y, plan, y_placed, adjoint_x), changes


@functools.partial(jax.jit, static_argnames=("plan", "y_placed", "adjoint_x"))
def _product(
    x: jax.Array, y: jax.Array, plan: Plan, y_placed: Placed, adjoint_x: bool
) -> jax.Array:
    layout, placed = plan.layout, plan.placed
    run = adjoint_times if adjoint_x else times

    def body(x: jax.Array, y: jax.Array) -> jax.Array:
        slots = _redistribute.columns_to_slots(plan.take_rows(x, placed), layout)
        return plan.give_rows(run(slots, plan.take_rows(y, y_placed), layout, plan.axes), y_placed)

    return plan.placed.map(body, (placed.spec, y_placed.spec), y_placed.spec)(x, y)
