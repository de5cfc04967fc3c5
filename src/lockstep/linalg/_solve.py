"""Solving with Hermitian positive definite matrices, and their inverses: the public functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from lockstep.linalg import _posdef, _validation
from lockstep.linalg._posdef import Plan
from lockstep.linalg._validation import AnyMesh, Placed, Specs


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

    Cholesky by supersteps over rows (`cholesky`), a forward and a backward sweep. When ``a`` is
    sharded by rows nothing is redistributed: the elimination follows a symmetric permutation of the
    rows that spreads the work evenly.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      b: (n,) or (n, k) of the same dtype; any sharding over the same mesh.
      T_A: rows of a tile at most; chosen by a cost model when left out.
      mesh: where ``a`` and ``b`` are, when they do not say so themselves (inside `jax.jit`).
      in_specs: likewise, one PartitionSpec for ``a`` or one for each.
      return_status: also return 0, or the order of the first leading minor of ``a`` that is not
        positive definite, as LAPACK's ``info``. Replicated int32. Costs one all-to-all of ``a``.
      lower: read only the lower (True) or upper (False) triangle. Left out, both are read and must
        be those of a Hermitian matrix.
      return_logdet: also return the logarithm of the determinant of ``a``, replicated.
      check: raise when ``a`` is not positive definite; not inside `jax.jit`.
      donate: give the memory of ``a`` to the factor; ``a`` cannot be used afterwards. Not for
        calls that are differentiated.

    jaxmg's ``pad`` is accepted and has no meaning here: any size works.

    Returns:
      x, of the shape and sharding of ``b``; or (x, logdet), (x, status), (x, logdet, status). NaN
      when ``a`` is not positive definite.

    Raises:
      ValueError, TypeError: shapes, dtypes, mesh or specs that cannot work.
      numpy.linalg.LinAlgError: with ``check``, when ``a`` is not positive definite.
    """
    _validation.ignore_pad("potrs", unused)
    a = _validation.square("potrs", a)
    b = _validation.right_hand_side("potrs", b, a.shape[0], a.dtype)
    placed, b_placed = _validation.place_both("potrs", a, b, mesh, in_specs)
    if a.shape[0] == 0:
        logdet = jnp.zeros((), a.real.dtype)
        return _results(b, logdet, jnp.int32(0), return_logdet, return_status)
    given = a
    a, b = _validation.put(a, placed), _validation.put(b, b_placed)
    status_wanted = return_status or check
    plan = Plan.of(a.shape[0], placed, _validation.tile_size("potrs", T_A), status_wanted)
    donating = donate and not isinstance(a, Tracer)
    low, status = _posdef.factor(lax.stop_gradient(a), plan, lower, status_wanted, donating)
    _validation.check_status("potrs", check, status)
    if donating:
        _delete(given, a)
        a = None  # only derivatives look at the matrix
    elif lower is not None:
        a = _posdef.mirrored(a, lower)
    x = _posdef.as_matrix(_solve_positive, b, b_placed)(a, low, plan) if b.size else b
    logdet = None
    if return_logdet:
        logdet = _posdef.log_determinant(a, low, plan)
    return _results(x, logdet, status, return_logdet, return_status)


def inv(
    a: Any,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    lower: bool | None = None,
    tile: int | None = None,
    return_status: bool = False,
    check: bool = False,
    donate: bool = False,
) -> Any:
    """The inverse of a sharded Hermitian positive definite matrix, sharded as the matrix.

    Arguments, errors and the layout as for `potrs` (``tile`` is its ``T_A``). The whole inverse is
    returned, both triangles; with ``donate`` it may take the memory of ``a``.
    """
    return _inverse("inv", a, tile, mesh, in_specs, return_status, lower, check, donate)


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
    """`inv` under LAPACK's name, with jaxmg's arguments: it factors ``a`` itself."""
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
    a = _validation.square(function, a)
    [spec] = _validation.specs(function, in_specs, ("a",))
    placed = _validation.place(function, a, mesh, spec)
    if a.shape[0] == 0:
        return (a, jnp.int32(0)) if return_status else a
    given, a = a, _validation.put(a, placed)
    status_wanted = return_status or check
    plan = Plan.of(a.shape[0], placed, _validation.tile_size(function, tile), status_wanted)
    differentiated = isinstance(a, Tracer)
    donating = donate and not differentiated
    low, status = _posdef.factor(lax.stop_gradient(a), plan, lower, status_wanted, donating)
    _validation.check_status(function, check, status)
    if donating:
        _delete(given, a)
    if differentiated:
        found = _posdef.inverse(a if lower is None else _posdef.mirrored(a, lower), low, plan)
    else:
        found = _posdef.inverse_of_donating(low, plan)
    return (found, status) if return_status else found


def _delete(given: jax.Array, put: jax.Array) -> None:
    """What the caller gave, when it was copied to where it was wanted, is not kept either."""
    if put is not given and not given.is_deleted():
        given.delete()


def _solve_positive(
    b: jax.Array, b_placed: Placed, a: jax.Array | None, low: jax.Array, plan: Plan
) -> jax.Array:
    return _posdef.solve(a, low, b, plan, b_placed)


def _results(
    x: jax.Array, logdet: Any, status: jax.Array, return_logdet: bool, return_status: bool
) -> Any:
    found = (x, *([logdet] if return_logdet else []), *([status] if return_status else []))
    return found if len(found) > 1 else x
