"""jaxmg's ``_shardmap_ctx`` names of `lu_solve`, `qr`, `least_squares`, `gesvd` and `polar`.

They can be called in two places. Inside a `jax.jit`, on global arrays, as jaxmg 1.4 does it: then
they are the functions without the suffix, and have their derivatives. Inside a `jax.shard_map` of
the caller, on the shards of one device, with ``check_vma=False``: then they cannot be
differentiated. The status is always returned, int32 of shape (1,). What jaxmg returns as work
arrays, for donation, are the arguments themselves.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lockstep.linalg import (
    _general,
    _least_squares,
    _lu_factor,
    _polar,
    _posdef,
    _qr,
    _singular,
    _svd,
    _validation,
)
from lockstep.linalg._qr import QRPlan
from lockstep.linalg._shards import check_square, given_specs, is_inside, place_beside, place_shard
from lockstep.linalg._singular_plan import Plan
from lockstep.linalg._validation import AnyMesh, Placed, Specs


def qr_shardmap_ctx(
    a: jax.Array,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    pad: bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`qr` inside a `jax.jit` (global arrays) or a `jax.shard_map` (shards) of the caller.

    Args:
      a: an (m, n) matrix, or this device's shard of one; float32, float64, complex64, complex128.
      T_A: the maximal number of rows of a tile; default: by the size of the matrix.
      mesh: the mesh of the arrays in a `jax.jit`; in a `jax.shard_map` it is ignored.
      matrix_specs: the PartitionSpec of ``a``. Default in a `jax.shard_map`: the rows are split
        over all axes of the mesh in their order.
      in_specs: jaxmg's other name of ``matrix_specs``.
      pad: jaxmg's argument, which is ignored, because any size works.

    Returns:
      q (m, k), r (k, n), k = min(m, n), and the status: 0, or 1 when r is not finite. Each
      dimension is split as that of ``a`` if it divides evenly, else not.

    Raises:
      ValueError, TypeError: as `qr`.
    """
    function, spec = "qr_shardmap_ctx", given_specs(matrix_specs, in_specs)
    placed, shape = _place(function, a, mesh, spec)
    plan = QRPlan.of(shape, placed, _validation.tile_size(function, T_A))
    q, r = (_qr.compute if placed.inside else _qr.decompose)(a, plan, "reduced")
    return q, r, _status(r, placed)


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
    """`lu_solve` of a general matrix, in a `jax.jit` (global arrays) or a `jax.shard_map` (shards).

    What is not listed here is as in `least_squares_shardmap_ctx`.

    Args:
      a: an (n, n) matrix, or this device's shard of one.
      T_A: the maximal number of rows of a tile; default: chosen by a cost model.
      trans: 0: solve with ``a``; 1: with its transpose; 2: with its adjoint.

    Returns:
      ``a`` itself; x, split as ``b``, and NaN when the status is not 0; and the status: 0, or k if
      the pivot of row k (counted from 1) is zero or not finite.

    Raises:
      ValueError, TypeError: as `lu_solve`.
    """
    function, given = "lu_solve_shardmap_ctx", given_specs(matrix_specs, in_specs)
    if not is_inside():
        x, status = _lu_factor.lu_solve(a, b, T_A, mesh, given, trans=trans, return_status=True)
        return a, x, status[None]
    _validation.check_trans(function, trans)
    placed, b_placed, shape = _place_both(function, a, b, mesh, given)
    n = check_square(function, a, placed, shape)
    tile = _validation.tile_size(function, T_A)
    if n == 0 or b.size == 0:
        return a, b, jnp.zeros(1, jnp.int32)
    plan = _general.plan_of(n, placed, tile)
    factors = _general.factor(a, plan)
    status = _general.status(factors, plan)
    # a^T x = b is the conjugate of a^H x = b.
    rhs = b.conj() if trans == 1 else b
    x = _posdef.as_matrix(
        lambda b, b_placed: _general.apply(factors, b, b_placed, plan, trans != 0), rhs, b_placed
    )
    x = jnp.where(status == 0, x.conj() if trans == 1 else x, jnp.nan)
    return a, x, status[None]


def least_squares_shardmap_ctx(
    a: jax.Array,
    b: jax.Array,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    pad: bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """`least_squares` inside a `jax.jit` (global arrays) or a `jax.shard_map` (shards).

    What is not listed here is as in `qr_shardmap_ctx`.

    Args:
      b: (m,) or (m, k), or a shard, with the dtype of ``a``.
      matrix_specs: the PartitionSpec of ``a``, or one each for ``a`` and ``b``. Default in a
        `jax.shard_map`: the rows of ``a`` are split over all axes of the mesh in their order, and
        ``b`` is replicated or split by rows, as its shape shows.

    Returns:
      ``a`` and ``b`` themselves; x, (n,) or (n, k), split as ``b`` if its rows divide evenly; and
      the status: 0, or 1 when x is not finite.

    Raises:
      ValueError, TypeError: as `least_squares`.
    """
    function, given = "least_squares_shardmap_ctx", given_specs(matrix_specs, in_specs)
    placed, b_placed, shape = _place_both(function, a, b, mesh, given)
    tile = _validation.tile_size(function, T_A)
    x = _least_squares.solve(a, b, shape, placed, b_placed, tile)
    return a, b, x, _status(x, placed)


def gesvd_shardmap_ctx(
    a: jax.Array,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    compute_u: bool = True,
    compute_vh: bool = True,
    full_matrices: bool = False,
    pad: bool = True,
) -> tuple[jax.Array, ...]:
    """`gesvd` inside a `jax.jit` (global arrays) or a `jax.shard_map` (shards) of the caller.

    What is not listed here is as in `qr_shardmap_ctx`.

    Args:
      compute_u: whether to return the left singular vectors.
      compute_vh: whether to return the adjoint of the right singular vectors.
      full_matrices: whether these are square.

    Returns:
      ``a`` itself, u, s, vh and the status, without what is not computed: 0, or 1 when a singular
      value is not finite.

    Raises:
      ValueError, TypeError: as `gesvd`.
    """
    function, spec = "gesvd_shardmap_ctx", given_specs(matrix_specs, in_specs)
    placed, shape = _place(function, a, mesh, spec)
    tile = _validation.tile_size(function, T_A)
    plan = Plan.of(shape, placed, compute_u, compute_vh, full_matrices, tile)
    found = (_singular.decompose if placed.inside else _svd.decompose)(a, plan)
    return a, *found, _status(found[int(compute_u)], None)


def polar_shardmap_ctx(
    a: jax.Array,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    compute_h: bool = True,
    pad: bool = True,
) -> tuple[jax.Array, ...]:
    """`polar` inside a `jax.jit` (global arrays) or a `jax.shard_map` (shards) of the caller.

    What is not listed here is as in `qr_shardmap_ctx`.

    Args:
      a: an (m, n) matrix, m >= n, or this device's shard of one.
      compute_h: whether to return ``h``.

    Returns:
      u, with ``compute_h`` h, and the status: 0, or 1 when u is not finite.

    Raises:
      ValueError, TypeError: as `polar`.
    """
    function, spec = "polar_shardmap_ctx", given_specs(matrix_specs, in_specs)
    placed, shape = _place(function, a, mesh, spec)
    _polar.check_tall(shape)
    tile = _validation.tile_size(function, T_A)
    plan = Plan.of(shape, placed, True, True, False, tile)
    found = (_singular.polar if placed.inside else _polar.decompose)(a, plan)
    return *found[: 2 if compute_h else 1], _status(found[0], placed)


def _place(
    function: str, a: jax.Array, mesh: AnyMesh | None, given: Specs
) -> tuple[Placed, tuple[int, int]]:
    """The sharding of the whole matrix and its shape."""
    [spec] = _validation.specs(function, given, ("a",))
    if is_inside():
        return place_shard(function, a, spec)
    a = _validation.matrix(function, a, mesh)
    m, n = a.shape
    return _validation.place(function, a, mesh, spec), (m, n)


def _place_both(
    function: str, a: jax.Array, b: jax.Array, mesh: AnyMesh | None, given: Specs
) -> tuple[Placed, Placed, tuple[int, int]]:
    """The shardings of a matrix and its right-hand side, and the shape of the matrix."""
    a_spec, b_spec = _validation.specs(function, given, ("a", "b"))
    placed, (m, n) = _place(function, a, mesh, a_spec)
    if placed.inside:
        return placed, place_beside(function, b, b_spec, placed, m, a.dtype), (m, n)
    b = _validation.right_hand_side(function, b, m, a.dtype, n)
    return placed, _validation.place(function, b, placed.mesh, b_spec, "b"), (m, n)


def _status(found: jax.Array, placed: Placed | None) -> jax.Array:
    """The status of a result; of the shards of all devices, where they are shards."""
    status = _qr.status_of(found)
    if placed is not None and placed.inside:
        status = jax.lax.pmax(status, placed.sharded.axes)
    return status[None]
