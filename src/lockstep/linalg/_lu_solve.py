"""Solutions with LU factors, on the local rows of every device.

Rows are exchanged, as the factorization exchanged columns, where all of them are on every device.
Everything here runs inside `jax.shard_map`, and right-hand sides are (R, k): the rows of this
device's slots.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _dealt_columns, _sweeps
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._lu import Factors, inverse_of
from lockstep.linalg._sweeps import Triangle
from lockstep.linalg._tiles import adjoint


def solve(
    factors: Factors, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool = False
) -> jax.Array:
    """``a^-1 b = Q u^-1 l^-1 b``."""
    low, upper = _triangles(factors)
    position, how = inverse_of(factors.order), (layout, axes, kernels)
    if _dealt_columns.pays(b.shape[1], layout):
        x = _dealt_columns.to_columns(b, axes, layout.devices)
        x = _dealt_columns.solve_columns(low, x, *how)
        x = _dealt_columns.solve_columns(upper, x, *how)
        return _dealt_columns.to_rows(_rows_at(x, position), axes, b.shape[1])
    own = position.reshape(layout.devices, -1)[lax.axis_index(axes)]

    def run(b: jax.Array) -> jax.Array:
        done = _sweeps.solve_gathered(upper, b, *how)
        return adjoint(jnp.take(done.reshape(b.shape[1], -1), own, axis=1))

    return _sweeps.in_columns(run, _sweeps.solve(low, b, *how), layout)


def solve_adjoint(
    factors: Factors, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool = False
) -> jax.Array:
    """``a^-H b = l^-H u^-H Q^H b``."""
    low, upper = _triangles(factors)
    how = layout, axes, kernels
    if _dealt_columns.pays(b.shape[1], layout):
        x = _rows_at(_dealt_columns.to_columns(b, axes, layout.devices), factors.order)
        x = _dealt_columns.solve_columns(upper, x, *how, True)
        x = _dealt_columns.solve_columns(low, x, *how, True)
        return _dealt_columns.to_rows(x, axes, b.shape[1])
    own = factors.order.reshape(layout.devices, -1)[lax.axis_index(axes)]

    def run(b: jax.Array) -> jax.Array:
        return _sweeps.solve_adjoint(upper, _sweeps.gather_rows(b, axes)[own], *how)

    return _sweeps.solve(low, _sweeps.in_columns(run, b, layout), *how, True)


def _triangles(factors: Factors) -> tuple[Triangle, Triangle]:
    return Triangle(factors.slots), Triangle(factors.slots, upper=True, unit=True)


def _rows_at(x: jax.Array, places: jax.Array) -> jax.Array:
    """The rows of all slots of ``x``, (P, R, c), in another order."""
    return jnp.take(x.reshape(-1, x.shape[2]), places, axis=0).reshape(x.shape)
