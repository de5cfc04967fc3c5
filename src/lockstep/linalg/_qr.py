"""QR factorization of sharded matrices: the public functions."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from lockstep.linalg import (
    _arguments,
    _cost_model,
    _cpu_kernels,
    _householder,
    _panel,
    _posdef,
    _redistribute,
    _scaling,
    _validation,
)
from lockstep.linalg._householder import Factored, Panels
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._triangular import solve_triangular
from lockstep.linalg._validation import AnyMesh, Placed, Specs

MODES = {
    "reduced": "reduced",
    "economic": "reduced",
    "complete": "complete",
    "full": "complete",
    "r": "r",
}
"""NumPy's and SciPy's names of what `qr` returns."""


def qr(
    a: Any,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    mode: str = "reduced",
    pivoting: bool = False,
    return_status: bool = False,
    donate: bool = False,
    **unused: Any,
) -> Any:
    """The QR factorization of a sharded matrix of any shape, ``a = q r``.

    The counterpart of `jax.numpy.linalg.qr` and ScaLAPACK's pdgeqrf and pdorgqr: Householder's QR,
    blocked (Bischof and Van Loan 1987), whose panels are factored by two Cholesky factorizations
    (Yamamoto et al. 2015) or, where those lose accuracy, by TSQR (Demmel et al. 2012). Its
    reflectors are rebuilt from the factor (Ballard et al. 2015). ``q`` is orthonormal to rounding,
    whatever the condition of ``a``. The diagonal of ``r`` is not negative, so that the result for a
    matrix of full rank does not depend on the mesh. Differentiable, in mode "reduced" or "r", if
    m >= n and ``a`` has full rank.

    Args:
      a: (m, n); float32, float64, complex64 or complex128; any sharding over any mesh.
      T_A: the maximal number of rows of a tile; default: by the size of the matrix.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      matrix_specs: the PartitionSpec of ``a`` in the same case.
      in_specs: jaxmg's other name of ``matrix_specs``.
      mode: "reduced" (SciPy's "economic"), "complete" (SciPy's "full") or "r".
      pivoting: must be False.
      return_status: also return the status: 0, or 1 when a result is not finite. Replicated int32.
      donate: reuse the memory of ``a``, which cannot be used afterwards. Not for calls that are
        differentiated.
      **unused: jaxmg's ``pad``, which is ignored, because any size works.

    Returns:
      q (m, k) and r (k, n), with the dtype of ``a`` and k = min(m, n); in mode "complete" (m, m)
      and (m, n); in mode "r" only r. Each dimension is sharded as that of ``a`` if it divides
      evenly. With ``return_status`` followed by the status.

    Raises:
      ValueError: wrong shapes, another mode, a mesh or specs that do not fit ``a``, or dimensions
        that cannot be split evenly.
      NotImplementedError: with ``pivoting``; the derivative of another shape or mode.
      TypeError: an unsupported dtype, or an unknown argument.
    """
    _validation.ignore_pad("qr", unused)
    if pivoting:
        raise NotImplementedError(
            "qr: pivoting=True is not supported: choosing each column needs a collective, as in "
            "LAPACK's geqp3. For a matrix that may lack full rank take lockstep.linalg.svd, orth, "
            "matrix_rank or lstsq."
        )
    if isinstance(T_A, str) or mode not in MODES:
        given = T_A if isinstance(T_A, str) else mode
        raise ValueError(f"qr: mode is {given!r}; expected mode= one of {', '.join(MODES)}.")
    a, placed = _arguments.matrix("qr", a, mesh, matrix_specs if in_specs is None else in_specs)
    plan = QRPlan.of(a.shape, placed, _validation.tile_size("qr", T_A))
    donating = donate and not isinstance(a, Tracer)
    found = (_decompose_donating if donating else decompose)(a, plan, MODES[mode])
    if not return_status:
        return found
    found = found if isinstance(found, tuple) else (found,)
    return (*found, status_of(found[-1]))


def status_of(*found: jax.Array) -> jax.Array:
    """0, or 1 if one of the arrays is not finite."""
    fine = functools.reduce(jnp.logical_and, [jnp.isfinite(x).all() for x in found])
    return jnp.where(fine, 0, 1).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class QRPlan:
    """The sharding of an (m, n) matrix, and how its columns are eliminated."""

    placed: Placed
    columns: int
    panels: Panels

    @classmethod
    def of(cls, shape: tuple[int, ...], placed: Placed, tile: int | None = None) -> QRPlan:
        (m, n), sharded = shape, placed.sharded
        count, devices = min(m, n), sharded.devices
        tile = _cost_model.qr_tile(count, devices) if tile is None else tile
        tile = _cost_model.even_tile(-(-count // devices), tile)
        platform = _validation.platform(placed)
        kernels = _cpu_kernels.available(platform)
        held = {rows for _, rows in sharded.blocks(m)}
        each = max(held)
        if len(held) == 1 and each * devices == m:
            # Rows stay where they are, if tiles fit into them.
            for fitting in range(tile, tile // 2, -1):
                if -(-count // (fitting * devices)) * fitting <= each:
                    layout = RowMap.in_blocks(sharded, m)
                    panels = Panels(layout, count, fitting, kernels=kernels)
                    return cls(placed, n, panels.on_best_grid(n, platform))
        panels = Panels(RowMap.cyclic(m, devices, tile), count, tile, kernels=kernels)
        return cls(placed, n, panels.on_best_grid(n, platform))

    @property
    def rows(self) -> int:
        return self.panels.layout.n

    @property
    def axes(self) -> tuple[str, ...]:
        return self.placed.sharded.axes

    def take(self, shard: jax.Array) -> jax.Array:
        """The local rows of the layout of the matrix."""
        layout = self.panels.layout
        return _redistribute.rows_from_shard(shard, self.placed.sharded, layout.n, layout)

    def take_adjoint(self, shard: jax.Array, placed: Placed) -> jax.Array:
        """The local rows of the adjoint of the matrix of ``shard``, placed as ``placed``."""
        sharded, wanted = placed.sharded, self.panels.layout
        held = RowMap.cyclic(self.columns, sharded.devices, self.panels.tile)
        rows = _redistribute.rows_from_shard(shard, sharded, self.columns, held)
        return adjoint_rows(rows, held, wanted, self.axes)

    def result(self, rows: int, columns: int) -> Placed:
        """A result of this shape: each dimension as that of the matrix, if it divides evenly."""
        sizes = self.placed.sharded.size
        dimensions = [
            axes if length % sizes(axes) == 0 else ()
            for length, axes in zip((rows, columns), self.placed.dimensions, strict=True)
        ]
        return dataclasses.replace(self.placed, dimensions=tuple(dimensions))

    def factored_specs(self) -> Factored:
        """The specs of what `lockstep.linalg._householder.factor` returns."""
        steps, rows, everywhere = self.panels.steps, cast(Any, P(self.axes)), cast(Any, P())
        return Factored(rows, (rows,) * steps, (everywhere,) * steps, rows)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def decompose(a: jax.Array, plan: QRPlan, mode: str) -> Any:
    return _compiled(a, plan, mode)


@decompose.defjvp
def _decompose_jvp(plan: QRPlan, mode: str, primals: Any, tangents: Any) -> Any:
    """Walter and Lehmann, "Algorithmic differentiation of linear algebra functions", 2010.

    With ``c = q^H da r^-1`` and the skew ``o`` that has its lower triangle: ``dq = q (o - c) + da
    r^-1``, ``dr = (c - o) r``. The diagonal of ``r`` stays real.
    """
    m, n = plan.rows, plan.columns
    if m < n or (mode == "complete" and m > n):
        raise NotImplementedError(
            f"qr: the derivative needs m >= n and mode 'reduced' or 'r'; this is {m} x {n}, mode "
            f"{mode!r}."
        )
    (a,), (da,) = primals, tangents
    q, r = decompose(a, plan, "reduced")
    turned = plan.result(n, m)
    turned = dataclasses.replace(turned, dimensions=plan.placed.dimensions[::-1])
    triangle, square = plan.result(n, n), plan.result(n, n)

    specs = (triangle.spec, turned.spec)
    solved = solve_triangular(
        r, _posdef.adjoint(da, turned), 2, mesh=plan.placed.mesh, in_specs=specs
    )
    da_r = _posdef.adjoint(solved, plan.placed)
    c = _posdef.matmul(_posdef.adjoint(q, turned), da_r, square)
    low = jnp.tril(c, -1)
    skew = low - low.conj().T + jnp.eye(n, dtype=c.dtype) * (c - c.real)
    dr = _posdef.matmul(c - skew, r, triangle)
    if mode == "r":
        return r, dr
    dq = _posdef.matmul(q, skew - c, plan.result(m, n)) + da_r
    return (q, r), (dq, dr)


def compute(a: jax.Array, plan: QRPlan, mode: str) -> Any:
    """`qr` of a matrix or, inside a `jax.shard_map` of the caller, of its shard."""
    m, n, panels, axes = plan.rows, plan.columns, plan.panels, plan.axes
    height = m if mode == "complete" else min(m, n)
    q_placed, r_placed = plan.result(m, height), plan.result(height, n)
    if not panels.count:
        q, r = unit(q_placed, (m, height), a.dtype), unit(r_placed, (height, n), a.dtype)
        return r if mode == "r" else (q, r)

    def body(shard: jax.Array) -> Any:
        rows = plan.take(shard)
        scale = _scaling.factor(rows, axes)
        rows = scale * rows
        if panels.steps == 1 and n == panels.count and mode == "reduced":
            devices = panels.layout.devices
            q, r = _panel.factor(rows, axes, devices, panels.tile, panels.kernels)
            triangle = _householder.rows_of_triangle(r, panels, axes)
        else:
            factored = _householder.factor(rows, panels, axes)
            triangle, q = factored.triangle, None
            if mode != "r":
                q = _householder.columns_of_q(factored, panels, height, axes)
        held = RowMap.cyclic(height, panels.layout.devices, panels.tile)
        triangle = jnp.pad(triangle / scale, ((0, held.rows - triangle.shape[0]), (0, 0)))
        r = give(triangle, held, r_placed)
        return r if q is None else (give(q, panels.layout, q_placed), r)

    out = r_placed.spec if mode == "r" else (q_placed.spec, r_placed.spec)
    return plan.placed.map(body, plan.placed.spec, out)(a)


_compiled = jax.jit(compute, static_argnames=("plan", "mode"))
_decompose_donating = jax.jit(compute, static_argnames=("plan", "mode"), donate_argnums=0)


def adjoint_rows(rows: jax.Array, held: RowMap, wanted: RowMap, axes: Axes) -> jax.Array:
    """The local rows of the adjoint, in the layout ``wanted``: one all-to-all of the share."""
    slots = _redistribute.columns_to_slots(rows, wanted)
    return _redistribute.columns_from_slots(_redistribute.adjoint(slots, axes), held)


def unit(placed: Placed, shape: tuple[int, int], dtype: Any) -> jax.Array:
    """The leading columns of the identity; inside a `jax.shard_map` for no elements only."""
    if placed.inside:
        parts = [placed.sharded.size(axes) for axes in placed.dimensions]
        return jnp.zeros([n // part for n, part in zip(shape, parts, strict=True)], dtype)
    if 0 in shape and isinstance(placed.mesh, Mesh):
        # A compiled program returns whole shapes as the shards of an array without elements.
        return jax.device_put(jnp.zeros(shape, dtype), placed.sharding)
    return _posdef.partitioned(lambda: jnp.eye(*shape, dtype=dtype), placed)()


def give(rows: jax.Array, held: RowMap, placed: Placed) -> jax.Array:
    """A shard, placed as ``placed``, of the matrix of which this device holds ``rows``."""
    return _redistribute.shard_from_rows(rows, held, placed.sharded, held.n)
