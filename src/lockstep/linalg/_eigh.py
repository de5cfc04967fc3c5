"""Eigenvalues and eigenvectors of sharded Hermitian matrices: the public functions."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jax.sharding import PartitionSpec as P

from lockstep import _jax_compat
from lockstep.linalg import (
    _arguments,
    _back_transformation,
    _band,
    _cpu_kernels,
    _divide_and_conquer,
    _generalized,
    _grid_model,
    _hermitian,
    _qr,
    _redistribute,
    _scaling,
    _tridiagonalize,
    _validation,
)
from lockstep.linalg._layout import RowMap
from lockstep.linalg._posdef import Plan, adjoint, matmul, mirrored
from lockstep.linalg._validation import AnyMesh, Placed, Specs

WIDTH = 64
"""Minimal number of columns of a panel of the reduction, except for small matrices."""

REPLICATED_BELOW = 256
"""Up to this size every device solves for the whole matrix with LAPACK (half a megabyte)."""


def eigh(
    a: Any,
    b: Any = None,
    lower: bool | None = None,
    eigvals_only: bool = False,
    subset_by_index: tuple[int, int] | None = None,
    *,
    type: int = 1,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    method: str | None = None,
) -> Any:
    """Eigenvalues and eigenvectors of a sharded Hermitian matrix.

    The counterpart of `jax.scipy.linalg.eigh` and ScaLAPACK's pdsyevd: Householder reduction to
    tridiagonal form (Golub and Van Loan, Matrix Computations, 8.3.1), divide and conquer (Cuppen
    1981; Gu and Eisenstat 1994), and the reflections applied to the eigenvectors. No device holds
    more than a few times its share of the matrix. Differentiable as `jax.numpy.linalg.eigh`, if all
    eigenvectors are computed.

    With ``b`` it solves the generalized problem, as ScaLAPACK's pdsygvx: ``b = l l^H`` by Cholesky,
    and the standard problem of ``l^-1 a l^-H`` or ``l^H a l`` (Golub and Van Loan, 8.7.2).

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      b: (n, n), Hermitian positive definite, with the dtype and the sharding of ``a``. If it is not
        positive definite, all results are NaN. None: the identity.
      lower: read only the lower (True) or upper (False) triangle, whatever the other one holds.
        None: ``a`` must be Hermitian, which is checked outside of `jax.jit`; the lower one is read.
        The same holds for ``b``.
      eigvals_only: return only the eigenvalues, found as by `eigvalsh`.
      subset_by_index: (first, last), both included and counted from 0, as in SciPy: compute only
        these eigenvalues and eigenvectors. Default: all.
      type: 1: ``a v = w b v``; 2: ``a b v = w v``; 3: ``b a v = w v``. As in SciPy, ``v^H b v = 1``
        for 1 and 2, and ``v^H b^-1 v = 1`` for 3.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case, also of ``b``.
      method: "distributed", or "replicated": every device solves for the whole matrix with LAPACK.
        Default: "replicated" for small matrices, else "distributed".

    Returns:
      The eigenvalues (k,), ascending, real and replicated, and the eigenvectors (n, k), with the
      dtype of ``a``, one in each column; each of their dimensions is sharded as that of ``a`` if it
      divides evenly. With ``eigvals_only`` only the eigenvalues. k is n, or the subset's size.

    Raises:
      ValueError: an ``a`` that is not Hermitian beyond rounding (without ``lower``, outside of
        `jax.jit`); a wrong shape, subset, type or method, a mesh or specs that do not fit
        ``a``, or dimensions that cannot be split evenly.
      TypeError: an unsupported dtype, or a ``b`` with another one.
    """
    vectors = not eigvals_only
    if b is None:
        return _eigh("eigh", a, lower, vectors, subset_by_index, mesh, in_specs, method)
    return _eigh_of_two(a, b, lower, vectors, subset_by_index, mesh, in_specs, method, type)


def eigvalsh(
    a: Any,
    b: Any = None,
    lower: bool | None = None,
    subset_by_index: tuple[int, int] | None = None,
    *,
    type: int = 1,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
) -> jax.Array:
    """The eigenvalues of a sharded Hermitian matrix, or of a pair: `eigh` with ``eigvals_only``.

    Large matrices on 2 to 32 CPU devices are reduced to a band by block reflections (Bischof, Lang
    and Sun, ACM TOMS 26, 2000), of which LAPACK finds the values. Others are solved as in `eigh`.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      b: (n, n), Hermitian positive definite, as in `eigh`. None: the identity.
      lower: which triangle is read, as in `eigh`.
      subset_by_index: (first, last), both included and counted from 0: compute only these.
      type: the kind of the generalized problem, as in `eigh`.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` and ``b`` in the same case.

    Returns:
      The eigenvalues (k,), ascending, real and replicated.

    Raises:
      ValueError, TypeError: as `eigh`.
    """
    return eigh(a, b, lower, True, subset_by_index, type=type, mesh=mesh, in_specs=in_specs)


def syevd(
    a: Any,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    in_specs: Specs = None,
    return_eigenvectors: bool = True,
    return_status: bool = False,
    *,
    lower: bool | None = None,
    subset_by_index: tuple[int, int] | None = None,
    **unused: Any,
) -> Any:
    """Eigenvalues and eigenvectors of a sharded Hermitian matrix, with jaxmg's arguments.

    Computes the same as `eigh`, under the name of LAPACK's syevd.

    Args:
      a: (n, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      T_A: checked and otherwise ignored: the tile size follows from the size of the matrix.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      in_specs: the PartitionSpec of ``a`` in the same case.
      return_eigenvectors: whether to return the eigenvectors.
      return_status: also return the status: 0, or 1 when an eigenvalue is not finite. Replicated
        int32.
      lower: read only the lower (True) or upper (False) triangle, whatever the other one holds.
        None: ``a`` must be Hermitian, which is checked outside of `jax.jit`; the lower one is read.
      subset_by_index: (first, last), both included and counted from 0: compute only these.
      **unused: jaxmg's ``pad``, which is ignored, because any size works.

    Returns:
      The eigenvalues (k,), ascending, real and replicated; with ``return_eigenvectors`` followed by
      the eigenvectors (n, k), sharded like ``a`` where their dimensions divide evenly; with
      ``return_status`` followed by the status. A single result is not in a tuple.

    Raises:
      ValueError: an ``a`` that is not Hermitian beyond rounding (without ``lower``, outside of
        `jax.jit`); a wrong shape or subset, a mesh or specs that do not fit ``a``, or
        dimensions that cannot be split evenly.
      TypeError: an unsupported dtype, or an unknown argument.
    """
    _validation.ignore_pad("syevd", unused)
    _validation.tile_size("syevd", T_A)
    found = _eigh("syevd", a, lower, return_eigenvectors, subset_by_index, mesh, in_specs, None)
    if not return_status:
        return found
    values = found[0] if return_eigenvectors else found
    status = _qr.status_of(values)
    return (*found, status) if return_eigenvectors else (found, status)


def _eigh(
    function: str,
    a: Any,
    lower: bool | None,
    vectors: bool,
    subset: tuple[int, int] | None,
    mesh: AnyMesh | None,
    in_specs: Specs,
    method: str | None,
) -> Any:
    a, placed = _arguments.square(function, a, mesh, in_specs)
    n = a.shape[0]
    if method not in (None, "distributed", "replicated"):
        raise ValueError(
            f"{function}: method is {method!r}; expected 'distributed' or 'replicated'."
        )
    if n == 0:
        return (jnp.zeros(0, a.real.dtype), a) if vectors else jnp.zeros(0, a.real.dtype)
    if lower is None:
        _hermitian.check(function, a, placed)
    if method is None:
        small = n <= REPLICATED_BELOW or placed.sharded.devices == 1
        method = "replicated" if small else "distributed"
    first, end = _range(function, subset, n)
    kernels = _cpu_kernels.available(_validation.platform(placed))
    problem = Problem(
        placed, lower is not False, vectors, first, end, method == "replicated", kernels, n
    )
    return _solve(a, problem)


def _eigh_of_two(
    a: Any,
    b: Any,
    lower: bool | None,
    vectors: bool,
    subset: tuple[int, int] | None,
    mesh: AnyMesh | None,
    in_specs: Specs,
    method: str | None,
    kind: int,
) -> Any:
    """`eigh` with ``b``."""
    if isinstance(b, bool):
        raise TypeError(f"eigh: b is {b}; the triangle is given by keyword: lower={b}.")
    if kind not in _generalized.TYPES:
        known = ", ".join(f"{k} ({text})" for k, text in _generalized.TYPES.items())
        raise ValueError(f"eigh: type is {kind!r}; expected one of {known}.")
    a, b = _validation.square("eigh", a, mesh), _validation.square("eigh", b, mesh, "b")
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        raise TypeError(f"eigh: b is {b.dtype}{b.shape}, a is {a.dtype}{a.shape}; expected alike.")
    [spec] = _validation.specs("eigh", in_specs, ("a",))
    placed = _validation.place("eigh", a, mesh, spec)
    if a.size == 0:
        return _eigh("eigh", a, lower, vectors, subset, mesh, in_specs, method)
    a, b = _validation.put(a, placed), _validation.put(b, placed)
    if not isinstance(_jax_compat.under_derivatives(b), Tracer):
        b = jax.device_put(b, placed.sharding)
    if lower is None:
        _hermitian.check("eigh", a, placed)
        _hermitian.check("eigh", b, placed, name="b")
    if lower is not None:
        a = mirrored(a, lower)
    if lower is False:
        b = adjoint(b, placed)
    c, back = _generalized.reduce(a, b, placed, kind)
    found = _eigh("eigh", c, True, vectors, subset, placed.mesh, placed.spec, method)
    if not vectors:
        return found
    values, v = found
    rows, columns = placed.dimensions
    columns = () if v.shape[1] % placed.sharded.size(columns) else columns
    return values, back(v, Placed(placed.mesh, (rows, columns)))


@dataclasses.dataclass(frozen=True)
class Problem:
    """The request and the sharding: all that a compiled program depends on."""

    placed: Placed
    lower: bool
    vectors: bool
    first: int
    end: int
    replicated: bool
    kernels: bool
    """Whether the engine's kernels do what plain JAX would."""
    n: int
    """The size of the whole matrix, which the shape of a shard does not give."""

    def vectors_placed(self) -> Placed:
        """Rows as those of the matrix, and columns too where the subset divides evenly."""
        rows, columns = self.placed.dimensions
        if (self.end - self.first) % self.placed.sharded.size(columns):
            columns = ()
        return dataclasses.replace(self.placed, dimensions=(rows, columns))

    def plan(self) -> Plan:
        """The layout, and the grid of the way back."""
        sharded, n = self.placed.sharded, self.n
        grid = None
        if self.vectors:
            platform = _validation.platform(self.placed)
            wanted = self.end - self.first
            grid = _grid_model.back_transformation_grid(n, wanted, sharded.devices, platform)
        return Plan(self.placed, RowMap.halving(sharded, n, WIDTH), self.kernels, grid)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _solve(a: jax.Array, problem: Problem) -> Any:
    return compute(a, problem)


@_solve.defjvp
def _solve_jvp(problem: Problem, primals: Any, tangents: Any) -> Any:
    """dw = diag(v^H da v); dv = v (f * (v^H da v)), f_ij = 1 / (w_j - w_i)."""
    n, placed = primals[0].shape[0], problem.placed
    if problem.vectors and (problem.first, problem.end) != (0, n):
        raise NotImplementedError(
            "eigh: the derivative of some eigenvectors needs all: leave subset_by_index out."
        )
    values, v = _solve(primals[0], dataclasses.replace(problem, vectors=True))
    da = mirrored(tangents[0], problem.lower)
    where = problem.vectors_placed()
    turned = matmul(da, v, where)
    if not problem.vectors:
        return values, (v.conj() * turned).sum(0).real
    inner = matmul(adjoint(v, placed), turned, placed)
    gaps = values - values[:, None]
    f = jnp.where(gaps == 0, 0, 1 / jnp.where(gaps == 0, 1, gaps))
    dv = matmul(v, f * inner, placed)
    return (values, v), (jnp.diagonal(inner).real, dv)


@functools.partial(jax.jit, static_argnames="problem")
def compute(a: jax.Array, problem: Problem) -> Any:
    plan, n = problem.plan(), problem.n
    layout, axes = plan.layout, plan.axes
    columns = (problem.first, problem.end) if problem.vectors else None
    out = problem.vectors_placed()
    chunked = _validation.platform(problem.placed) == "cpu"
    by_band = not problem.vectors and problem.kernels and layout.devices <= _band.WIDTH

    def distributed(shard: jax.Array) -> Any:
        slots = plan.take_matrix(shard, padding=0)
        scale = _scaling.factor(plan.triangle(slots, problem.lower), axes)
        slots = plan.mirror(scale * slots, problem.lower)
        if by_band:
            values = _band.eigenvalues(slots, n, axes)
            return values[problem.first : problem.end] / scale
        reduced = _tridiagonalize.reduce(slots, layout, axes, problem.kernels, chunked)
        values, rows = _divide_and_conquer.eigh_tridiagonal(
            reduced.diagonal, reduced.off_diagonal, layout, axes, columns, problem.kernels
        )
        values = values[problem.first : problem.end] / scale
        if rows is None:
            return values
        rows = _back_transformation.apply(
            reduced.q, rows.astype(shard.dtype), layout, axes, plan.grid, problem.kernels
        )
        return values, plan.give_rows(rows, out)

    def replicated(shard: jax.Array) -> Any:
        rows = _redistribute.columns_from_slots(plan.take_matrix(shard), layout)
        whole = lax.all_gather(rows, axes, tiled=True)
        whole = whole[jnp.asarray(layout.slot_of_row[:n])]
        whole = whole if problem.lower else whole.conj().T
        vectors, values = lax.linalg.eigh(whole, symmetrize_input=False)
        values = values[problem.first : problem.end]
        if columns is None:
            return values
        me = _redistribute.device_index(problem.placed.sharded)
        mine = jnp.asarray(layout.row_of_slot)[me]
        rows = jnp.take(vectors[:, columns[0] : columns[1]], mine, axis=0, mode="clip")
        return values, plan.give_rows(rows, out)

    body = replicated if problem.replicated else distributed
    specs = (P(), out.spec) if problem.vectors else P()
    return plan.placed.map(body, problem.placed.spec, specs)(a)


def _range(function: str, subset: tuple[int, int] | None, n: int) -> tuple[int, int]:
    if subset is None:
        return 0, n
    first, last = subset
    if not 0 <= first <= last < n:
        raise ValueError(
            f"{function}: subset_by_index is {tuple(subset)}; expected (first, last) with "
            f"0 <= first <= last < {n}."
        )
    return first, last + 1
