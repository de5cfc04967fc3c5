"""Determinants and condition numbers of general matrices: the public functions."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lockstep.linalg import _arguments, _general, _validation
from lockstep.linalg._posdef import Plan
from lockstep.linalg._validation import AnyMesh, Specs


class SlogdetResult(NamedTuple):
    """What `slogdet` returns."""

    sign: jax.Array
    logabsdet: jax.Array


def slogdet(
    a: Any,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    tile: int | None = None,
) -> SlogdetResult:
    """The sign and the logarithm of the determinant of a sharded square matrix.

    The counterpart of `jax.numpy.linalg.slogdet`, from the LU factors of `solve`. Differentiable
    where ``a`` is not singular; its derivative is the inverse, from the same factors.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case.
      tile: the maximal number of rows of a tile; default: chosen by a cost model.

    Returns:
      (sign, logabsdet), replicated scalars: ``det(a) = sign exp(logabsdet)``. ``sign`` has the
      dtype of ``a`` and modulus 1; the logarithm is real. (0, -inf) if a pivot is zero.

    Raises:
      ValueError: a wrong shape, a mesh or specs that do not fit ``a``, or dimensions that cannot be
        split evenly.
      TypeError: an unsupported dtype.
    """
    return SlogdetResult(*_sign_and_logarithm("slogdet", a, mesh, in_specs, tile))


def det(
    a: Any,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    tile: int | None = None,
) -> jax.Array:
    """The determinant of a sharded square matrix; the counterpart of `jax.numpy.linalg.det`.

    From `slogdet`, whose arguments, errors and derivative it has: ``sign exp(logabsdet)``. It
    overflows where the determinant does, and its derivative is NaN where that is zero. Returns a
    replicated scalar with the dtype of ``a``.
    """
    sign, log = _sign_and_logarithm("det", a, mesh, in_specs, tile)
    return sign * jnp.exp(log).astype(sign.dtype)


def _sign_and_logarithm(
    function: str, a: Any, mesh: AnyMesh | None, in_specs: Specs, tile: int | None
) -> tuple[jax.Array, jax.Array]:
    a, placed = _arguments.square(function, a, mesh, in_specs)
    tile = _validation.tile_size(function, tile)
    if a.shape[0] == 0:
        return jnp.ones((), a.dtype), jnp.zeros((), a.real.dtype)
    plan = _general.plan_of(a.shape[0], placed, tile)
    return _general.log_determinant(a, _general.factor(lax.stop_gradient(a), plan), plan)


def cond(
    a: Any,
    p: Any = 1,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    tile: int | None = None,
) -> jax.Array:
    """An estimate of the condition number of a sharded square matrix, ``|a| |a^-1|``.

    In the 1-norm, or the infinity norm: not in the 2-norm, which is NumPy's default. The norm of
    the inverse is estimated from LU factors, as LAPACK's gecon does (Higham, "FORTRAN codes for
    estimating the one-norm of a real or complex matrix", ACM TOMS 14, 1988): a lower bound, seldom
    below a third. Its reciprocal is LAPACK's ``rcond``. It has no derivative.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      p: 1: the largest sum of absolute values over a column; ``numpy.inf``: over a row.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case.
      tile: the maximal number of rows of a tile; default: chosen by a cost model.

    Returns:
      The estimate, a real, replicated scalar; infinite if a pivot is zero or not finite, 0 if n is
      0.

    Raises:
      ValueError: another norm, a wrong shape, a mesh or specs that do not fit ``a``, or dimensions
        that cannot be split evenly.
      TypeError: an unsupported dtype; a derivative is asked for.
    """
    if not (isinstance(p, int | float) and p in (1, np.inf)):
        raise ValueError(
            f"cond: p is {p!r}; expected 1 or numpy.inf. For the 2-norm, the ratio of the largest "
            "to the smallest singular value is needed, which LU factors do not give."
        )
    a, placed = _arguments.square("cond", a, mesh, in_specs)
    tile = _validation.tile_size("cond", tile)
    if a.shape[0] == 0:
        return jnp.zeros((), a.real.dtype)
    return _condition(a, _general.plan_of(a.shape[0], placed, tile), p != 1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _condition(a: jax.Array, plan: Plan, largest_row: bool) -> jax.Array:
    factors = _general.factor(a, plan)
    estimate = _general.norm_of_inverse(factors, plan, largest_row)
    estimate *= _general.norm(a, plan.placed, largest_row)
    return jnp.where(_general.status(factors, plan) == 0, estimate, jnp.inf)


@_condition.defjvp
def _condition_jvp(plan: Plan, largest_row: bool, primals: Any, tangents: Any) -> Any:
    raise TypeError("cond: an estimate has no derivative. Give it jax.lax.stop_gradient(a).")
