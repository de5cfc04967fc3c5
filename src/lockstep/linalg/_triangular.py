"""Cholesky factors and triangular systems, under SciPy's names: the public functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lockstep.linalg import _arguments, _hermitian, _posdef, _validation
from lockstep.linalg._posdef import Plan
from lockstep.linalg._validation import AnyMesh, Placed, Specs


def cholesky(
    a: Any,
    lower: bool = False,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    tile: int | None = None,
    return_status: bool = False,
    check: bool | None = None,
) -> Any:
    """The Cholesky factor of a sharded Hermitian positive definite matrix.

    The counterpart of `jax.scipy.linalg.cholesky` and LAPACK's potrf: a left-looking factorization
    (Golub and Van Loan, Matrix Computations, 4.2.8) over row block-cyclic tiles. One all-to-all
    moves the matrix into that layout, and another one moves the factor back. Many devices factor as
    a grid of rows and columns, as in `potrs`. Differentiable.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      lower: True: read the lower triangle of ``a``, and return ``l`` with ``a = l l^H``. False:
        read the upper triangle, and return ``u`` with ``a = u^H u``. As in SciPy.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case.
      tile: the maximal number of rows of a tile; default: chosen by a cost model.
      return_status: also return the status: 0, or the order of the first leading minor that is not
        positive definite, like LAPACK's ``info``. Replicated int32.
      check: None: outside of `jax.jit`, raise an error when ``a`` is not Hermitian. True: also when
        it is not positive definite; not possible inside `jax.jit`. False: neither; the triangle
        that is not read may hold anything.

    Returns:
      The factor (n, n), with the dtype and sharding of ``a``, zero in the other triangle. If a
      leading minor is not positive definite, the factor is NaN from its superstep on. With
      ``return_status`` the pair (factor, status).

    Raises:
      ValueError: an ``a`` that is not Hermitian beyond rounding (outside of `jax.jit`, without
        ``check=False``); a wrong shape, a mesh or specs that do not fit ``a``, dimensions that
        cannot be split evenly, or ``check=True`` inside `jax.jit`.
      TypeError: an unsupported dtype.
      numpy.linalg.LinAlgError: with ``check``, when the matrix is not positive definite.
    """
    a, placed = _arguments.square("cholesky", a, mesh, in_specs)
    if a.shape[0] == 0:
        return (a, jnp.int32(0)) if return_status else a
    if check is not False:
        _hermitian.check("cholesky", a, placed, "check=False")
    tile = _validation.tile_size("cholesky", tile)
    plan = Plan.for_cholesky(a.shape[0], placed, tile, True)
    if not lower:
        a = _posdef.adjoint(a, plan.placed)
    found, status = factor_lower(a, plan, return_status or bool(check))
    _validation.check_status("cholesky", bool(check), status)
    if not lower:
        found = _posdef.adjoint(found, plan.placed)
    return (found, status) if return_status else found


def cho_factor(a: Any, lower: bool = False, **options: Any) -> tuple[jax.Array, bool]:
    """The Cholesky factor of a sharded Hermitian positive definite matrix, for `cho_solve`.

    The counterpart of `jax.scipy.linalg.cho_factor`; computes the same as `cholesky`.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      lower: True: read the lower triangle of ``a``, and return ``l`` with ``a = l l^H``. False:
        read the upper triangle, and return ``u`` with ``a = u^H u``.
      **options: ``mesh``, ``in_specs``, ``tile``, ``return_status`` and ``check``, as in
        `cholesky`.

    Returns:
      The pair (factor, ``lower``). The factor (n, n) has the dtype and sharding of ``a`` and is
      zero in the other triangle, where SciPy leaves arbitrary values. With ``return_status`` the
      first element is itself the pair (factor, status), which `cho_solve` does not take.

    Raises:
      ValueError: an ``a`` that is not Hermitian beyond rounding (outside of `jax.jit`, without
        ``check=False``); a wrong shape, a mesh or specs that do not fit ``a``, dimensions that
        cannot be split evenly, or ``check=True`` inside `jax.jit`.
      TypeError: an unsupported dtype, or an unknown option.
      numpy.linalg.LinAlgError: with ``check``, when the matrix is not positive definite.
    """
    return cholesky(a, lower, **options), lower


def cho_solve(
    c_and_lower: tuple[Any, bool],
    b: Any,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    tile: int | None = None,
) -> jax.Array:
    """Solves ``a x = b``, given the Cholesky factor of ``a``.

    The counterpart of `jax.scipy.linalg.cho_solve` and LAPACK's potrs: two calls of
    `solve_triangular`. Differentiable in the factor and ``b``.

    Args:
      c_and_lower: the result of `cho_factor`: the factor (n, n), and whether it is the lower one.
        Any sharding over any mesh.
      b: (n,) or (n, k) with the dtype of the factor; any sharding over the same mesh.
      mesh: the mesh of both, if the arrays do not have one (tracers inside `jax.jit`).
      in_specs: their shardings in the same case: a PartitionSpec for the factor, or one for each.
      tile: the maximal number of rows of a tile; default: chosen by a cost model.

    Returns:
      x, with the shape, dtype and sharding of ``b``.

    Raises:
      ValueError: wrong shapes, a mesh or specs that do not fit the arrays, or dimensions that
        cannot be split evenly.
      TypeError: an unsupported dtype, or different dtypes.
    """
    c, lower = c_and_lower
    x = solve_triangular(c, b, 0 if lower else 2, lower, mesh=mesh, in_specs=in_specs, tile=tile)
    return solve_triangular(c, x, 2 if lower else 0, lower, mesh=mesh, in_specs=in_specs, tile=tile)


def solve_triangular(
    a: Any,
    b: Any,
    trans: int = 0,
    lower: bool = False,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    tile: int | None = None,
) -> jax.Array:
    """Solves ``a x = b``, ``a^T x = b`` or ``a^H x = b`` for a sharded triangular ``a``.

    The counterpart of `jax.scipy.linalg.solve_triangular` and LAPACK's trtrs: one forward or
    backward sweep over row block-cyclic tiles. Differentiable in ``a`` and ``b``.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh. Only the
        triangle that ``lower`` selects is read, with its diagonal.
      b: (n,) or (n, k) with the dtype of ``a``; any sharding over the same mesh.
      trans: 0: solve with ``a``; 1: with its transpose; 2: with its adjoint.
      lower: whether ``a`` is lower triangular.
      mesh: the mesh of both, if the arrays do not have one (tracers inside `jax.jit`).
      in_specs: their shardings in the same case: a PartitionSpec for ``a``, or one for each.
      tile: the maximal number of rows of a tile; default: chosen by a cost model.

    Returns:
      x, with the shape, dtype and sharding of ``b``. A zero on the diagonal gives infinities or
      NaN, not an error.

    Raises:
      ValueError: wrong shapes, another value of ``trans``, a mesh or specs that do not fit the
        arrays, or dimensions that cannot be split evenly.
      TypeError: an unsupported dtype, or different dtypes.
    """
    a, b, placed, b_placed = _arguments.system("solve_triangular", a, b, mesh, in_specs)
    if b.size == 0:
        return b
    plan = Plan.of(a.shape[0], placed, _validation.tile_size("solve_triangular", tile), True)
    _validation.check_trans("solve_triangular", trans)
    if trans == 1:
        return solve_triangular(
            a.conj(), b, 2, lower, mesh=placed.mesh, in_specs=(placed.spec, b_placed.spec)
        )
    if not lower:
        a, trans = _posdef.adjoint(a, plan.placed), 2 - trans
    solve = functools.partial(lower_solver(a, plan), adjoint=trans == 2)
    return _posdef.as_matrix(solve, b, b_placed)


def slots_of(a: jax.Array, plan: Plan, lower: bool) -> jax.Array:
    """The lower triangle of ``a``, or the adjoint of the upper one, as the sweeps take it."""
    return _posdef.to_slots(a if lower else _posdef.adjoint(a, plan.placed), plan, None)


def lower_solver(a: jax.Array, plan: Plan) -> Callable[..., jax.Array]:
    """A function of ``b``, its sharding and ``adjoint``: ``a^-1 b`` or ``a^-H b``.

    Only the lower triangle of ``a`` is read; it is brought into slots once.
    """
    low = _posdef.to_slots(lax.stop_gradient(a), plan, None)

    def solve(b: jax.Array, b_placed: Placed, adjoint: bool) -> jax.Array:
        def times(x: jax.Array) -> jax.Array:
            triangle = jnp.tril(a)
            triangle = triangle.conj().T if adjoint else triangle
            return _posdef.matmul(triangle, x, b_placed)

        def run(back: bool, b: jax.Array) -> jax.Array:
            sweeps = ("backward" if back else "forward",)
            return _posdef.batched_sweep(low, b, plan, b_placed, sweeps)

        return lax.custom_linear_solve(
            times,
            b,
            solve=lambda _, b: run(adjoint, b),
            transpose_solve=lambda _, b: run(not adjoint, b.conj()).conj(),
        )

    return solve


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def factor_lower(a: jax.Array, plan: Plan, with_status: bool) -> tuple[jax.Array, jax.Array]:
    low, status = _posdef.factor(a, plan, None, with_status)
    return _posdef.lower_to_matrix(low, plan), status


@factor_lower.defjvp
def factor_lower_jvp(plan: Plan, with_status: bool, primals: Any, tangents: Any) -> Any:
    """dl = l phi(l^-1 da l^-H), phi halving the diagonal of the lower triangle."""
    low, status = factor_lower(primals[0], plan, with_status)
    where = {"mesh": plan.placed.mesh, "in_specs": (plan.placed.spec,) * 2}
    da = _posdef.mirrored(tangents[0], True)
    half = solve_triangular(low, da, 0, True, **where)
    whole = solve_triangular(low, _posdef.adjoint(half, plan.placed), 0, True, **where)
    eye = jnp.eye(low.shape[0], dtype=low.dtype)
    phi = jnp.tril(whole) * (1 - eye / 2)
    dl = _posdef.matmul(low, phi, plan.placed)
    return (low, status), (dl, np.zeros(status.shape, jax.dtypes.float0))
