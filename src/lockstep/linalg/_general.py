"""General square matrices, as global arrays: factor, solve, inverse, determinant, condition.

The counterpart of `lockstep.linalg._posdef`, with LU factors (`lockstep.linalg._lu`) in place of
Cholesky's. The functions of a matrix ``a`` and its factors are differentiable in ``a`` alone, to
any order: the factors come from ``a`` without its tangent.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from lockstep.linalg import (
    _cost_model,
    _grid_model,
    _lu,
    _lu_grid,
    _lu_solve,
    _posdef,
    _redistribute,
    _validation,
)
from lockstep.linalg._layout import Grid
from lockstep.linalg._lu import Factors
from lockstep.linalg._posdef import Plan
from lockstep.linalg._validation import Placed


def plan_of(n: int, placed: Placed, tile: int | None, natural: bool = False) -> Plan:
    """A plan on the line or on the grid that is faster.

    If rows have to keep their order (``natural``), as in `lockstep.linalg.lu_factor`, a matrix with
    padding stays on the line: a tournament may take a column of the padding where a matrix is
    singular, and the factors would not be those of the matrix.
    """
    line = Plan.of(n, placed, tile, natural, _cost_model.lu_tile)
    devices, platform = placed.sharded.devices, _validation.platform(placed)
    grid = _grid_model.lu_grid(n, devices, line.layout.tile, tile, platform)
    if grid is None:
        return line
    plan = Plan.of(n, placed, grid.panel, natural)
    if natural and plan.layout.padded > n:
        return line
    return dataclasses.replace(plan, grid=Grid(grid.rows, grid.columns, 1))


def specs(plan: Plan) -> Factors:
    """The shardings of `Factors` as global arrays."""
    return Factors(plan.slots, P(), P())  # pyright: ignore[reportArgumentType]


@functools.partial(jax.jit, static_argnames=("plan", "lapack_pivots"), donate_argnums=0)
def factor_slots(slots: jax.Array, plan: Plan, lapack_pivots: bool = False) -> Factors:
    """The factors in place of ``slots`` (see `lockstep.linalg._lu.factor`).

    ``lapack_pivots``: by partial pivoting on a line of any number of devices. A tournament may take
    a column of the padding where a matrix is singular.
    """
    layout = plan.layout
    tournament = not lapack_pivots and _cost_model.lu_by_tournament(
        layout.padded, layout.devices, layout.tile
    )

    def body(slots: jax.Array) -> Factors:
        if plan.grid is not None:
            return _lu_grid.factor(slots, layout, plan.grid, plan.axes, plan.kernels)
        return _lu.factor(slots, layout, plan.axes, plan.kernels, tournament)

    return plan.placed.map(body, plan.slots, specs(plan))(slots)


def factor(a: jax.Array, plan: Plan, donate: bool = False) -> Factors:
    slots = (_posdef.to_slots_donating if donate else _posdef.to_slots)(a, plan, None)
    return factor_slots(slots, plan)


@functools.partial(jax.jit, static_argnames="plan")
def to_matrix(slots: jax.Array, plan: Plan) -> jax.Array:
    return plan.placed.map(plan.give_matrix, plan.slots, plan.placed.spec)(slots)


@functools.partial(jax.jit, static_argnames="plan")
def status(factors: Factors, plan: Plan) -> jax.Array:
    """0, or the row (from 1) whose pivot is zero or not finite: int32, replicated."""

    def body(factors: Factors) -> jax.Array:
        return _lu.status(factors, plan.layout, plan.axes)

    return plan.placed.map(body, (specs(plan),), P())(factors)


@functools.partial(jax.jit, static_argnames=("b_placed", "plan", "adjoint"))
def apply(factors: Factors, b: jax.Array, b_placed: Placed, plan: Plan, adjoint: bool) -> jax.Array:
    """``a^-1 b``, or ``a^-H b``, for the factors of ``a``."""
    run = _lu_solve.solve_adjoint if adjoint else _lu_solve.solve

    def body(factors: Factors, b: jax.Array) -> jax.Array:
        rows = run(factors, plan.take_rows(b, b_placed), plan.layout, plan.axes, plan.kernels)
        return plan.give_rows(rows, b_placed)

    return plan.placed.map(body, (specs(plan), b_placed.spec), b_placed.spec)(factors, b)


def solve(
    b: jax.Array,
    b_placed: Placed,
    times: Callable[[jax.Array], jax.Array] | None,
    factors: Factors,
    plan: Plan,
    transposed: bool = False,
) -> jax.Array:
    """``a^-1 b`` for the factors of ``a``, or for those of its transpose (``transposed``).

    Its derivatives are solutions with the same factors, and those of ``times``: the product with
    ``a``. Without ``times`` it has none.
    """

    def run(transposed: bool, b: jax.Array) -> jax.Array:
        run = functools.partial(apply, plan=plan, adjoint=transposed)
        if transposed:
            return _posdef.batched(run, factors, b.conj(), b_placed).conj()
        return _posdef.batched(run, factors, b, b_placed)

    if times is None:
        return run(transposed, b)
    return lax.custom_linear_solve(
        times,
        b,
        solve=lambda _, b: run(transposed, b),
        transpose_solve=lambda _, b: run(not transposed, b),
    )


@functools.partial(jax.jit, static_argnames=("plan", "adjoint"))
def inverse_of(factors: Factors, plan: Plan, adjoint: bool = False) -> jax.Array:
    """``a^-1`` or ``a^-H``: solutions for the columns of the identity, sharded as ``a``."""
    layout, sharded = plan.layout, plan.placed.sharded
    run = _lu_solve.solve_adjoint if adjoint else _lu_solve.solve

    def body(factors: Factors) -> jax.Array:
        own = jnp.asarray(layout.row_of_slot)[_redistribute.device_index(sharded)]
        eye = (own[:, None] == jnp.arange(layout.n)).astype(factors.slots.dtype)
        rows = run(factors, eye, layout, plan.axes, plan.kernels)
        return _redistribute.shard_from_rows(rows, layout, sharded, layout.n)

    return plan.placed.map(body, (specs(plan),), plan.placed.spec)(factors)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def inverse(a: jax.Array, factors: Factors, plan: Plan) -> jax.Array:
    return inverse_of(factors, plan)


@inverse.defjvp
def _inverse_jvp(plan: Plan, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    a, factors = primals
    done = inverse(a, factors, plan)
    left = _posdef.matmul(done, tangents[0], plan.placed)
    return done, -_posdef.matmul(left, done, plan.placed)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def log_determinant(a: jax.Array, factors: Factors, plan: Plan) -> tuple[jax.Array, jax.Array]:
    """The sign (the phase, if complex), and the natural logarithm of the absolute value."""
    return _log_determinant_of(factors, plan)


@functools.partial(jax.jit, static_argnames="plan")
def _log_determinant_of(factors: Factors, plan: Plan) -> tuple[jax.Array, jax.Array]:
    def body(factors: Factors) -> tuple[jax.Array, jax.Array]:
        return _lu.determinant(factors, plan.layout, plan.axes)

    return plan.placed.map(body, (specs(plan),), (P(), P()))(factors)


@log_determinant.defjvp
def _log_determinant_jvp(plan: Plan, primals: Any, tangents: Any) -> Any:
    """The trace of ``a^-1 da``; its imaginary part turns the phase."""
    a, factors = primals
    sign, log = log_determinant(a, factors, plan)
    trace = (adjoint_inverse(a, factors, plan).conj() * tangents[0]).sum()
    turn = 1j * trace.imag * sign if jnp.iscomplexobj(sign) else jnp.zeros_like(sign)
    return (sign, log), (turn.astype(sign.dtype), trace.real)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def adjoint_inverse(a: jax.Array, factors: Factors, plan: Plan) -> jax.Array:
    return inverse_of(factors, plan, True)


@adjoint_inverse.defjvp
def _adjoint_inverse_jvp(plan: Plan, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    a, factors = primals
    done = adjoint_inverse(a, factors, plan)
    left = _posdef.matmul(done, _posdef.adjoint(tangents[0], plan.placed), plan.placed)
    return done, -_posdef.matmul(left, done, plan.placed)


MAX_ITERATIONS = 4
"""Bounds `norm_of_inverse` after its first two solutions; it seldom needs more than two."""


@functools.partial(jax.jit, static_argnames=("plan", "largest_row"))
def norm_of_inverse(factors: Factors, plan: Plan, largest_row: bool = False) -> jax.Array:
    """An estimate of the 1-norm of ``a^-1`` (of the infinity norm, with ``largest_row``): a lower
    bound, seldom below a third of it.

    As LAPACK's gecon: Higham, "FORTRAN codes for estimating the one-norm of a real or complex
    matrix", ACM TOMS 14 (1988), algorithm 4.1, a few solutions with ``a`` and its adjoint.
    """
    n, dtype = plan.layout.n, factors.slots.dtype
    placed = Placed(plan.placed.mesh, ((), ()))

    def solve(x: jax.Array, adjoint: bool) -> jax.Array:
        return apply(factors, x[:, None], placed, plan, adjoint != largest_row)[:, 0]

    def sign(x: jax.Array) -> jax.Array:
        return jnp.where(x == 0, 1, x / jnp.where(x == 0, 1, jnp.abs(x)))

    def step(state: Any) -> Any:
        count, estimate, _, at, _ = state
        x = solve(jnp.zeros(n, dtype).at[at].set(1), False)
        better = jnp.abs(x).sum()
        z = jnp.abs(solve(sign(x), True))
        best = jnp.argmax(z)
        go_on = (better > estimate) & (z[best] > z[at])
        return count + 1, jnp.maximum(better, estimate), z, best, go_on

    x = solve(jnp.full(n, 1 / n, dtype), False)
    z = jnp.abs(solve(sign(x), True))
    state = (jnp.int32(0), jnp.abs(x).sum(), z, jnp.argmax(z), jnp.bool(True))
    state = lax.while_loop(lambda s: s[4] & (s[0] < MAX_ITERATIONS), step, state)
    place = np.arange(n)
    alternating = (-1.0) ** place * (1 + place / max(n - 1, 1))
    last = jnp.abs(solve(jnp.asarray(alternating, dtype), False)).sum()
    return jnp.maximum(state[1], 2 * last / (3 * n))


@functools.partial(jax.jit, static_argnames=("placed", "largest_row"))
def norm(a: jax.Array, placed: Placed, largest_row: bool = False) -> jax.Array:
    """The 1-norm of ``a``: the largest sum over a column; or over a row."""

    def run(a: jax.Array) -> jax.Array:
        return jnp.abs(a).sum(1 if largest_row else 0).max()

    return _posdef.partitioned(run, Placed(placed.mesh, ()))(a)
