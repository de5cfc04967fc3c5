"""Solving with square matrices of any kind: the public function."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from lockstep.linalg import (
    _arguments,
    _general,
    _hermitian,
    _posdef,
    _solve,
    _triangular,
    _validation,
)
from lockstep.linalg._validation import AnyMesh, Placed, Specs

_KINDS = {
    "general": "gen",
    "positive definite": "pos",
    "hermitian": "her",
    "symmetric": "sym",
    "upper triangular": "upper triangular",
    "lower triangular": "lower triangular",
}


def solve(
    a: Any,
    b: Any,
    *,
    assume_a: str = "gen",
    lower: bool | None = None,
    transposed: bool = False,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    tile: int | None = None,
    return_status: bool = False,
    check: bool = False,
    donate: bool = False,
) -> Any:
    """Solves ``a x = b`` for a sharded square matrix ``a``.

    The counterpart of `jax.scipy.linalg.solve` and `jax.numpy.linalg.solve`. A general matrix is
    factored by LU with pivoting by columns: partial pivoting (the transpose of LAPACK's gesv; Golub
    and Van Loan, Matrix Computations, 3.4), or on many devices a tournament (Grigori, Demmel and
    Xiang, "CALU", SIAM J. Matrix Anal. Appl. 32, 2011). A matrix that is sharded by rows is not
    redistributed: its rows are eliminated in an order that balances the work. Differentiable in
    ``a`` and ``b``.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      b: (n,) or (n, k) with the dtype of ``a``; any sharding over the same mesh.
      assume_a: what ``a`` is, in SciPy's words: "gen" (general); "pos" (Hermitian positive
        definite: as `potrs`, half the flops); "upper triangular" or "lower triangular" (as
        `solve_triangular`; the other triangle is not read); "her" (Hermitian) or "sym" (symmetric).
        The last two are checked (not a complex symmetric one) and then factored by LU, at the cost
        of a general matrix: no factorization here uses the symmetry of an indefinite one.
      lower: for "pos", "her" and "sym": read only the lower (True) or upper (False) triangle. None:
        ``a`` must be Hermitian (symmetric), which is checked outside of `jax.jit`.
      transposed: solve ``a^T x = b``.
      mesh: the mesh of ``a`` and ``b``, if the arrays do not have one (tracers inside `jax.jit`).
      in_specs: their shardings in the same case: a PartitionSpec for ``a``, or one for each.
      tile: the maximal number of rows of a tile; default: chosen by a cost model.
      return_status: also return the status, a replicated int32: 0, or k > 0 if ``a`` is singular:
        the pivot of row k (counted from 1) is zero or not finite; or -1 if devices found different
        pivots, because their processors differ. For "pos" as in `potrs`. A matrix that is singular
        up to rounding has status 0: see `cond`.
      check: raise an error when the status is not 0; not possible inside `jax.jit`.
      donate: reuse the memory of ``a`` for the factors; ``a`` cannot be used afterwards. Not for
        calls that are differentiated, nor for triangles.

    Returns:
      x, with the shape, dtype and sharding of ``b``; with ``return_status`` the pair (x, status). x
      is NaN when the status is not 0.

    Raises:
      ValueError: another ``assume_a``; an ``a`` that is not Hermitian or symmetric though it is
        said to be (outside of `jax.jit`, without ``lower``); wrong shapes, a mesh or specs that do
        not fit the arrays, dimensions that cannot be split evenly, or ``check`` inside `jax.jit`.
      TypeError: an unsupported dtype, or different dtypes.
      numpy.linalg.LinAlgError: with ``check``, when the status is not 0.
    """
    kind = kind_of("solve", assume_a)
    options = Options(tile, return_status, check, donate, mesh, in_specs)
    if lower is not None and kind not in ("pos", "her", "sym"):
        raise ValueError(f"solve: lower= is for a symmetric matrix, and assume_a is {assume_a!r}.")
    if kind == "pos":
        return _solve_positive(a, b, transposed, lower, options)
    if kind.endswith("triangular"):
        return _solve_triangle(kind, a, b, int(transposed), options)
    if kind in ("her", "sym"):
        a, mesh, spec = _symmetric(a, kind, lower, mesh, in_specs)
        b_spec = _validation.specs("solve", in_specs, ("a", "b"))[1]
        given = spec if b_spec is None else (spec, b_spec)
        options = dataclasses.replace(options, mesh=mesh, in_specs=given)
    return solve_general("solve", a, b, int(transposed), options)


@dataclasses.dataclass(frozen=True)
class Options:
    """What `solve` hands to its way of solving; see its arguments."""

    tile: int | None
    return_status: bool
    check: bool
    donate: bool
    mesh: AnyMesh | None
    in_specs: Specs


def kind_of(function: str, assume_a: str) -> str:
    kind = _KINDS.get(assume_a, assume_a)
    if kind not in _KINDS.values():
        raise ValueError(
            f"{function}: assume_a is {assume_a!r}; expected one of "
            f"{', '.join(map(repr, dict.fromkeys(_KINDS.values())))}."
        )
    return kind


def solve_general(
    function: str,
    a: Any,
    b: Any,
    trans: int,
    options: Options,
) -> Any:
    """`solve` for a general matrix; ``trans`` as in `lockstep.linalg.lu_solve`."""
    given = a
    a, b, placed, b_placed = _arguments.system(function, a, b, options.mesh, options.in_specs)
    _validation.check_trans(function, trans)
    if b.size == 0:
        return (b, jnp.int32(0)) if options.return_status else b
    plan = _general.plan_of(a.shape[0], placed, _validation.tile_size(function, options.tile))
    donating = options.donate and not isinstance(a, Tracer)
    factors = _general.factor(lax.stop_gradient(a), plan, donating)
    status = _general.status(factors, plan)
    _validation.check_singular(function, options.check, status, "row")
    if donating:
        _posdef.delete(given, a)
    rhs = b.conj() if trans == 2 else b

    def run(b: jax.Array, b_placed: Placed) -> jax.Array:
        times = None
        if not donating:
            times = functools.partial(_posdef.matmul, a.T if trans else a, placed=b_placed)
        return _general.solve(b, b_placed, times, factors, plan, trans != 0)

    x = _posdef.as_matrix(run, rhs, b_placed)
    x = nan_where(status, x.conj() if trans == 2 else x)
    return (x, status) if options.return_status else x


def nan_where(status: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(status == 0, x, jnp.nan)


def _solve_positive(
    a: Any,
    b: Any,
    transposed: bool,
    lower: bool | None,
    options: Options,
) -> Any:
    def run(b: Any) -> Any:
        return _solve.potrs(
            a,
            b,
            options.tile,
            options.mesh,
            options.in_specs,
            True,
            lower=lower,
            check=options.check,
            donate=options.donate,
        )

    x, status = run(jnp.conj(b)) if transposed else run(b)
    x = x.conj() if transposed else x
    return (x, status) if options.return_status else x


def _solve_triangle(
    kind: str,
    a: Any,
    b: Any,
    trans: int,
    options: Options,
) -> Any:
    if options.donate:
        raise ValueError("solve: donate= is for matrices that are factored; a triangle is not.")
    mesh, in_specs = options.mesh, options.in_specs
    a, _ = _arguments.square("solve", a, mesh, in_specs, ("a", "b"))
    if a.shape[0] == 0:
        return (b, jnp.int32(0)) if options.return_status else b
    status = _first_bad(lax.stop_gradient(a))
    _validation.check_singular("solve", options.check, status, "row")
    x = _triangular.solve_triangular(
        a, b, trans, kind.startswith("lower"), mesh=mesh, in_specs=in_specs, tile=options.tile
    )
    x = nan_where(status, x)
    return (x, status) if options.return_status else x


@jax.jit
def _first_bad(a: jax.Array) -> jax.Array:
    """0, or the row (from 1) of the first element of the diagonal that is zero or not finite."""
    pivot = jnp.diagonal(a)
    bad = ~jnp.isfinite(pivot) | (pivot == 0)
    return jnp.where(bad.any(), jnp.argmax(bad) + 1, 0).astype(jnp.int32)


def _symmetric(
    a: Any, kind: str, lower: bool | None, mesh: AnyMesh | None, in_specs: Specs
) -> tuple[jax.Array, AnyMesh, Any]:
    """The whole of a symmetric or Hermitian matrix, and its sharding."""
    a, placed = _arguments.square("solve", a, mesh, in_specs, ("a", "b"))
    hermitian = kind == "her" or not jnp.iscomplexobj(a)
    if lower is None:
        if hermitian:
            _hermitian.check("solve", a, placed)
        return a, placed.mesh, placed.spec
    whole = functools.partial(_posdef.mirrored if hermitian else _mirrored, lower=lower)
    return _posdef.partitioned(whole, placed)(a), placed.mesh, placed.spec


def _mirrored(a: jax.Array, lower: bool) -> jax.Array:
    half = jnp.tril(a) if lower else jnp.triu(a)
    return half + half.T - jnp.diag(jnp.diagonal(a))
