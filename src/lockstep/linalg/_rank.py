"""What singular values tell of a matrix that may lack full rank: the public functions.

A singular value counts as zero if it is at most the largest one times a cutoff, by default NumPy's:
rounding times the longer dimension.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lockstep.linalg import _arguments, _posdef, _qr, _singular, _svd
from lockstep.linalg._singular_plan import Plan
from lockstep.linalg._validation import AnyMesh, Placed, Specs


def lstsq(
    a: Any,
    b: Any,
    rcond: float | None = None,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The x of least norm that minimizes ``|a x - b|``, for a sharded ``a`` of any rank.

    The counterpart of `jax.numpy.linalg.lstsq` and LAPACK's gelss, by `svd` (Golub and Van Loan,
    Matrix Computations, 5.5.1). For a matrix of full rank `least_squares` needs a fraction of the
    time. x is differentiable in ``a`` and ``b``, where the rank does not change.

    Args:
      a: (m, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      b: (m,) or (m, k) with the dtype of ``a``; any sharding over the same mesh.
      rcond: the cutoff of singular values, beside the largest. Default: rounding times max(m, n).
      mesh: the mesh of both, if the arrays do not have one (tracers inside `jax.jit`).
      in_specs: their shardings in the same case: a PartitionSpec for ``a``, or one for each.

    Returns:
      x (n,) or (n, k), sharded as ``b`` where its rows divide evenly; the sums of the squares of
      the residual, () or (k,); the rank, an int32; and the singular values (min(m, n),). Unlike
      NumPy's, the residual is there for any rank, as in `jax.numpy.linalg.lstsq`.

    Raises:
      ValueError: wrong shapes, a mesh or specs that do not fit the arrays, or dimensions that
        cannot be split evenly.
      TypeError: an unsupported dtype, or different dtypes.
    """
    a, b, placed, b_placed = _arguments.rectangular_system("lstsq", a, b, mesh, in_specs)
    plan = _thin(a.shape, placed)
    wide = b[:, None] if b.ndim == 1 else b
    dimensions = (*b_placed.dimensions, ())[:2]
    b_placed = dataclasses.replace(b_placed, dimensions=dimensions)
    x, s = _pseudo_solve(a, wide, plan, b_placed, cutoff(rcond, a.dtype, a.shape))
    residual = jnp.sum(jnp.abs(wide - _posdef.matmul(a, x, b_placed)) ** 2, axis=0)
    if b.ndim == 1:
        x, residual = x[:, 0], residual[0]
    return x, residual, count(s, cutoff(rcond, a.dtype, a.shape)), s


def pinv(
    a: Any, rtol: float | None = None, *, mesh: AnyMesh | None = None, in_specs: Specs = None
) -> jax.Array:
    """The pseudo-inverse (Moore and Penrose) of a sharded matrix.

    The counterpart of `jax.numpy.linalg.pinv`, by `svd` (Golub and Van Loan, Matrix Computations,
    5.5.2). Differentiable, to any order, where the rank does not change (Golub and Pereyra 1973).

    Args:
      a: (m, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      rtol: the cutoff of singular values, beside the largest. Default: rounding times max(m, n).
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case.

    Returns:
      (n, m), with the dtype of ``a``; its rows are sharded as the columns of ``a`` and the other
      way round.

    Raises:
      ValueError, TypeError: as `svd`.
    """
    a, placed = _arguments.matrix("pinv", a, mesh, in_specs)
    return _pinv(a, _thin(a.shape, placed), cutoff(rtol, a.dtype, a.shape))


def matrix_rank(
    a: Any, rtol: float | None = None, *, mesh: AnyMesh | None = None, in_specs: Specs = None
) -> jax.Array:
    """How many singular values of a sharded matrix are more than ``rtol`` times the largest.

    Args:
      a: (m, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      rtol: Default: rounding times max(m, n), as in NumPy.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case.

    Returns:
      The rank, a replicated int32. A matrix with NaN or infinities has rank 0, as in NumPy.

    Raises:
      ValueError, TypeError: as `svd`.
    """
    a, placed = _arguments.matrix("matrix_rank", a, mesh, in_specs)
    plan = Plan.of(a.shape, placed, False, False, False)
    return count(_svd.decompose(a, plan)[0], cutoff(rtol, a.dtype, a.shape))


def orth(
    a: Any, rcond: float | None = None, *, mesh: AnyMesh | None = None, in_specs: Specs = None
) -> jax.Array:
    """An orthonormal basis of the range of a sharded matrix, by `svd`, as `scipy.linalg.orth`.

    Args:
      a: (m, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      rcond: the cutoff of singular values, beside the largest. Default: rounding times max(m, n).
      mesh: the mesh of ``a``, if the array does not have one.
      in_specs: the PartitionSpec of ``a`` in the same case.

    Returns:
      (m, rank); rows sharded as those of ``a``.

    Raises:
      ValueError: as `svd`; inside `jax.jit`, where the shape of the result is not known.
      TypeError: as `svd`.
      numpy.linalg.LinAlgError: ``a`` has elements that are not finite.
    """
    a, placed = _arguments.matrix("orth", a, mesh, in_specs)
    u, s = _svd.decompose(a, Plan.of(a.shape, placed, True, False, False))
    return u[:, : _rank_outside_jit("orth", s, cutoff(rcond, a.dtype, a.shape))]


def null_space(
    a: Any, rcond: float | None = None, *, mesh: AnyMesh | None = None, in_specs: Specs = None
) -> jax.Array:
    """An orthonormal basis of the vectors that a sharded matrix takes to zero, by `svd`.

    Its arguments and errors are those of `orth`.

    Returns:
      (n, n - rank); rows sharded as the columns of ``a``, if they divide evenly.
    """
    a, placed = _arguments.matrix("null_space", a, mesh, in_specs)
    plan = Plan.of(a.shape, placed, False, True, True)
    s, vh = _svd.decompose(a, plan)
    v = _posdef.adjoint(vh, plan.result((a.shape[1],) * 2, True))
    return v[:, _rank_outside_jit("null_space", s, cutoff(rcond, a.dtype, a.shape)) :]


def _thin(shape: Any, placed: Placed) -> Plan:
    return Plan.of(shape, placed, True, True, False)


def cutoff(given: float | None, dtype: Any, shape: tuple[int, ...]) -> float:
    return float(np.finfo(dtype).eps) * max(shape) if given is None else float(given)


def count(s: jax.Array, cutoff: float) -> jax.Array:
    return (s > cutoff * s.max(initial=0)).sum().astype(jnp.int32)


def _rank_outside_jit(function: str, s: jax.Array, cutoff: float) -> int:
    rank = count(s, cutoff)
    if isinstance(rank, Tracer):
        raise ValueError(
            f"{function}: the shape of the result depends on the rank, which is not known inside a "
            "transformation such as jax.jit. Take lockstep.linalg.svd there."
        )
    if not jnp.isfinite(s).all():
        raise np.linalg.LinAlgError(f"{function}: the matrix has elements that are not finite.")
    return int(rank)


class Decomposed(NamedTuple):
    """``a = u s vh`` with min(m, n) singular values."""

    u: jax.Array
    s: jax.Array
    vh: jax.Array


def decompose(a: jax.Array, plan: Plan) -> Decomposed:
    return Decomposed(*_singular.decompose(a, plan))


def pseudo_solve(
    found: Decomposed,
    b: jax.Array,
    plan: Plan,
    b_placed: Placed,
    cutoff: float,
    adjoint: bool = False,
) -> jax.Array:
    """``a^+ b``, or with the adjoint of ``a``, sharded as ``b`` where its rows divide evenly."""
    (m, n), k = plan.shape, len(found.s)
    if adjoint:
        left, right, length = found.u, found.vh, m
    else:
        left = _posdef.adjoint(found.vh, plan.result((n, k), True))
        right = _posdef.adjoint(found.u, plan.result((k, m), True))
        length = n
    few = Placed(b_placed.mesh, ((), b_placed.dimensions[1]))
    inner = _inverses(found.s, cutoff)[:, None] * _posdef.matmul(right, b, few)
    return _posdef.matmul(left, inner, b_placed.with_rows(length))


def _inverses(s: jax.Array, cutoff: float) -> jax.Array:
    kept = s > cutoff * s.max(initial=0)
    return jnp.where(kept, 1 / jnp.where(kept, s, 1), 0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _pinv(a: jax.Array, plan: Plan, cutoff: float) -> jax.Array:
    (m, n), k = plan.shape, min(plan.shape)
    if not k:
        return _qr.unit(plan.result((n, m), True), (n, m), a.dtype)
    u, s, vh = _singular.decompose(a, plan)
    v = _posdef.adjoint(vh, plan.result((n, k), True))
    uh = _posdef.adjoint(u, plan.result((k, m), True))
    return _posdef.matmul(v * _inverses(s, cutoff), uh, plan.result((n, m), True))


@_pinv.defjvp
def _pinv_jvp(plan: Plan, cutoff: float, primals: Any, tangents: Any) -> Any:
    """``dp = -p da p + p p^H da^H (1 - a p) + (1 - p a) da^H p^H p`` (Golub and Pereyra 1973)."""
    (a,), (da,), (m, n) = primals, tangents, plan.shape
    p = _pinv(a, plan, cutoff)
    placed, turned = plan.placed, plan.result((n, m), True)

    def times(x: jax.Array, y: jax.Array, shape: tuple[int, int]) -> jax.Array:
        return _posdef.matmul(x, y, plan.result(shape, shape[0] == n))

    ph, dah = _posdef.adjoint(p, placed), _posdef.adjoint(da, turned)
    left = times(times(p, ph, (n, n)), dah, (n, m))
    right = times(dah, times(ph, p, (m, m)), (n, m))
    change = left - times(times(left, a, (n, n)), p, (n, m))
    change = change + right - times(p, times(a, right, (m, m)), (n, m))
    return p, change - times(times(p, da, (n, n)), p, (n, m))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
def _pseudo_solve(
    a: jax.Array, b: jax.Array, plan: Plan, b_placed: Placed, cutoff: float
) -> tuple[jax.Array, jax.Array]:
    """``a^+ b`` and the singular values."""
    found = decompose(a, plan)
    return pseudo_solve(found, b, plan, b_placed, cutoff), found.s


@_pseudo_solve.defjvp
def _pseudo_solve_jvp(
    plan: Plan, b_placed: Placed, cutoff: float, primals: Any, tangents: Any
) -> Any:
    (a, b), (da, db) = primals, tangents
    x_placed = b_placed.with_rows(plan.shape[1])
    x = _pseudo_solve(a, b, plan, b_placed, cutoff)[0]
    s, ds = jax.jvp(
        lambda a: _svd.decompose(a, dataclasses.replace(plan, u=False, vh=False))[0], (a,), (da,)
    )
    p, dp = jax.jvp(lambda a: _pinv(a, plan, cutoff), (a,), (da,))
    return (x, s), (_posdef.matmul(p, db, x_placed) + _posdef.matmul(dp, b, x_placed), ds)
