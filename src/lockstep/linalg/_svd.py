"""Singular value decomposition of sharded matrices: the public functions."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from lockstep.linalg import _arguments, _posdef, _qr, _singular, _singular_plan, _validation
from lockstep.linalg._singular_plan import Plan
from lockstep.linalg._validation import AnyMesh, Placed, Specs


def svd(
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    method: str | None = None,
) -> Any:
    """The singular value decomposition ``a = u s vh`` of a sharded matrix of any shape.

    The counterpart of `jax.numpy.linalg.svd` and ScaLAPACK's pdgesvd: QR (Chan 1982), then on CPUs
    the triangle's bidiagonal form by Householder reflections and divide and conquer (Gu and
    Eisenstat 1995), on GPUs its polar decomposition by QDWH and the eigenvalues of the Hermitian
    factor (Nakatsukasa and Higham 2013). ``u`` and ``vh`` are orthonormal to rounding, whatever the
    rank; the error of each singular value is a small multiple of rounding times the largest one, so
    that much smaller ones have fewer correct digits. Differentiable as `jax.numpy.linalg.svd`,
    without ``full_matrices``; terms of equal singular values are left out.

    Args:
      a: (m, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      full_matrices: whether ``u`` and ``vh`` are square.
      compute_uv: whether to return ``u`` and ``vh``.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case.
      method: "distributed", or "replicated": every device decomposes the triangle with LAPACK.
        Default: "replicated" for small matrices, else "distributed".

    Returns:
      u (m, k), s (k,) and vh (k, n), k = min(m, n); with ``full_matrices`` u (m, m) and vh (n, n).
      s is descending, real and replicated. Each dimension of the others is sharded as that of ``a``
      if it divides evenly. Without ``compute_uv`` only s.

    Raises:
      ValueError: a wrong shape or method, a mesh or specs that do not fit ``a``, or dimensions that
        cannot be split evenly.
      NotImplementedError: the derivative with ``full_matrices`` of a matrix that is not square.
      TypeError: an unsupported dtype.
    """
    _singular_plan.check_method("svd", method)
    a, placed = _arguments.matrix("svd", a, mesh, in_specs)
    plan = Plan.of(a.shape, placed, compute_uv, compute_uv, full_matrices, method=method)
    found = decompose(a, plan)
    return found if compute_uv else found[0]


def svdvals(
    a: Any,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    method: str | None = None,
) -> jax.Array:
    """The singular values (k,) of a sharded matrix, descending: `svd` without vectors.

    On CPUs it reduces the matrix to a band first (Grosser and Lang 1999), which `svd` does not.

    Args:
      a: (m, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case.
      method: as in `svd`.

    Raises:
      ValueError, TypeError: as `svd`.
    """
    return svd(a, False, False, mesh=mesh, in_specs=in_specs, method=method)


def gesvd(
    a: Any,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    compute_u: bool = True,
    compute_vh: bool = True,
    full_matrices: bool = False,
    return_status: bool = False,
    **unused: Any,
) -> Any:
    """`svd` with jaxmg's arguments, under the name of LAPACK's gesvd.

    Args:
      a: (m, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      T_A: the maximal number of rows of a tile; default: by the size of the matrix.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      matrix_specs: the PartitionSpec of ``a`` in the same case.
      in_specs: jaxmg's other name of ``matrix_specs``.
      compute_u: whether to return the left singular vectors.
      compute_vh: whether to return the adjoint of the right singular vectors.
      full_matrices: whether these are square.
      return_status: also return the status: 0, or 1 when a singular value is not finite.
      **unused: jaxmg's ``pad`` and ``donate``, which are ignored.

    Returns:
      (u, s, vh), (u, s), (s, vh) or s, with ``return_status`` followed by the status (int32).

    Raises:
      ValueError, NotImplementedError, TypeError: as `svd`; TypeError also for an unknown argument.
    """
    unused.pop("donate", None)
    _validation.ignore_pad("gesvd", unused)
    a, placed = _arguments.matrix("gesvd", a, mesh, matrix_specs if in_specs is None else in_specs)
    tile = _validation.tile_size("gesvd", T_A)
    found = decompose(a, Plan.of(a.shape, placed, compute_u, compute_vh, full_matrices, tile))
    if return_status:
        found = (*found, _qr.status_of(found[int(compute_u)]))
    return found[0] if len(found) == 1 else found


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def decompose(a: jax.Array, plan: Plan) -> tuple[jax.Array, ...]:
    return _singular.decompose(a, plan)


@decompose.defjvp
def _decompose_jvp(plan: Plan, primals: Any, tangents: Any) -> Any:
    """As in jax.numpy.linalg.svd; a term of two equal singular values counts as zero.

    With ``d = u^H da v``, ``f_ij = 1 / (s_j^2 - s_i^2)``: ``du = u (f (d s + s d^H))``, ``dv = v
    (f (s d + d^H s))``, and what is outside of the spaces of ``u`` and ``v``, over ``s``.
    """
    (a,), (da,) = primals, tangents
    (m, n), k = plan.shape, min(plan.shape)
    if plan.is_full and m != n and (plan.u or plan.vh):
        raise NotImplementedError(
            f"svd: the derivative of full_matrices=True needs a square matrix; this is {m} x {n}. "
            "Give full_matrices=False."
        )
    u, s, vh = decompose(a, dataclasses.replace(plan, u=True, vh=True, is_full=False))
    placed = (
        plan.result((m, k)),
        plan.result((n, k), True),
        plan.result((k, k)),
    )

    def times(x: jax.Array, y: jax.Array, to: Placed) -> jax.Array:
        return _posdef.matmul(x, y, to)

    u_placed, v_placed, square = placed
    v, uh = _posdef.adjoint(vh, v_placed), _posdef.adjoint(u, plan.result((k, m), True))
    dav = times(da, v, u_placed)
    d = times(uh, dav, square)
    ds = jnp.diagonal(d).real
    if not (plan.u or plan.vh):
        return (s,), (ds,)
    gap = (s + s[:, None]) * (s - s[:, None])
    f = jnp.where(gap == 0, 0, 1 / jnp.where(gap == 0, 1, gap))
    inverse = jnp.where(s == 0, 0, 1 / jnp.where(s == 0, 1, s))
    right, left = d * s, s[:, None] * d
    phases = jnp.eye(k, dtype=d.dtype) * (d - d.conj().T) / 2 * inverse
    du = times(u, f * (right + right.conj().T) + phases, u_placed)
    dv = times(v, f * (left + left.conj().T), v_placed)
    if m > n:
        du = du + (dav - times(u, d, u_placed)) * inverse
    if n > m:
        dah = _posdef.adjoint(da, plan.result((n, m), True))
        dau = times(dah, u, v_placed)
        dv = dv + (dau - times(v, d.conj().T, v_placed)) * inverse
    dvh = _posdef.adjoint(dv, plan.result((k, n)))
    pairs = [(u, du)] * plan.u + [(s, ds)] + [(vh, dvh)] * plan.vh
    return tuple(zip(*pairs, strict=True))
