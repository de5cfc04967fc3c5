"""Condition numbers: the public function."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lockstep.linalg import _arguments, _general, _svd, _validation
from lockstep.linalg._posdef import Plan
from lockstep.linalg._validation import AnyMesh, Specs


def cond(
    a: Any,
    p: Any = None,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    tile: int | None = None,
) -> jax.Array:
    """The condition number of a sharded matrix; the counterpart of `jax.numpy.linalg.cond`.

    In the 2-norm, the default, it is the ratio of the largest to the smallest of `svdvals`. It is
    differentiable where these two are single and the smallest one is not zero; where one of them is
    multiple, the derivative is that along one of its vectors.

    In the 1-norm and the infinity norm it is an estimate of ``|a| |a^-1|`` of a square matrix, at a
    small part of the cost. The norm of the inverse is estimated from LU factors, as LAPACK's gecon
    does (Higham, "FORTRAN codes for estimating the one-norm of a real or complex matrix", ACM TOMS
    14, 1988): a lower bound, seldom below a third. Its reciprocal is LAPACK's ``rcond``. An
    estimate has no derivative.

    Args:
      a: (m, n), for an estimate (n, n); float32, float64, complex64 or complex128; any sharding
        over any mesh.
      p: None or 2: the 2-norm; -2: the ratio of the smallest to the largest singular value; 1: an
        estimate with the largest sum of absolute values over a column; ``numpy.inf``: over a row.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case.
      tile: the maximal number of rows of a tile, for an estimate; default: chosen by a cost model.

    Returns:
      A real, replicated scalar. Infinite if the smallest singular value is zero, or for an estimate
      if a pivot is zero or not finite; 0 if ``a`` has no elements.

    Raises:
      ValueError: another norm, a wrong shape, a mesh or specs that do not fit ``a``, or dimensions
        that cannot be split evenly.
      TypeError: an unsupported dtype; a derivative of an estimate is asked for.
    """
    if p is None or (isinstance(p, int | float) and p in (2, -2)):
        return _ratio(_svd.svdvals(a, mesh=mesh, in_specs=in_specs), p == -2)
    if not (isinstance(p, int | float) and p in (1, np.inf)):
        raise ValueError(f"cond: p is {p!r}; expected None, 2, -2, 1 or numpy.inf.")
    a, placed = _arguments.square("cond", a, mesh, in_specs)
    tile = _validation.tile_size("cond", tile)
    if a.shape[0] == 0:
        return jnp.zeros((), a.real.dtype)
    return _estimate(a, _general.plan_of(a.shape[0], placed, tile), p != 1)


@functools.partial(jax.jit, static_argnums=1)
def _ratio(values: jax.Array, inverted: bool) -> jax.Array:
    if not values.size:
        return jnp.zeros((), values.dtype)
    largest, least = values[0], values[-1]
    if inverted:
        return jnp.where(largest == 0, jnp.inf, least / jnp.where(largest == 0, 1, largest))
    return jnp.where(least == 0, jnp.inf, largest / jnp.where(least == 0, 1, least))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _estimate(a: jax.Array, plan: Plan, largest_row: bool) -> jax.Array:
    factors = _general.factor(a, plan)
    estimate = _general.norm_of_inverse(factors, plan, largest_row)
    estimate *= _general.norm(a, plan.placed, largest_row)
    return jnp.where(_general.status(factors, plan) == 0, estimate, jnp.inf)


@_estimate.defjvp
def _estimate_jvp(plan: Plan, largest_row: bool, primals: Any, tangents: Any) -> Any:
    raise TypeError("cond: an estimate has no derivative. Give it jax.lax.stop_gradient(a).")
