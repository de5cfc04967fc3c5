"""Least squares and minimum norm by QR factorization: the public function.

Both are one linear system with a tall matrix ``t`` (m, n), m >= n, of full rank:

    r + t x = b,  t^H r = g.

With ``g = 0`` it is the least-squares problem of ``t``, and ``r`` its residual. With ``b = 0`` and
``t = a^H``, ``r`` is the solution of ``a r = g`` with the least norm. From ``t = q [u; 0]`` and
``q^H b = [c; d]`` follow ``y = u^-H g``, ``x = u^-1 (c - y)`` and ``r = q [y; d]``, which is
backward stable (Bjorck, "Numerical methods for least squares problems", 1996, section 1.3 and
4.3). The system is Hermitian, so its derivatives to any order are solutions with the same factor.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jax.sharding import PartitionSpec as P

from lockstep.linalg import (
    _arguments,
    _cpu_kernels,
    _dealt_columns,
    _householder,
    _panel,
    _posdef,
    _qr,
    _redistribute,
    _scaling,
    _sweeps,
    _validation,
)
from lockstep.linalg._householder import Factored
from lockstep.linalg._panel import Basis
from lockstep.linalg._qr import QRPlan
from lockstep.linalg._sweeps import Triangle
from lockstep.linalg._tiles import adjoint, gemm, trsm, trsm_upper
from lockstep.linalg._validation import AnyMesh, Placed, Specs


def least_squares(
    a: Any,
    b: Any,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    return_status: bool = False,
    **unused: Any,
) -> Any:
    """The x of least norm that minimizes ``|a x - b|``, for a sharded ``a`` of full rank.

    The counterpart of ScaLAPACK's pdgels: QR factorization as in `qr`, of ``a`` if m >= n, else of
    its adjoint (Golub and Van Loan, Matrix Computations, 5.3.3 and 5.6.2). For a matrix that may
    lack full rank take `lstsq`. Differentiable in ``a`` and ``b``, to any order.

    Args:
      a: (m, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      b: (m,) or (m, k) with the dtype of ``a``; any sharding over the same mesh.
      T_A: the maximal number of rows of a tile; default: by the size of the matrix.
      mesh: the mesh of both, if the arrays do not have one (tracers inside `jax.jit`).
      matrix_specs: their shardings in the same case: a PartitionSpec for ``a``, or one for each.
      in_specs: jaxmg's other name of ``matrix_specs``.
      return_status: also return the status: 0, or 1 when x is not finite. Replicated int32.
      **unused: jaxmg's ``pad`` and ``donate``, which are ignored.

    Returns:
      x, (n,) or (n, k), sharded as ``b`` where its rows divide evenly; with ``return_status`` the
      pair (x, status). A matrix without full rank gives infinities, NaN, or large numbers.

    Raises:
      ValueError: wrong shapes, a mesh or specs that do not fit the arrays, or dimensions that
        cannot be split evenly.
      TypeError: an unsupported dtype, different dtypes, or an unknown argument.
    """
    function = "least_squares"
    unused.pop("donate", None)
    _validation.ignore_pad(function, unused)
    specs = matrix_specs if in_specs is None else in_specs
    a, b, placed, b_placed = _arguments.rectangular_system(function, a, b, mesh, specs)
    m, n = a.shape
    x = solve(a, b, (m, n), placed, b_placed, _validation.tile_size(function, T_A))
    return (x, _qr.status_of(x)) if return_status else x


def solve(
    a: jax.Array,
    b: jax.Array,
    shape: tuple[int, int],
    placed: Placed,
    b_placed: Placed,
    tile: int | None,
) -> jax.Array:
    """`least_squares` of checked arguments; inside a `jax.shard_map` these are shards."""
    m, n = shape
    if b.ndim == 1:
        wide = dataclasses.replace(b_placed, dimensions=(b_placed.dimensions[0], ()))
        return solve(a, b[:, None], shape, placed, wide, tile)[:, 0]
    plan = Plan.of((m, n), placed, b_placed, tile)
    none = _zeros(plan.x_placed, n, b)
    if not m or not n or not b.size:
        return none
    factored = factor(lax.stop_gradient(a), plan)
    sides = (b, none) if m >= n else (none, b)
    wanted = "x" if m >= n else "r"
    if placed.inside or not (isinstance(a, Tracer) or isinstance(b, Tracer)):
        return _solve(factored, *sides, plan, wanted)
    x_placed = plan.x_placed
    product = functools.partial(_posdef.matmul, placed=b_placed)
    back = functools.partial(_posdef.matmul, placed=x_placed)

    def adjoint(a: jax.Array) -> jax.Array:
        turned = dataclasses.replace(placed, dimensions=placed.dimensions[::-1])
        return _posdef.adjoint(a, turned)

    def system(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        if m >= n:
            r, x = pair
            return r + product(a, x), back(adjoint(a), r)
        r, x = pair
        return r + back(adjoint(a), x), product(a, r)

    def run(_: Any, sides: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return _solve(factored, *sides, plan)

    def run_transposed(_: Any, sides: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return jax.tree.map(jnp.conj, run(None, jax.tree.map(jnp.conj, sides)))

    found = lax.custom_linear_solve(system, sides, run, run_transposed)
    return found[1] if m >= n else found[0]


def _zeros(placed: Placed, rows: int, b: jax.Array) -> jax.Array:
    """As many columns as ``b`` has, placed as ``placed``; inside, this device's part of them."""
    if placed.inside:
        return jnp.zeros((rows // placed.sharded.size(placed.dimensions[0]), b.shape[1]), b.dtype)
    return _posdef.partitioned(lambda: jnp.zeros((rows, b.shape[1]), b.dtype), placed)()


class Factor(NamedTuple):
    """``scale`` times a tall matrix, factored; global arrays whose rows are those of devices."""

    qr: Factored | Basis
    """The reflectors of several panels, or one panel's basis."""
    scale: jax.Array


@dataclasses.dataclass(frozen=True)
class Plan:
    """The shardings of a system, and how its tall matrix is factored."""

    tall: QRPlan
    placed: Placed
    b_placed: Placed
    x_placed: Placed
    is_wide: bool
    kernels: bool

    @classmethod
    def of(cls, shape: tuple[int, int], placed: Placed, b_placed: Placed, tile: int | None) -> Plan:
        m, n = shape
        is_wide = m < n
        turned = dataclasses.replace(placed, dimensions=placed.dimensions[::-1])
        tall = QRPlan.of(shape[::-1], turned, tile) if is_wide else QRPlan.of(shape, placed, tile)
        x_placed = b_placed.with_rows(n)
        kernels = _cpu_kernels.available(_validation.platform(placed))
        return cls(tall, placed, b_placed, x_placed, is_wide, kernels)

    @property
    def specs(self) -> Factor:
        everywhere = cast(Any, P())
        if self.tall.panels.steps == 1:
            return Factor(Basis(cast(Any, P(self.tall.axes)), everywhere, everywhere), everywhere)
        return Factor(self.tall.factored_specs(), everywhere)


@functools.partial(jax.jit, static_argnames="plan")
def factor(a: jax.Array, plan: Plan) -> Factor:
    tall, axes = plan.tall, plan.tall.axes

    def body(shard: jax.Array) -> Factor:
        rows = tall.take_adjoint(shard, plan.placed) if plan.is_wide else tall.take(shard)
        scale, panels = _scaling.factor(rows, axes), tall.panels
        if panels.steps > 1:
            return Factor(_householder.factor(scale * rows, panels, axes), scale)
        devices, kernels = panels.layout.devices, panels.kernels
        basis = _panel.basis(scale * rows, axes, devices, panels.tile, kernels=kernels)
        return Factor(basis, scale)

    return tall.placed.map(body, plan.placed.spec, plan.specs)(a)


def solve_factored(
    factor: Factor, b: jax.Array, b_placed: Placed, plan: Plan, adjoint: bool
) -> jax.Array:
    """`least_squares` of a factored matrix or its adjoint, and of a ``b`` placed as ``b_placed``.

    Where the operands are ``plan`` places, the factors alone say.
    """
    # The operand has the rows of the matrix; the result has its columns, or the other way round.
    length = plan.tall.columns if adjoint == plan.is_wide else plan.tall.rows
    x_placed = b_placed.with_rows(length)
    none = _zeros(x_placed, length, b)
    if adjoint:
        b_placed, x_placed = x_placed, b_placed
    plan = dataclasses.replace(plan, b_placed=b_placed, x_placed=x_placed)
    if adjoint == plan.is_wide:  # the matrix that is solved with is the tall one
        return _solve(factor, b, none, plan, "x")
    return _solve(factor, none, b, plan, "r")


@functools.partial(jax.jit, static_argnames=("plan", "wanted"))
def _solve(factor: Factor, b: jax.Array, g: jax.Array, plan: Plan, wanted: str = "r and x") -> Any:
    """``r`` and ``x`` of the system, whose sides ``b`` and ``g`` are as long as those of ``t``; or
    the one of them that is wanted."""
    tall, layout, triangle = plan.tall, plan.tall.panels.layout, plan.tall.panels.triangle
    long, short = plan.b_placed, plan.x_placed
    long, short = (short, long) if plan.is_wide else (long, short)

    def body(factor: Factor, b: jax.Array, g: jax.Array) -> Any:
        rows = _redistribute.rows_from_shard(b, long.sharded, layout.n, layout)
        g_rows = _redistribute.rows_from_shard(g, short.sharded, triangle.n, triangle)
        qr, g_rows = factor.qr, factor.scale * g_rows
        if isinstance(qr, Basis):
            r, x = _by_basis(qr, rows, g_rows, plan)
        else:
            r, x = _by_reflectors(qr, rows, g_rows, plan)
        r, x = _qr.give(r, layout, long), _qr.give(factor.scale * x, triangle, short)
        return {"r": r, "x": x}.get(wanted, (r, x))

    specs = (plan.specs, long.spec, short.spec)
    out = {"r": long.spec, "x": short.spec}.get(wanted, (long.spec, short.spec))
    return tall.placed.map(body, specs, out)(factor, b, g)


def _by_reflectors(
    qr: Factored, b: jax.Array, g: jax.Array, plan: Plan
) -> tuple[jax.Array, jax.Array]:
    """Local rows of ``r`` and of ``x`` for those of ``b`` and ``g``."""
    panels, axes, triangle = plan.tall.panels, plan.tall.axes, plan.tall.panels.triangle
    slots = _redistribute.columns_to_slots(qr.triangle, triangle)
    me, one = _redistribute.device_index(plan.placed.sharded), jnp.ones((), slots.dtype)
    upper = Triangle(_redistribute.set_padding(slots, triangle, me, one), upper=True)
    y = _dealt_columns.solve(upper, g, triangle, axes, plan.kernels, True)
    turned = _householder.apply_adjoint(qr, b, panels, axes)
    head = panels.mine(axes)[: triangle.rows, None] < panels.count
    c = jnp.where(head, turned[: triangle.rows], 0)
    x = _dealt_columns.solve(upper, c - y, triangle, axes, plan.kernels)
    kept = jnp.where(head, y, turned[: triangle.rows])
    kept = jnp.concatenate([kept, turned[triangle.rows :]])
    return _householder.apply(qr, kept, panels, axes), x


def _by_basis(basis: Basis, b: jax.Array, g: jax.Array, plan: Plan) -> tuple[jax.Array, jax.Array]:
    """The same with a single panel, of which ``q`` has the columns and no others.

    What ``b`` has in none of their directions is found twice: once leaves rounding errors of ``b``
    in them (Giraud, Langou and Rozloznik, Comput. Math. Appl. 50, 2005).
    """
    axes, panels = plan.tall.axes, plan.tall.panels

    def adjoint_times(b: jax.Array) -> jax.Array:
        return trsm(basis.low, lax.psum(gemm(adjoint(basis.x), b), axes))

    def times(c: jax.Array) -> jax.Array:
        return gemm(basis.x, trsm(basis.low, c, conjugate_transpose=True))

    g = _sweeps.gather_rows(g, axes)[: panels.count]
    y = trsm_upper(basis.r, g, conjugate_transpose=True)
    c = adjoint_times(b)
    rest = b - times(c)
    r = rest - times(adjoint_times(rest) - y)
    return r, _householder.rows_of_triangle(trsm_upper(basis.r, c - y), panels, axes)
