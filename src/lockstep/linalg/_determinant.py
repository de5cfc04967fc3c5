"""Determinants of general matrices: the public functions."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _arguments, _general, _validation
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
