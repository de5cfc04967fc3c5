"""Hermitian positive definite matrices, as global arrays: factor, solve, inverse, log-determinant.

Between calls a factor is one global array of slots (`_layout`), shape (P R, P, R), its rows over
all devices. The functions of a matrix ``a`` and its factor ``low`` are differentiable
in ``a`` alone, to any order: ``low`` comes from ``a`` without its tangent.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from lockstep.linalg import (
    _cholesky,
    _cholesky_grid,
    _cost_model,
    _cpu_kernels,
    _dealt_columns,
    _grid_model,
    _inverse,
    _redistribute,
    _sweeps,
    _validation,
)
from lockstep.linalg._grid_model import GridShape
from lockstep.linalg._layout import Grid, RowMap
from lockstep.linalg._sweeps import Triangle
from lockstep.linalg._validation import Placed


@dataclasses.dataclass(frozen=True)
class Plan:
    """The sharding of a matrix, and the layout in which it is processed."""

    placed: Placed
    layout: RowMap
    kernels: bool
    """Whether the engine's kernels do what plain JAX would."""
    grid: Grid | None = None
    """The grid of devices over which a factorization sends its panels; None: the line."""

    @classmethod
    def of(
        cls,
        n: int,
        placed: Placed,
        tile: int | None,
        natural: bool,
        best_tile: Callable[[int, int, int, str], int] = _cost_model.cholesky_tile,
    ) -> Plan:
        """``natural``: eliminate in the order of the rows, not in that of the devices."""
        sharded, platform = placed.sharded, _validation.platform(placed)
        rows = sharded.rows_each(n)
        if natural:
            rows = -(-n // sharded.devices)
        if tile is None:
            tile = best_tile(n, sharded.devices, rows, platform)
        tile = _cost_model.even_tile(rows, tile)
        kernels = _cpu_kernels.available(platform)
        if natural:
            return cls(placed, RowMap.cyclic(n, sharded.devices, tile), kernels)
        return cls(placed, RowMap.in_blocks(sharded, n, tile), kernels)

    @classmethod
    def for_cholesky(cls, n: int, placed: Placed, tile: int | None, natural: bool) -> Plan:
        """A plan as by `of`, on the line or on the grid that the cost model finds faster."""
        line = cls.of(n, placed, tile, natural)
        devices, platform = placed.sharded.devices, _validation.platform(placed)
        grid = _grid_model.cholesky_grid(n, devices, line.layout.tile, tile, platform)
        return line if grid is None else cls.on_grid(n, placed, natural, grid)

    @classmethod
    def on_grid(cls, n: int, placed: Placed, natural: bool, grid: GridShape) -> Plan:
        """A plan that factors over ``grid``; all else has the line's layout."""
        plan = cls.of(
            n, placed, None, natural, lambda n, devices, rows, _: _cost_model.grid_tile(rows)
        )
        supersteps = max(1, grid.panel // plan.layout.tile)
        return dataclasses.replace(plan, grid=Grid(grid.rows, grid.columns, supersteps))

    @property
    def axes(self) -> tuple[str, ...]:
        return self.placed.sharded.axes

    @property
    def slots(self) -> P:
        """The sharding of an array of slots: local rows over all devices."""
        return P(self.axes)

    def take_matrix(self, shard: jax.Array, padding: int = 1) -> jax.Array:
        """A shard of the matrix to slots; ``padding`` is on the diagonal of the padding."""
        sharded, layout = self.placed.sharded, self.layout
        rows = _redistribute.rows_from_shard(shard, sharded, layout.n, layout)
        slots = _redistribute.columns_to_slots(rows, layout)
        me, value = _redistribute.device_index(sharded), jnp.asarray(padding, shard.dtype)
        return _redistribute.set_padding(slots, layout, me, value)

    def give_matrix(self, slots: jax.Array) -> jax.Array:
        rows = _redistribute.columns_from_slots(slots, self.layout)
        return _redistribute.shard_from_rows(rows, self.layout, self.placed.sharded, self.layout.n)

    def take_rows(self, shard: jax.Array, placed: Placed) -> jax.Array:
        return _redistribute.rows_from_shard(shard, placed.sharded, self.layout.n, self.layout)

    def give_rows(self, rows: jax.Array, placed: Placed) -> jax.Array:
        return _redistribute.shard_from_rows(rows, self.layout, placed.sharded, self.layout.n)

    def mirror(self, slots: jax.Array, lower: bool | None) -> jax.Array:
        """The Hermitian matrix of which ``slots`` hold the lower or the upper triangle."""
        if lower is None:
            return slots
        kept, slots = self._read(slots, lower)
        return jnp.where(kept, slots, _redistribute.adjoint(slots, self.axes))

    def triangle(self, slots: jax.Array, lower: bool) -> jax.Array:
        """What `mirror` reads of ``slots``, and zeros."""
        kept, slots = self._read(slots, lower)
        return jnp.where(kept, slots, 0)

    def _read(self, slots: jax.Array, lower: bool) -> tuple[jax.Array, jax.Array]:
        """Which places of ``slots`` are in the triangle, and ``slots`` with a real diagonal."""
        rows = jnp.asarray(self.layout.row_of_slot)
        mine = rows[_redistribute.device_index(self.placed.sharded)][:, None, None]
        slots = jnp.where(mine == rows, slots.real.astype(slots.dtype), slots)
        return mine >= rows if lower else mine <= rows, slots


def _to_slots(a: jax.Array, plan: Plan, lower: bool | None) -> jax.Array:
    """The matrix as slots; Hermitian from the triangle that ``lower`` names, if it names one."""

    def body(a: jax.Array) -> jax.Array:
        return plan.mirror(plan.take_matrix(a), lower)

    return plan.placed.map(body, plan.placed.spec, plan.slots)(a)


to_slots = jax.jit(_to_slots, static_argnames=("plan", "lower"))
to_slots_donating = jax.jit(_to_slots, static_argnames=("plan", "lower"), donate_argnums=0)


# A program of its own when it is not traced: XLA factors in place only what comes as slots.
@functools.partial(jax.jit, static_argnames=("plan", "with_status"), donate_argnums=0)
def factor_slots(slots: jax.Array, plan: Plan, with_status: bool) -> tuple[jax.Array, jax.Array]:
    """The factor in place of ``slots``, and the status (see `lockstep.linalg._cholesky.factor`)."""

    def body(slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        how = plan.axes, with_status, plan.kernels
        if plan.grid is None:
            return _cholesky.factor(slots, plan.layout, *how)
        return _cholesky_grid.factor(slots, plan.layout, plan.grid, *how)

    return plan.placed.map(body, plan.slots, (plan.slots, P()))(slots)


def factor(
    a: jax.Array, plan: Plan, lower: bool | None, with_status: bool, donate: bool = False
) -> tuple[jax.Array, jax.Array]:
    slots = (to_slots_donating if donate else to_slots)(a, plan, lower)
    return factor_slots(slots, plan, with_status)


@functools.partial(jax.jit, static_argnames=("plan",))
def lower_to_matrix(low: jax.Array, plan: Plan) -> jax.Array:
    """The matrix of a lower factor in slots, zero above the diagonal."""

    def body(low: jax.Array) -> jax.Array:
        return plan.give_matrix(_cholesky.lower_part(low, plan.layout, plan.axes))

    return plan.placed.map(body, plan.slots, plan.placed.spec)(low)


@functools.partial(jax.jit, static_argnames=("plan", "b_placed", "sweeps"))
def sweep(
    low: jax.Array, b: jax.Array, plan: Plan, b_placed: Placed, sweeps: tuple[str, ...]
) -> jax.Array:
    """``b`` after the triangular sweeps of these names (forward, backward)."""

    def body(low: jax.Array, b: jax.Array) -> jax.Array:
        rows = plan.take_rows(b, b_placed)
        how = plan.layout, plan.axes, plan.kernels
        if _dealt_columns.pays(rows.shape[1], plan.layout):
            x = _dealt_columns.to_columns(rows, plan.axes, plan.layout.devices)
            for name in sweeps:
                x = _dealt_columns.solve_columns(Triangle(low), x, *how, name == "backward")
            return plan.give_rows(_dealt_columns.to_rows(x, plan.axes, rows.shape[1]), b_placed)
        for name in sweeps:
            rows = _sweeps.solve(Triangle(low), rows, *how, name == "backward")
        return plan.give_rows(rows, b_placed)

    return plan.placed.map(body, (plan.slots, b_placed.spec), b_placed.spec)(low, b)


def batched(
    run: Callable[[Any, jax.Array, Placed], jax.Array], low: Any, b: jax.Array, b_placed: Placed
) -> jax.Array:
    """``run(low, b, b_placed)``, and under `jax.vmap` over ``b`` the batch as further columns."""

    @jax.custom_batching.custom_vmap
    def mapped(low: Any, b: jax.Array) -> jax.Array:
        return run(low, b, b_placed)

    @mapped.def_vmap
    def _(size: int, is_batched: Any, low: Any, b: jax.Array) -> tuple[jax.Array, bool]:
        def each(is_batched: bool, x: jax.Array) -> jax.Array:
            return x if is_batched else jnp.broadcast_to(x, (size, *x.shape))

        if any(jax.tree.leaves(is_batched[0])):
            both = jax.tree.map(each, tuple(is_batched), (low, b))
            return lax.map(lambda x: run(x[0], x[1], b_placed), both), True
        wide = jnp.moveaxis(b, 0, 1).reshape(b.shape[1], -1)
        rows_only = Placed(b_placed.mesh, (b_placed.dimensions[0], ()))
        solved = batched(run, low, wide, rows_only)
        return jnp.moveaxis(solved.reshape(b.shape[1], size, -1), 1, 0), True

    return mapped(low, b)


def batched_sweep(
    low: jax.Array, b: jax.Array, plan: Plan, b_placed: Placed, sweeps: tuple[str, ...]
) -> jax.Array:
    """`sweep`, and under `jax.vmap` over ``b`` the batch as further columns of it."""

    def run(low: jax.Array, b: jax.Array, b_placed: Placed) -> jax.Array:
        return sweep(low, b, plan, b_placed, sweeps)

    return batched(run, low, b, b_placed)


def solve(
    a: jax.Array | None, low: jax.Array, b: jax.Array, plan: Plan, b_placed: Placed
) -> jax.Array:
    """``a^-1 b``. Its derivatives are solutions with the same factor; without ``a`` it has none."""
    both = ("forward", "backward")
    if a is None:
        return sweep(low, b, plan, b_placed, both)

    def run(_: Any, b: jax.Array) -> jax.Array:
        return batched_sweep(low, b, plan, b_placed, both)

    def run_transposed(_: Any, b: jax.Array) -> jax.Array:
        return run(None, b.conj()).conj()

    return lax.custom_linear_solve(
        lambda x: matmul(a, x, b_placed), b, solve=run, transpose_solve=run_transposed
    )


def matmul(x: jax.Array, y: jax.Array, placed: Placed) -> jax.Array:
    """``x y`` sharded as ``placed``. For derivatives only."""
    product = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    return partitioned(product, placed)(x, y)


def partitioned(function: Callable[..., jax.Array], placed: Placed) -> Callable[..., jax.Array]:
    """``function`` of global arrays, partitioned by XLA, with its result sharded as ``placed``."""
    mesh: Any = placed.mesh  # an AbstractMesh is taken too, whatever the stubs say
    sharding = jax.sharding.NamedSharding(mesh, placed.spec)
    if set(placed.mesh.axis_types) == {jax.sharding.AxisType.Explicit}:
        automatic: Any = jax.sharding.auto_axes
        return automatic(function, out_sharding=sharding)
    return lambda *args: lax.with_sharding_constraint(function(*args), sharding)


def adjoint(a: jax.Array, placed: Placed) -> jax.Array:
    """The adjoint of ``a``, sharded as ``placed``."""
    return partitioned(lambda a: a.conj().T, placed)(a)


def delete(given: Any, put: jax.Array) -> None:
    """Deletes the caller's array too, if ``put`` is a copy of it with another sharding."""
    if isinstance(given, jax.Array) and put is not given and not given.is_deleted():
        given.delete()


def as_matrix(
    run: Callable[[jax.Array, Placed], jax.Array], b: jax.Array, b_placed: Placed
) -> jax.Array:
    """``run(b, b_placed)`` on a matrix, whether ``b`` is one or a vector."""
    if b.ndim == 2:
        return run(b, b_placed)
    wide = dataclasses.replace(b_placed, dimensions=(b_placed.dimensions[0], ()))
    return run(b[:, None], wide)[:, 0]


def mirrored(a: jax.Array, lower: bool) -> jax.Array:
    """The Hermitian matrix of a triangle, for derivatives."""
    half = jnp.tril(a, -1) if lower else jnp.triu(a, 1)
    diagonal = jnp.eye(a.shape[0], dtype=a.dtype) * a.real
    return half + half.conj().T + diagonal


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def inverse(a: jax.Array, low: jax.Array, plan: Plan) -> jax.Array:
    return inverse_of(low, plan)


@inverse.defjvp
def _inverse_jvp(plan: Plan, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    a, low = primals
    done = inverse(a, low, plan)
    left = matmul(done, tangents[0], plan.placed)
    return done, -matmul(left, done, plan.placed)


def _inverse_of(low: jax.Array, plan: Plan) -> jax.Array:
    def body(low: jax.Array) -> jax.Array:
        return plan.give_matrix(_inverse.from_factor(low, plan.layout, plan.axes, plan.kernels))

    return plan.placed.map(body, plan.slots, plan.placed.spec)(low)


inverse_of = jax.jit(_inverse_of, static_argnames="plan")
inverse_of_donating = jax.jit(_inverse_of, static_argnames="plan", donate_argnums=0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def log_determinant(a: jax.Array | None, low: jax.Array, plan: Plan) -> jax.Array:
    return log_determinant_of(low, plan)


@log_determinant.defjvp
def _log_determinant_jvp(plan: Plan, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    a, low = primals
    done = inverse(a, low, plan)
    return log_determinant(a, low, plan), (done.conj() * tangents[0]).sum().real


@functools.partial(jax.jit, static_argnames=("plan",))
def log_determinant_of(low: jax.Array, plan: Plan) -> jax.Array:
    body = functools.partial(_cholesky.log_determinant, axes=plan.axes)
    return plan.placed.map(body, plan.slots, P())(low)
