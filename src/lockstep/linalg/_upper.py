"""Solving with an upper triangle, and with LU factors, on the local rows of every device.

The sweeps with the upper triangle ``u``, whose diagonal in LU factors is that of ones, are the
mirror images of those with a lower triangle (`lockstep.linalg._cholesky`), over the same
supersteps. A device has the rows of its own slots of ``u``. So in ``u^-1 b``, last superstep first,
each solved block goes to all devices; in ``u^-H b``, first superstep first, the devices add up what
they leave to a block.

Rows are exchanged, as the factorization exchanged columns, where all of them are on every device.
Everything here runs inside `jax.shard_map`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels, _dealt_columns, _sweeps, _tiles
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._dealt_columns import Triangle
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._lu import Factors, inverse_of
from lockstep.linalg._tiles import adjoint, gemm
from lockstep.linalg._tournament import unit_lower


def solve(
    factors: Factors, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool = False
) -> jax.Array:
    """``a^-1 b = Q u^-1 l^-1 b`` for the rows of this device's slots, (R, k)."""
    slots, devices, position = factors.slots, layout.devices, inverse_of(factors.order)
    how = layout, axes, kernels
    if _dealt_columns.pays(b.shape[1], layout):
        x = _dealt_columns.to_columns(b, axes, devices)
        x = _dealt_columns.solve_columns(Triangle(slots), x, *how)
        x = _dealt_columns.solve_columns(_unit_upper(slots), x, *how)
        return _dealt_columns.to_rows(_rows_at(x, position), axes, b.shape[1])
    b = _sweeps.forward(slots, b, *how)
    own = position.reshape(devices, -1)[lax.axis_index(axes)]

    def run(slots: jax.Array, b: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
        done = _backward(slots, b, layout, axes, kernels, True)
        return adjoint(jnp.take(done.reshape(b.shape[1], -1), own, axis=1))

    return _sweeps.in_columns(run, slots, b, layout, axes)


def solve_adjoint(
    factors: Factors, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool = False
) -> jax.Array:
    """``a^-H b = l^-H u^-H Q^H b``."""
    slots, devices, how = factors.slots, layout.devices, (layout, axes, kernels)
    if _dealt_columns.pays(b.shape[1], layout):
        x = _rows_at(_dealt_columns.to_columns(b, axes, devices), factors.order)
        x = _dealt_columns.solve_columns(_unit_upper(slots), x, *how, True)
        x = _dealt_columns.solve_columns(Triangle(slots), x, *how, True)
        return _dealt_columns.to_rows(x, axes, b.shape[1])
    own = factors.order.reshape(devices, -1)[lax.axis_index(axes)]

    def run(slots: jax.Array, b: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
        b = _sweeps.gather_rows(b, axes)[own]
        return _forward(slots, b, layout, axes, kernels, True)

    b = _sweeps.in_columns(run, slots, b, layout, axes)
    return _sweeps.backward(slots, b, *how)


def _unit_upper(slots: jax.Array) -> Triangle:
    return Triangle(slots, upper=True, unit=True)


def _rows_at(x: jax.Array, places: jax.Array) -> jax.Array:
    """The rows of all slots of ``x``, (P, R, c), in another order."""
    return jnp.take(x.reshape(-1, x.shape[2]), places, axis=0).reshape(x.shape)


def backward(
    slots: jax.Array, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool = False
) -> jax.Array:
    """``u^-1 b`` for an upper triangle ``u`` whose diagonal is not that of ones."""
    if _dealt_columns.pays(b.shape[1], layout):
        return _dealt_columns.solve(Triangle(slots, upper=True), b, layout, axes, kernels)

    def run(slots: jax.Array, b: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
        done = _backward(slots, b, layout, axes, kernels, False)
        return adjoint(done[:, lax.axis_index(axes)])

    return _sweeps.in_columns(run, slots, b, layout, axes)


def forward(
    slots: jax.Array, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool = False
) -> jax.Array:
    """``u^-H b`` for the same."""
    if _dealt_columns.pays(b.shape[1], layout):
        return _dealt_columns.solve(Triangle(slots, upper=True), b, layout, axes, kernels, True)
    run = functools.partial(_forward, kernels=kernels, unit=False)
    return _sweeps.in_columns(run, slots, b, layout, axes)


# As in `_cholesky`, both sweeps keep the adjoint of what is summed, (k, P, R).


def _leave_row(
    rest: jax.Array, slots: jax.Array, done: jax.Array, end: jax.Array, first: int
) -> jax.Array:
    """``rest``, (k, T), the rows before ``end``, without what the rows ``done`` from there on
    leave to it. None of those is before ``first``."""
    right = _right_of(slots, end, rest.shape[1], first)
    return rest - gemm(done[:, :, first:].reshape(-1, right.shape[1]), adjoint(right))


def _right_of(slots: jax.Array, end: jax.Array, tile: int, first: int) -> jax.Array:
    """``u`` in the tile rows before ``end``, right of their diagonal block, zeros before that."""
    rows = lax.dynamic_slice_in_dim(slots[:, :, first:], end - tile, tile)
    return jnp.where(jnp.arange(first, slots.shape[2]) >= end, rows, 0).reshape(tile, -1)


@_cpu_kernels.with_derivatives_of(_leave_row)
def _leave_row_by_kernel(
    rest: jax.Array, slots: jax.Array, done: jax.Array, end: jax.Array, first: int
) -> jax.Array:
    rows, devices, _ = slots.shape
    return _cpu_kernels.subtract_products(
        Blocks(rest[:, None]),
        Blocks(done, (0, 0, end), step_l=(0, 1, 0)),
        Blocks(slots, (end - rest.shape[1], 0, end), step_l=(0, 1, 0)),
        Sizes(rest.shape[0], rest.shape[1], rows - end, count_l=devices, adjoint_b=True),
    )[:, 0]


def _leave_rows(
    left_over: jax.Array, slots: jax.Array, own: jax.Array, end: jax.Array, first: int
) -> jax.Array:
    """``left_over``, (k, P, R), without what ``own``, (k, T), leaves to rows from ``end`` on."""
    change = gemm(own, _right_of(slots, end, own.shape[1], first))
    left = left_over[:, :, first:] - change.reshape(*left_over.shape[:2], -1)
    return _tiles.put(left_over, left, 0, 0, first)


@_cpu_kernels.with_derivatives_of(_leave_rows)
def _leave_rows_by_kernel(
    left_over: jax.Array, slots: jax.Array, own: jax.Array, end: jax.Array, first: int
) -> jax.Array:
    rows, devices, _ = slots.shape
    return _cpu_kernels.subtract_products(
        Blocks(left_over, (0, 0, end), step_i=(0, 1, 0)),
        Blocks(own[:, None]),
        Blocks(slots, (end - own.shape[1], 0, end), step_i=(0, 1, 0)),
        Sizes(own.shape[0], rows - end, own.shape[1], count_i=devices),
    )


def _backward(
    slots: jax.Array, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool, unit: bool
) -> jax.Array:
    """The adjoint of ``u^-1 b``, with the rows of all devices: (k, P, R)."""
    tile = layout.tile
    if layout.devices == 1:
        return adjoint(_tiles.trsm_upper(slots[:, 0], b, unit=unit))[:, None]
    leave = _leave_row_by_kernel if kernels else _leave_row
    solve_block = _sweeps.block_solver(b, layout)
    done = jnp.zeros((b.shape[1], layout.devices, b.shape[0]), b.dtype)
    for first, last in reversed(_sweeps.stages_of(layout.steps, kernels)):

        def step(
            back: jax.Array, done: jax.Array, first: int = first * tile, last: int = last
        ) -> jax.Array:
            top = (last - 1 - back) * tile
            rest = adjoint(lax.dynamic_slice_in_dim(b, top, tile))
            rest = adjoint(leave(rest, slots, done, top + tile, first=first))
            block = _sweeps.diagonal_block(slots, top, layout, axes)
            solved = solve_block(_trsm(block, kernels, True, unit), rest, layout, axes)
            solved = adjoint(solved).reshape(b.shape[1], layout.devices, tile)
            return lax.dynamic_update_slice_in_dim(done, solved, top, 2)

        done = lax.fori_loop(0, last - first, step, done)
    return done


def _forward(
    slots: jax.Array, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool, unit: bool
) -> jax.Array:
    """``u^-H b``."""
    tile = layout.tile
    if layout.devices == 1:
        return _tiles.trsm_upper(slots[:, 0], b, conjugate_transpose=True, unit=unit)
    leave = _leave_rows_by_kernel if kernels else _leave_rows
    solve_sum = _sweeps.sum_solver(b, layout)
    left_over = jnp.zeros((b.shape[1], layout.devices, b.shape[0]), b.dtype)
    for first, last in _sweeps.stages_of(layout.steps, kernels):

        def step(
            s: jax.Array, state: tuple[jax.Array, jax.Array], first: int = first * tile
        ) -> tuple[jax.Array, jax.Array]:
            b, left_over = state
            top = s * tile
            rest = _sweeps.rows_to_sum(left_over, b, top, layout, axes)
            block = _sweeps.diagonal_block(slots, top, layout, axes)
            own = solve_sum(_trsm(block, kernels, False, unit), rest, layout, axes)
            left_over = leave(left_over, slots, adjoint(own), top + tile, first=first)
            return lax.dynamic_update_slice_in_dim(b, own, top, 0), left_over

        b, left_over = lax.fori_loop(first, last, step, (b, left_over))
    return b


def _trsm(block: jax.Array, kernels: bool, upper: bool, unit: bool) -> _sweeps.Solve:
    """Solves with the upper triangle of ``block``, or with its adjoint."""
    run = _sweeps.trsm_by_kernel if kernels else _tiles.trsm
    low = unit_lower(block) if unit else adjoint(jnp.triu(block))
    return functools.partial(run, low, conjugate_transpose=upper)
