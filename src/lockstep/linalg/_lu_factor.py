"""LU factors and solving with them, under SciPy's names and jaxmg's: the public functions."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lockstep.linalg import (
    _arguments,
    _general,
    _general_solve,
    _lu,
    _posdef,
    _triangular,
    _validation,
)
from lockstep.linalg._general_solve import Options
from lockstep.linalg._lu import Factors
from lockstep.linalg._posdef import Plan
from lockstep.linalg._validation import AnyMesh, Placed, Specs


def lu_factor(
    a: Any,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    tile: int | None = None,
    return_status: bool = False,
    check: bool = False,
) -> Any:
    """The LU factors of a sharded square matrix with pivoting by rows, for `lu_solve`.

    The counterpart of `jax.scipy.linalg.lu_factor` and LAPACK's getrf: right-looking by panels over
    block-cyclic tiles (Golub and Van Loan, Matrix Computations, 3.4). The pivots are those of
    partial pivoting, as LAPACK's, up to ties and rounding; only on so many devices that the cost
    model takes a grid they are those of a tournament (as in `solve`), if the tiles need no padding.
    One all-to-all moves the transpose of the matrix into that layout, and another one moves the
    factors back. Differentiable.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case.
      tile: the maximal number of rows of a tile; default: chosen by a cost model.
      return_status: also return the status: 0, or k if the pivot of column k (counted from 1) is
        zero or not finite, like LAPACK's ``info``: ``a`` is singular; or -1, as in `solve`.
        Replicated int32.
      check: raise an error when ``a`` is singular; not possible inside `jax.jit`.

    Returns:
      The pair (lu, piv). ``lu`` (n, n) has the dtype and sharding of ``a``: ``l`` below the
      diagonal, whose own is one, and ``u`` from the diagonal on. ``piv`` (n,), int32, replicated:
      row i was exchanged with row ``piv[i]``, one after another. With ``return_status`` the pair
      ((lu, piv), status).

    Raises:
      ValueError: a wrong shape, a mesh or specs that do not fit ``a``, dimensions that cannot be
        split evenly, or ``check`` inside `jax.jit`.
      TypeError: an unsupported dtype.
      numpy.linalg.LinAlgError: with ``check``, when a pivot is zero or not finite.
    """
    a, placed = _arguments.square("lu_factor", a, mesh, in_specs)
    if a.shape[0] == 0:
        empty = (a, jnp.zeros(0, jnp.int32))
        return (empty, jnp.int32(0)) if return_status else empty
    tile = _validation.tile_size("lu_factor", tile)
    packed, pivots, status = _factor(a, placed, tile)
    _validation.check_singular("lu_factor", check, status, "column")
    return ((packed, pivots), status) if return_status else (packed, pivots)


def lu(
    a: Any,
    permute_l: bool = False,
    p_indices: bool = False,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    tile: int | None = None,
) -> Any:
    """The LU factors of a sharded square matrix: ``a = p l u``.

    The counterpart of `scipy.linalg.lu` and `jax.scipy.linalg.lu`; computes the same as
    `lu_factor`. Differentiable.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      permute_l: return the pair (``p l``, ``u``).
      p_indices: return the permutation as indices, ``a = l[p] u``: (n,), int32, replicated.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case.
      tile: the maximal number of rows of a tile; default: chosen by a cost model.

    Returns:
      (p, l, u), each (n, n) with the dtype and sharding of ``a``, unless the arguments say
      otherwise. ``p`` is a permutation, ``l`` is lower triangular with ones on the diagonal, ``u``
      is upper triangular.

    Raises:
      ValueError: a wrong shape, a mesh or specs that do not fit ``a``, or dimensions that cannot be
        split evenly.
      TypeError: an unsupported dtype.
    """
    a, placed = _arguments.square("lu", a, mesh, in_specs)
    packed, pivots = lu_factor(a, mesh=placed.mesh, in_specs=placed.spec, tile=tile)
    lower, upper = _triangles(packed, placed)
    rows = _lu.inverse_of(permutation_of(pivots))
    if permute_l:
        return _posdef.partitioned(lambda x, rows: x[rows], placed)(lower, rows), upper
    if p_indices:
        return rows, lower, upper
    n = a.shape[0]
    spread = _posdef.partitioned(lambda p: (p[:, None] == jnp.arange(n)).astype(a.dtype), placed)
    return spread(rows), lower, upper


def lu_solve(
    a: Any,
    b: Any,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    trans: int = 0,
    in_specs: Specs = None,
    return_status: bool = False,
    check: bool = False,
    donate: bool = False,
    tile: int | None = None,
    **unused: Any,
) -> Any:
    """Solves ``a x = b`` for a general ``a``, given the matrix (jaxmg's call) or its LU factors.

    With a matrix it is `solve`. With the pair of `lu_factor` it is the counterpart of
    `jax.scipy.linalg.lu_solve` and LAPACK's getrs: two triangular sweeps. Differentiable in ``a``
    (or ``lu``) and ``b``.

    Args:
      a: (n, n), or the pair (lu, piv) of `lu_factor`; any sharding over any mesh.
      b: (n,) or (n, k) with the dtype of ``a``; any sharding over the same mesh.
      T_A: the maximal number of rows of a tile; default: chosen by a cost model. With a pair, the
        third positional argument is ``trans``, as in SciPy.
      mesh: the mesh of ``a`` and ``b``, if the arrays do not have one (tracers inside `jax.jit`).
      matrix_specs: their shardings in the same case: a PartitionSpec for ``a``, or one for each.
      trans: 0: solve with ``a``; 1: with its transpose; 2: with its adjoint.
      in_specs: the same as ``matrix_specs``.
      return_status: also return the status, as `solve` does; for a matrix only.
      check: raise an error when ``a`` is singular; for a matrix only, not inside `jax.jit`.
      donate: reuse the memory of ``a`` for the factors; for a matrix only, as in `solve`.
      tile: the same as ``T_A``.
      **unused: jaxmg's ``pad``, which is ignored, because any size works.

    Returns:
      x, with the shape, dtype and sharding of ``b``; with ``return_status`` the pair (x, status).

    Raises:
      ValueError: wrong shapes, another value of ``trans``, a mesh or specs that do not fit the
        arrays, dimensions that cannot be split evenly, or ``check`` inside `jax.jit`.
      TypeError: an unsupported dtype, different dtypes, an unknown argument, or one that is for a
        matrix together with a pair.
      numpy.linalg.LinAlgError: with ``check``, when a pivot is zero or not finite.
    """
    _validation.ignore_pad("lu_solve", unused)
    given = matrix_specs if in_specs is None else in_specs
    if not isinstance(a, tuple):
        tile = T_A if tile is None else tile
        options = Options(tile, return_status, check, donate, mesh, given)
        return _general_solve.solve_general("lu_solve", a, b, trans, options)
    if return_status or check or donate:
        raise TypeError(
            "lu_solve: return_status, check and donate are for a matrix; of a pair of lu_factor "
            "the factors are there already. Give them to lu_factor."
        )
    packed, pivots = a
    return _solve_factored(packed, pivots, b, trans if T_A is None else T_A, tile, mesh, given)


def _solve_factored(
    packed: Any,
    pivots: Any,
    b: Any,
    trans: int,
    tile: int | None,
    mesh: AnyMesh | None,
    in_specs: Specs,
) -> jax.Array:
    packed, b, placed, b_placed = _arguments.system("lu_solve", packed, b, mesh, in_specs, "lu")
    if np.shape(pivots) != packed.shape[:1]:
        raise ValueError(
            f"lu_solve: piv has shape {np.shape(pivots)}; expected ({packed.shape[0]},), as "
            "lu_factor returns it."
        )
    _validation.check_trans("lu_solve", trans)
    if b.size == 0:
        return b
    tile = _validation.tile_size("lu_solve", tile)
    plan = _general.plan_of(packed.shape[0], _validation.transposed(placed), tile, natural=True)
    permutation = permutation_of(jnp.asarray(pivots))
    factors = _factors_of(lax.stop_gradient(packed), permutation, plan)

    def run(b: jax.Array, b_placed: Placed) -> jax.Array:
        def times(x: jax.Array) -> jax.Array:
            return _times_factors(packed, permutation, x, placed, b_placed, trans != 0)

        return _general.solve(b, b_placed, times, factors, plan, transposed=trans == 0)

    if trans == 2:
        return _posdef.as_matrix(run, b.conj(), b_placed).conj()
    return _posdef.as_matrix(run, b, b_placed)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _factor(
    a: jax.Array, placed: Placed, tile: int | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The packed factors, LAPACK's exchanges of rows, and the status."""
    plan = _general.plan_of(a.shape[0], _validation.transposed(placed), tile, natural=True)
    slots = _posdef.to_slots(_transpose(a, plan.placed), plan, None)
    factors = _general.factor_slots(slots, plan, lapack_pivots=True)
    status = _general.status(factors, plan)
    pivots = jnp.asarray(plan.layout.row_of_slot.ravel())[factors.pivots[: a.shape[0]]]
    return _transpose(_general.to_matrix(factors.slots, plan), placed), pivots, status


@_factor.defjvp
def _factor_jvp(placed: Placed, tile: int | None, primals: Any, tangents: Any) -> Any:
    """With m = l^-1 p^-1 da u^-1: dl = l m below the diagonal, du = m u from it on."""
    packed, pivots, status = _factor(primals[0], placed, tile)
    lower, upper = _triangles(packed, placed)
    permutation, across = permutation_of(pivots), _validation.transposed(placed)
    exchange = _posdef.partitioned(lambda x, rows: x[rows], placed)
    half = _triangular.solve_triangular(
        lower,
        exchange(tangents[0], permutation),
        lower=True,
        mesh=placed.mesh,
        in_specs=(placed.spec, placed.spec),
    )
    whole = _triangular.solve_triangular(
        upper,
        _transpose(half, across),
        trans=1,
        mesh=placed.mesh,
        in_specs=(placed.spec, across.spec),
    )
    whole = _transpose(whole, placed)
    dl = _posdef.matmul(lower, jnp.tril(whole, -1), placed)
    du = _posdef.matmul(jnp.triu(whole), upper, placed)
    none = tuple(np.zeros(x.shape, jax.dtypes.float0) for x in (pivots, status))
    return (packed, pivots, status), (dl + du, *none)


def _transpose(a: jax.Array, placed: Placed) -> jax.Array:
    return _posdef.partitioned(lambda a: a.T, placed)(a)


def _triangles(packed: jax.Array, placed: Placed) -> tuple[jax.Array, jax.Array]:
    def run(packed: jax.Array) -> jax.Array:
        return jnp.tril(packed, -1) + jnp.eye(packed.shape[0], dtype=packed.dtype)

    return _posdef.partitioned(run, placed)(packed), _posdef.partitioned(jnp.triu, placed)(packed)


def _times_factors(
    packed: jax.Array,
    permutation: jax.Array,
    x: jax.Array,
    placed: Placed,
    x_placed: Placed,
    transposed: bool,
) -> jax.Array:
    """``p l u x`` or ``(p l u)^T x``."""
    lower, upper = _triangles(packed, placed)
    exchange = _posdef.partitioned(lambda x, rows: x[rows], x_placed)
    if transposed:
        across = _validation.transposed(placed)
        lower, upper = _transpose(lower, across), _transpose(upper, across)
        x = _posdef.matmul(lower, exchange(x, permutation), x_placed)
        return _posdef.matmul(upper, x, x_placed)
    x = _posdef.matmul(lower, _posdef.matmul(upper, x, x_placed), x_placed)
    return exchange(x, _lu.inverse_of(permutation))


def _factors_of(packed: jax.Array, permutation: jax.Array, plan: Plan) -> Factors:
    """The factors of ``a^T`` in slots, from those of ``a``."""
    slots = _posdef.to_slots(_transpose(packed, plan.placed), plan, None)
    slot_of_row = jnp.asarray(plan.layout.slot_of_row)
    order = jnp.arange(plan.layout.padded, dtype=jnp.int32)
    order = order.at[slot_of_row[: plan.layout.n]].set(slot_of_row[permutation])
    return Factors(slots, order, order)


@jax.jit
def permutation_of(pivots: jax.Array) -> jax.Array:
    """The row of ``a`` in each row of ``l u``."""
    return lax.linalg.lu_pivots_to_permutation(pivots, len(pivots))
