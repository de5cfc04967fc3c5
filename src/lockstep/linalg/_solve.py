"""Solving with Hermitian positive definite matrices, and their inverses: the public functions."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from lockstep.linalg import _arguments, _positive
from lockstep.linalg._arguments import AnyMesh, Placed, Specs
from lockstep.linalg._positive import Plan


def cholesky(
    a: Any,
    lower: bool = False,
    *,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    tile: int | None = None,
    return_status: bool = False,
    check: bool = False,
) -> Any:
    """The Cholesky factor of a sharded Hermitian positive definite matrix.

    Left-looking over row block-cyclic tiles (Golub and Van Loan, 4.2.8). The matrix is moved into
    that layout by one all-to-all, and the factor back by another.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      lower: the lower triangle of ``a`` is read, and ``l`` with ``a = l l^H`` is returned;
        otherwise the upper triangle, and ``u`` with ``a = u^H u``. As in SciPy.
      mesh: where ``a`` is, when it does not say so itself (inside `jax.jit`).
      in_specs: likewise, how its dimensions lie over the mesh.
      tile: rows of a tile; chosen by a cost model when left out.
      return_status: also return the status: 0, or the order of the first leading minor that is not
        positive definite, as LAPACK's ``info``. Replicated int32.
      check: raise when the matrix is not positive definite; not inside `jax.jit`.

    Returns:
      The factor, sharded as ``a``, zero in the other triangle; all NaN beyond the superstep of a
      minor that is not positive. With ``return_status`` the pair (factor, status).

    Raises:
      ValueError, TypeError: shape, dtype, mesh or specs that cannot work.
      numpy.linalg.LinAlgError: with ``check``, when the matrix is not positive definite.
    """
    a = _arguments.square("cholesky", a)
    [spec] = _arguments.specs("cholesky", in_specs, ("a",))
    placed = _arguments.place("cholesky", a, mesh, spec)
    if a.shape[0] == 0:
        return (a, jnp.int32(0)) if return_status else a
    a = _arguments.put(a, placed)
    plan = Plan.of(a, placed, _tile("cholesky", tile), True, _arguments.platform(placed))
    if not lower:
        a = _adjoint(a, plan)
    found, status = _factor_lower(a, plan, return_status or check)
    _check("cholesky", check, status)
    if not lower:
        found = _adjoint(found, plan)
    return (found, status) if return_status else found


def cho_factor(a: Any, lower: bool = False, **options: Any) -> tuple[jax.Array, bool]:
    """`cholesky` as the pair (factor, lower) that `cho_solve` takes; options are those of it."""
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

    Args:
      c_and_lower: what `cho_factor` returns: the factor, and whether it is the lower one.
      b: (n,) or (n, k), any sharding over the same mesh.
      mesh: as for `potrs`.
      in_specs: as for `potrs`, of the factor and of ``b``.
      tile: rows of a tile; chosen by a cost model when left out.

    Returns:
      x, of the shape and the sharding of ``b``.
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
    """Solves ``a x = b`` (trans=0), ``a^T x = b`` (1) or ``a^H x = b`` (2) for a triangle ``a``.

    Only the triangle that ``lower`` names is read. Other arguments and errors as for `potrs`.
    """
    a = _arguments.square("solve_triangular", a)
    b = _arguments.right_hand_side("solve_triangular", b, a.shape[0], a.dtype)
    placed, b_placed = _place_both("solve_triangular", a, b, mesh, in_specs)
    if b.size == 0:
        return b
    a, b = _arguments.put(a, placed), _arguments.put(b, b_placed)
    plan = Plan.of(a, placed, _tile("solve_triangular", tile), True, _arguments.platform(placed))
    if trans not in (0, 1, 2):
        raise ValueError(f"solve_triangular: trans is {trans!r}; wanted is 0, 1 or 2.")
    if trans == 1:
        return solve_triangular(
            a.conj(), b, 2, lower, mesh=placed.mesh, in_specs=(placed.spec, b_placed.spec)
        )
    if not lower:
        a, trans = _adjoint(a, plan), 2 - trans
    return _as_matrix(_solve_lower, b, b_placed)(a, plan, adjoint=trans == 2)


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
    _ignore_pad("potrs", unused)
    a = _arguments.square("potrs", a)
    b = _arguments.right_hand_side("potrs", b, a.shape[0], a.dtype)
    placed, b_placed = _place_both("potrs", a, b, mesh, in_specs)
    if a.shape[0] == 0:
        logdet = jnp.zeros((), a.real.dtype)
        return _results(b, logdet, jnp.int32(0), return_logdet, return_status)
    given = a
    a, b = _arguments.put(a, placed), _arguments.put(b, b_placed)
    status_wanted = return_status or check
    plan = Plan.of(a, placed, _tile("potrs", T_A), status_wanted, _arguments.platform(placed))
    donating = donate and not isinstance(a, Tracer)
    low, status = _positive.factor(lax.stop_gradient(a), plan, lower, status_wanted, donating)
    _check("potrs", check, status)
    if donating:
        if a is not given and not given.is_deleted():
            given.delete()
        a = None  # only derivatives look at the matrix
    elif lower is not None:
        a = _positive.mirrored(a, lower)
    x = _as_matrix(_solve_positive, b, b_placed)(a, low, plan) if b.size else b
    logdet = None
    if return_logdet:
        logdet = _positive.log_determinant(a, low, plan)
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
) -> Any:
    """The inverse of a sharded Hermitian positive definite matrix, sharded as the matrix.

    Arguments, errors and the layout as for `potrs` (``tile`` is its ``T_A``). The whole inverse is
    returned, both triangles.
    """
    return _inverse("inv", a, tile, mesh, in_specs, return_status, lower, check)


def potri(
    a: Any,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    return_status: bool = False,
    *,
    lower: bool | None = None,
    check: bool = False,
    **unused: Any,
) -> Any:
    """`inv` under LAPACK's name, with jaxmg's arguments: it factors ``a`` itself."""
    _ignore_pad("potri", unused)
    return _inverse("potri", a, T_A, mesh, in_specs, return_status, lower, check)


def _inverse(
    function: str,
    a: Any,
    tile: int | None,
    mesh: AnyMesh | None,
    in_specs: Specs,
    return_status: bool,
    lower: bool | None,
    check: bool,
) -> Any:
    a = _arguments.square(function, a)
    [spec] = _arguments.specs(function, in_specs, ("a",))
    placed = _arguments.place(function, a, mesh, spec)
    if a.shape[0] == 0:
        return (a, jnp.int32(0)) if return_status else a
    a = _arguments.put(a, placed)
    status_wanted = return_status or check
    plan = Plan.of(a, placed, _tile(function, tile), status_wanted, _arguments.platform(placed))
    low, status = _positive.factor(lax.stop_gradient(a), plan, lower, status_wanted)
    _check(function, check, status)
    found = _positive.inverse(a if lower is None else _positive.mirrored(a, lower), low, plan)
    return (found, status) if return_status else found


def _solve_positive(
    b: jax.Array, b_placed: Placed, a: jax.Array | None, low: jax.Array, plan: Plan
) -> jax.Array:
    return _positive.solve(a, low, b, plan, b_placed)


def _solve_lower(
    b: jax.Array, b_placed: Placed, a: jax.Array, plan: Plan, adjoint: bool
) -> jax.Array:
    """``a^-1 b`` or ``a^-H b``, only the lower triangle of ``a`` being read."""
    low = _positive.to_slots(lax.stop_gradient(a), plan, None)

    def times(x: jax.Array) -> jax.Array:
        triangle = jnp.tril(a)
        triangle = triangle.conj().T if adjoint else triangle
        return _positive.matmul(triangle, x, b_placed)

    def run(back: bool, b: jax.Array) -> jax.Array:
        return _positive.batched_sweep(low, b, plan, b_placed, ("backward" if back else "forward",))

    return lax.custom_linear_solve(
        times,
        b,
        solve=lambda _, b: run(adjoint, b),
        transpose_solve=lambda _, b: run(not adjoint, b.conj()).conj(),
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _factor_lower(a: jax.Array, plan: Plan, with_status: bool) -> tuple[jax.Array, jax.Array]:
    low, status = _positive.factor(a, plan, None, with_status)
    return _positive.lower_to_matrix(low, plan), status


@_factor_lower.defjvp
def _factor_lower_jvp(plan: Plan, with_status: bool, primals: Any, tangents: Any) -> Any:
    """dl = l phi(l^-1 da l^-H), phi halving the diagonal of the lower triangle."""
    low, status = _factor_lower(primals[0], plan, with_status)
    where = {"mesh": plan.mesh, "in_specs": (plan.placed.spec,) * 2}
    da = _positive.mirrored(tangents[0], True)
    half = solve_triangular(low, da, 0, True, **where)
    whole = solve_triangular(low, _adjoint(half, plan), 0, True, **where)
    eye = jnp.eye(low.shape[0], dtype=low.dtype)
    phi = jnp.tril(whole) * (1 - eye / 2)
    dl = _positive.matmul(low, phi, plan.placed)
    return (low, status), (dl, np.zeros(status.shape, jax.dtypes.float0))


def _adjoint(a: jax.Array, plan: Plan) -> jax.Array:
    return _positive.partitioned(lambda a: a.conj().T, plan.placed)(a)


def _as_matrix(run: Any, b: jax.Array, b_placed: Placed) -> Any:
    """``run(b, b_placed, ...)`` on a matrix, whether ``b`` is one or a vector."""
    if b.ndim == 2:
        return functools.partial(run, b, b_placed)
    wide = Placed(b_placed.mesh, (b_placed.dimensions[0], ()))
    return lambda *args, **kwargs: run(b[:, None], wide, *args, **kwargs)[:, 0]


def _place_both(
    function: str, a: jax.Array, b: jax.Array, mesh: AnyMesh | None, in_specs: Specs
) -> tuple[Placed, Placed]:
    a_spec, b_spec = _arguments.specs(function, in_specs, ("a", "b"))
    placed = _arguments.place(function, a, mesh, a_spec)
    return placed, _arguments.place(function, b, placed.mesh, b_spec, "b")


def _results(
    x: jax.Array, logdet: Any, status: jax.Array, return_logdet: bool, return_status: bool
) -> Any:
    found = (x, *([logdet] if return_logdet else []), *([status] if return_status else []))
    return found if len(found) > 1 else x


def _tile(function: str, tile: Any) -> int | None:
    return _arguments.tile_size(function, tile)


def _check(function: str, check: bool, status: jax.Array) -> None:
    if not check:
        return
    if isinstance(status, Tracer):
        raise ValueError(
            f"{function}: check=True needs the values of the matrix, which are not there inside a "
            "transformation such as jax.jit. Use return_status=True there."
        )
    if int(status):
        raise np.linalg.LinAlgError(
            f"{function}: the matrix is not positive definite: its leading minor of order "
            f"{int(status)} is not."
        )


def _ignore_pad(function: str, unused: dict[str, Any]) -> None:
    unknown = set(unused) - {"pad"}
    if unknown:
        raise TypeError(f"{function}: unknown argument {', '.join(sorted(unknown))}.")
