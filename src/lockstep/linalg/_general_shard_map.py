"""LU inside a `jax.shard_map` of the caller, as `lockstep.linalg._shard_map`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lockstep.linalg import _general, _lu_factor, _posdef, _shard_map, _validation
from lockstep.linalg._lu import Factors
from lockstep.linalg._posdef import Plan
from lockstep.linalg._validation import AnyMesh, Placed, Specs


def lu_solve_shardmap_ctx(
    a: jax.Array,
    b: jax.Array,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    pad: bool = True,
    trans: int = 0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Solves ``a x = b`` for a general ``a``, inside `jax.shard_map` or `jax.jit`.

    The algorithm is that of `solve`. Inside `jax.shard_map` all devices of the mesh axes in
    ``matrix_specs`` must call it, each with its shards. Elsewhere it takes whole arrays, as jaxmg's
    function of this name does.

    Args:
      a: this device's shard of an (n, n) matrix; float32, float64, complex64 or complex128.
      b: this device's shard of (n,) or (n, k), with the dtype of ``a``.
      T_A: the maximal number of rows of a tile; default: chosen by a cost model.
      mesh: outside of `jax.shard_map` as in `lu_solve`; inside it is ignored.
      matrix_specs: the PartitionSpec of ``a``, or one each for ``a`` and ``b``, as in the enclosing
        `jax.shard_map`. Default: the rows of ``a`` are split over all axes of the mesh in their
        order, and ``b`` is replicated or split by rows, as its shape shows.
      in_specs: the same as ``matrix_specs``.
      pad: jaxmg's argument, which is ignored, because any size works.
      trans: 0: solve with ``a``; 1: with its transpose; 2: with its adjoint.

    Returns:
      (a, x, status). The first is ``a`` itself, where jaxmg returns a work array; x is split as
      ``b``, and NaN when the status is not 0; the status is 0, or k if the pivot of row k (counted
      from 1) is zero or not finite; int32 of shape (1,).

    Raises:
      ValueError: shapes or specs that do not fit, or another value of ``trans``.
      TypeError: an unsupported dtype, or different dtypes.
    """
    function, given = "lu_solve_shardmap_ctx", in_specs if matrix_specs is None else matrix_specs
    if not jax.sharding.get_abstract_mesh().manual_axes:
        x, status = _lu_factor.lu_solve(a, b, T_A, mesh, given, trans=trans, return_status=True)
        return a, x, status[None]
    _validation.check_trans(function, trans)
    a_spec, b_spec = _validation.specs(function, given, ("a", "b"))
    placed, n = _shard_map.place(function, a, a_spec)
    b_placed = _shard_map.place_beside(function, b, b_spec, placed, n, a.dtype)
    tile = _validation.tile_size(function, T_A)
    if n == 0 or b.size == 0:
        return a, b, jnp.zeros(1, jnp.int32)
    plan = _general.plan_of(n, placed, tile)
    factors = _general.factor(a, plan)
    status = _general.status(factors, plan)
    # a^T x = b is the conjugate of a^H x = b.
    rhs = b.conj() if trans == 1 else b
    x = _posdef.as_matrix(_apply, rhs, b_placed)(factors, plan, trans != 0)
    x = jnp.where(status == 0, x.conj() if trans == 1 else x, jnp.nan)
    return a, x, status[None]


def _apply(
    b: jax.Array, b_placed: Placed, factors: Factors, plan: Plan, adjoint: bool
) -> jax.Array:
    return _general.apply(factors, b, b_placed, plan, adjoint)
