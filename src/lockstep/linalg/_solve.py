"""Solving with Hermitian positive definite matrices, and inverses: the public functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from lockstep.linalg import _arguments, _general, _hermitian, _posdef, _validation
from lockstep.linalg._posdef import Plan
from lockstep.linalg._validation import AnyMesh, Specs


def potrs(
    a: Any,
    b: Any,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    return_status: bool = False,
    *,
    lower: bool | None = None,
    return_logdet: bool = False,
    check: bool = False,
    donate: bool = False,
    **unused: Any,
) -> Any:
    """Solves ``a x = b`` for a sharded Hermitian positive definite ``a``.

    The counterpart of LAPACK's potrf and potrs (posv): a left-looking Cholesky factorization (Golub
    and Van Loan, Matrix Computations, 4.2.8) by supersteps over rows, then a forward and a backward
    sweep. A matrix that is sharded by rows is not redistributed: the elimination follows a
    symmetric permutation of the rows that balances the work. Many devices factor as a grid of rows
    and columns (Poulson et al., ACM TOMS 39, 2013), where a cost model finds that faster; it takes
    memory for one share of ``a`` more. Differentiable in ``a`` and ``b``.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      b: (n,) or (n, k) with the dtype of ``a``; any sharding over the same mesh.
      T_A: the maximal number of rows of a tile; default: chosen by a cost model. Any number of 1 or
        more gives the same result up to rounding.
      mesh: the mesh of ``a`` and ``b``, if the arrays do not have one (tracers inside `jax.jit`).
      in_specs: their shardings in the same case: a PartitionSpec for ``a``, or one for each.
      return_status: also return the status: 0, or the order of the first leading minor of ``a``
        that is not positive definite, like LAPACK's ``info``. Replicated int32. Needs one
        all-to-all of ``a``.
      lower: read only the lower (True) or upper (False) triangle, whatever the other one holds.
        None: ``a`` must be Hermitian, which is checked outside of `jax.jit`. Then one of two
        mirrored elements is read; which one depends on the sharding.
      return_logdet: also return the natural logarithm of the determinant of ``a``: a real,
        replicated scalar.
      check: raise an error when ``a`` is not positive definite; not possible inside `jax.jit`.
      donate: reuse the memory of ``a`` for the factor; ``a`` cannot be used afterwards. Not for
        calls that are differentiated.
      **unused: jaxmg's ``pad``, which is ignored, because any size works.

    Returns:
      x, with the shape, dtype and sharding of ``b``; or (x, logdet), (x, status), or
      (x, logdet, status). x is NaN when ``a`` is not positive definite.

    Raises:
      ValueError: an ``a`` that is not Hermitian beyond rounding (without ``lower``, outside of
        `jax.jit`); wrong shapes, a mesh or specs that do not fit the arrays, dimensions
        that cannot be split evenly, or ``check`` inside `jax.jit`.
      TypeError: an unsupported dtype, different dtypes, or an unknown argument.
      numpy.linalg.LinAlgError: with ``check``, when ``a`` is not positive definite.
    """
    _validation.ignore_pad("potrs", unused)
    given = a
    a, b, placed, b_placed = _arguments.system("potrs", a, b, mesh, in_specs)
    if a.shape[0] == 0:
        logdet = jnp.zeros((), a.real.dtype)
        return _results(b, logdet, jnp.int32(0), return_logdet, return_status)
    if lower is None:
        _hermitian.check("potrs", a, placed)
    status_wanted = return_status or check
    tile = _validation.tile_size("potrs", T_A)
    plan = Plan.for_cholesky(a.shape[0], placed, tile, status_wanted)
    donating = donate and not isinstance(a, Tracer)
    low, status = _posdef.factor(lax.stop_gradient(a), plan, lower, status_wanted, donating)
    _validation.check_status("potrs", check, status)
    if donating:
        _posdef.delete(given, a)
        a = None  # only derivatives need the matrix
    elif lower is not None:
        a = _posdef.mirrored(a, lower)
    x = b
    if b.size:
        x = _posdef.as_matrix(lambda b, on: _posdef.solve(a, low, b, plan, on), b, b_placed)
    logdet = None
    if return_logdet:
        logdet = _posdef.log_determinant(a, low, plan)
    return _results(x, logdet, status, return_logdet, return_status)


def inv(
    a: Any,
    *,
    assume_a: str | None = None,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    lower: bool | None = None,
    tile: int | None = None,
    return_status: bool = False,
    check: bool = False,
    donate: bool = False,
) -> Any:
    """The inverse of a sharded square matrix; the counterpart of `jax.numpy.linalg.inv`.

    Of a general matrix: LU factors as of `solve`, and the solutions for the columns of the
    identity, ``8/3 n^3`` flops. Of a Hermitian positive definite one, if ``assume_a`` says so, in
    place and in ``n^3``: a Cholesky factorization, the inverse of the triangle and its product with
    its adjoint (LAPACK's potrf and potri; Bientinesi, Gunter and van de Geijn, "Families of
    algorithms related to the inversion of a symmetric positive definite matrix", ACM TOMS 35,
    2008). Differentiable in ``a``.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      assume_a: "gen" (general) or "pos" (Hermitian positive definite). Default: "pos" if ``lower``
        is given, else "gen".
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case.
      lower: for "pos": read only the lower (True) or upper (False) triangle, whatever the other one
        holds. None: ``a`` must be Hermitian, which is checked outside of `jax.jit`. Then one of two
        mirrored elements is read; which one depends on the sharding.
      tile: the maximal number of rows of a tile; default: chosen by a cost model.
      return_status: also return the status, a replicated int32: 0, or k > 0 if ``a`` is singular:
        the pivot of row k (counted from 1) is zero or not finite. For "pos": if it is not positive
        definite; k is the order of the first leading minor that is not, like LAPACK's ``info``.
      check: raise an error when the status is not 0; not possible inside `jax.jit`.
      donate: reuse the memory of ``a``; ``a`` cannot be used afterwards. Not for calls that are
        differentiated.

    Returns:
      The inverse (n, n), with the dtype and sharding of ``a``; NaN when the status is not 0. With
      ``return_status`` the pair (inverse, status).

    Raises:
      ValueError: another ``assume_a``; for "pos" an ``a`` that is not Hermitian beyond rounding
        (without ``lower``, outside of `jax.jit`); a wrong shape, a mesh or specs that do not fit
        ``a``, dimensions that cannot be split evenly, or ``check`` inside `jax.jit`.
      TypeError: an unsupported dtype.
      numpy.linalg.LinAlgError: with ``check``, when the status is not 0.
    """
    if assume_a is None:
        assume_a = "gen" if lower is None else "pos"
    if assume_a not in ("gen", "pos") or (assume_a == "gen" and lower is not None):
        raise ValueError(
            f"inv: assume_a is {assume_a!r}, lower is {lower!r}; expected assume_a='gen', or 'pos' "
            "with or without lower=."
        )
    if assume_a == "pos":
        return _inverse("inv", a, tile, mesh, in_specs, return_status, lower, check, donate)
    return _inverse_of_general(a, tile, mesh, in_specs, return_status, check, donate)


def _inverse_of_general(
    a: Any,
    tile: int | None,
    mesh: AnyMesh | None,
    in_specs: Specs,
    return_status: bool,
    check: bool,
    donate: bool,
) -> Any:
    given = a
    a, placed = _arguments.square("inv", a, mesh, in_specs)
    if a.shape[0] == 0:
        return (a, jnp.int32(0)) if return_status else a
    plan = _general.plan_of(a.shape[0], placed, _validation.tile_size("inv", tile))
    donating = donate and not isinstance(a, Tracer)
    factors = _general.factor(lax.stop_gradient(a), plan, donating)
    status = _general.status(factors, plan)
    _validation.check_singular("inv", check, status, "row")
    if donating:
        _posdef.delete(given, a)
    if isinstance(a, Tracer):
        found = _general.inverse(a, factors, plan)
    else:
        found = _general.inverse_of(factors, plan)
    found = jnp.where(status == 0, found, jnp.nan)
    return (found, status) if return_status else found


def potri(
    a: Any,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    return_status: bool = False,
    *,
    lower: bool | None = None,
    check: bool = False,
    donate: bool = False,
    **unused: Any,
) -> Any:
    """The inverse of a sharded Hermitian positive definite matrix, with jaxmg's arguments.

    Unlike LAPACK's potri, which takes a Cholesky factor, it takes the matrix and factors it, as
    jaxmg does; and it returns both triangles. What is not listed here is as in `inv` with
    ``assume_a="pos"``.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      T_A: the argument ``tile`` of `inv`: the maximal number of rows of a tile.
      lower: which triangle of ``a`` is read, as in `inv`.
      **unused: jaxmg's ``pad``, which is ignored, because any size works.

    Returns:
      The inverse (n, n) of ``a``, or with ``return_status`` the pair (inverse, status).

    Raises:
      TypeError: also for an unknown argument.
    """
    _validation.ignore_pad("potri", unused)
    return _inverse("potri", a, T_A, mesh, in_specs, return_status, lower, check, donate)


def _inverse(
    function: str,
    a: Any,
    tile: int | None,
    mesh: AnyMesh | None,
    in_specs: Specs,
    return_status: bool,
    lower: bool | None,
    check: bool,
    donate: bool,
) -> Any:
    given = a
    a, placed = _arguments.square(function, a, mesh, in_specs)
    if a.shape[0] == 0:
        return (a, jnp.int32(0)) if return_status else a
    if lower is None:
        _hermitian.check(function, a, placed)
    status_wanted = return_status or check
    plan = Plan.of(a.shape[0], placed, _validation.tile_size(function, tile), status_wanted)
    differentiated = isinstance(a, Tracer)
    donating = donate and not differentiated
    low, status = _posdef.factor(lax.stop_gradient(a), plan, lower, status_wanted, donating)
    _validation.check_status(function, check, status)
    if donating:
        _posdef.delete(given, a)
    if differentiated:
        found = _posdef.inverse(a if lower is None else _posdef.mirrored(a, lower), low, plan)
    else:
        found = _posdef.inverse_of_donating(low, plan)
    return (found, status) if return_status else found


def _results(
    x: jax.Array, logdet: Any, status: jax.Array, return_logdet: bool, return_status: bool
) -> Any:
    found = (x, *([logdet] if return_logdet else []), *([status] if return_status else []))
    return found if len(found) > 1 else x
