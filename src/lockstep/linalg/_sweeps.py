"""The two sweeps over a lower triangle, on the local rows of every device.

``low^-1 b`` and ``low^-H b`` for a factor of `lockstep.linalg._cholesky` or `lockstep.linalg._lu`,
by supersteps of the layout (`lockstep.linalg._layout`). Everything here runs inside
`jax.shard_map`. ``low`` has shape (R, P, R), and a right-hand side is (R, k): the rows of this
device's slots.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels, _tiles
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._tiles import adjoint, gemm

STAGES = 4
"""Stages of a sweep over a triangle (`stages`). A kernel needs only one stage."""

DEALT = 4
"""Columns for each device from which on those solved at once are dealt out (`_solve_dealt`)."""


def gather_rows(tile_rows: jax.Array, axes: Axes) -> jax.Array:
    return lax.all_gather(tile_rows, axes, axis=0, tiled=True)


def diagonal_block(low: jax.Array, top: int | jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """The diagonal block whose local rows start at ``top``, on every device."""
    tile = layout.tile
    own = lax.dynamic_slice(low, (top, 0, top), (tile, layout.devices, tile))
    return gather_rows(own.reshape(tile, -1), axes)


def forward(
    low: jax.Array, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool = False
) -> jax.Array:
    """``low^-1 b``, row by row: what is solved is on every device, and leaves the next rows."""
    if layout.devices == 1:
        return _tiles.trsm(low[:, 0, :], b)
    return in_columns(functools.partial(_forward, kernels=kernels), low, b, layout, axes)


def backward(
    low: jax.Array, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool = False
) -> jax.Array:
    """``low^-H b``: what is solved leaves all rows before; an all-reduce sums that a superstep."""
    if layout.devices == 1:
        return _tiles.trsm(low[:, 0, :], b, conjugate_transpose=True)
    return in_columns(functools.partial(_backward, kernels=kernels), low, b, layout, axes)


def in_columns(
    sweep: Callable[..., jax.Array], low: Any, b: jax.Array, layout: RowMap, axes: Axes
) -> jax.Array:
    """``sweep`` over so many columns at a time that all their rows fit in half of a share."""
    most = max(1, layout.padded // (2 * layout.devices))
    width = b.shape[1]
    if width <= most:
        return sweep(low, b, layout, axes)
    parts = -(-width // most)
    each = -(-width // parts)
    wide = jnp.pad(b, ((0, 0), (0, parts * each - width)))
    wide = wide.reshape(-1, parts, each).swapaxes(0, 1)
    done = lax.map(lambda part: sweep(low, part, layout, axes), wide)
    return done.swapaxes(0, 1).reshape(b.shape[0], -1)[:, :width]


def stages(steps: int, count: int = STAGES) -> list[tuple[int, int]]:
    """The supersteps (first, end) of each stage, of which there are ``count`` or fewer.

    What a superstep needs of a triangle is taken as wide as its stage needs it, so that as many
    products are compiled as there are stages, and they are 1 + 1 / count times the least.
    """
    ends = [steps * k // count for k in range(count + 1)]
    return [(first, end) for first, end in itertools.pairwise(ends) if first < end]


def stages_of(steps: int, kernels: bool) -> list[tuple[int, int]]:
    return stages(steps, 1 if kernels else STAGES)


def _left_of(low: jax.Array, top: jax.Array, tile: int, width: int) -> jax.Array:
    """The factor in the tile rows from ``top`` on, left of their diagonal block, then zeros."""
    rows = lax.dynamic_slice(low, (top, 0, 0), (tile, low.shape[1], width))
    # What is above the diagonal may be anything, so it is not multiplied by zero.
    return jnp.where(jnp.arange(width) < top, rows, 0).reshape(tile, -1)


# Both sweeps keep the adjoint of what is summed, (k, P, R): the BLAS, which goes by columns, then
# has the long side first, and packs that one faster.


def _leave_row(
    rest: jax.Array, low: jax.Array, done: jax.Array, top: jax.Array, width: int
) -> jax.Array:
    """``rest``, (k, T), without what the rows ``done``, (k, P, R), before ``top`` leave to it."""
    left = _left_of(low, top, rest.shape[1], width)
    return rest - gemm(done[:, :, :width].reshape(-1, left.shape[1]), adjoint(left))


@_cpu_kernels.with_derivatives_of(_leave_row)
def _leave_row_by_kernel(
    rest: jax.Array, low: jax.Array, done: jax.Array, top: jax.Array, width: int
) -> jax.Array:
    return _cpu_kernels.subtract_products(
        Blocks(rest[:, None]),
        Blocks(done, step_l=(0, 1, 0)),
        Blocks(low, (top, 0, 0), step_l=(0, 1, 0)),
        Sizes(rest.shape[0], rest.shape[1], top, count_l=low.shape[1], adjoint_b=True),
    )[:, 0]


def _leave_rows(
    left_over: jax.Array, low: jax.Array, own: jax.Array, top: jax.Array, width: int
) -> jax.Array:
    """``left_over``, (k, P, R), without what ``own``, (k, T), leaves to the rows before ``top``."""
    change = gemm(own, _left_of(low, top, own.shape[1], width))
    left = left_over[:, :, :width] - change.reshape(*left_over.shape[:2], width)
    return _tiles.put(left_over, left, 0, 0, 0)


@_cpu_kernels.with_derivatives_of(_leave_rows)
def _leave_rows_by_kernel(
    left_over: jax.Array, low: jax.Array, own: jax.Array, top: jax.Array, width: int
) -> jax.Array:
    return _cpu_kernels.subtract_products(
        Blocks(left_over, step_i=(0, 1, 0)),
        Blocks(own[:, None]),
        Blocks(low, (top, 0, 0), step_i=(0, 1, 0)),
        Sizes(own.shape[0], top, own.shape[1], count_i=low.shape[1]),
    )


trsm_by_kernel = _cpu_kernels.with_derivatives_of(_tiles.trsm)(_cpu_kernels.trsm)
solve_right_by_kernel = _cpu_kernels.with_derivatives_of(_tiles.solve_right)(
    _cpu_kernels.solve_right
)


def right_solver(kernels: bool) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """`lockstep.linalg._tiles.solve_right`, or the kernel that does the same."""
    return solve_right_by_kernel if kernels else _tiles.solve_right


def _forward(low: jax.Array, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool) -> jax.Array:
    tile, leave = layout.tile, _leave_row_by_kernel if kernels else _leave_row
    solve_block = block_solver(b, layout)
    trsm = trsm_by_kernel if kernels else _tiles.trsm
    done = jnp.zeros((b.shape[1], layout.devices, b.shape[0]), b.dtype)
    for first, end in stages_of(layout.steps, kernels):

        def step(s: jax.Array, done: jax.Array, width: int = end * tile) -> jax.Array:
            top = s * tile
            rest = adjoint(lax.dynamic_slice_in_dim(b, top, tile))
            rest = adjoint(leave(rest, low, done, top, width=width))
            block = diagonal_block(low, top, layout, axes)
            solved = solve_block(functools.partial(trsm, block), rest, layout, axes)
            solved = adjoint(solved).reshape(b.shape[1], layout.devices, tile)
            return lax.dynamic_update_slice_in_dim(done, solved, top, 2)

        done = lax.fori_loop(first, end, step, done)
    return adjoint(done[:, lax.axis_index(axes)])


def _backward(low: jax.Array, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool) -> jax.Array:
    tile = layout.tile
    leave = _leave_rows_by_kernel if kernels else _leave_rows
    solve_sum = sum_solver(b, layout)
    trsm = functools.partial(trsm_by_kernel if kernels else _tiles.trsm, conjugate_transpose=True)
    # What the rows of this device that are solved leave to each row of every device, as adjoint.
    left_over = jnp.zeros((b.shape[1], layout.devices, b.shape[0]), b.dtype)
    for first, end in reversed(stages_of(layout.steps, kernels)):

        def step(
            back: jax.Array, state: tuple[jax.Array, jax.Array], end: int = end
        ) -> tuple[jax.Array, jax.Array]:
            b, left_over = state
            top = (end - 1 - back) * tile
            rest = rows_to_sum(left_over, b, top, layout, axes)
            block = diagonal_block(low, top, layout, axes)
            own = solve_sum(functools.partial(trsm, block), rest, layout, axes)
            left_over = leave(left_over, low, adjoint(own), top, width=end * tile)
            return lax.dynamic_update_slice_in_dim(b, own, top, 0), left_over

        b, left_over = lax.fori_loop(0, end - first, step, (b, left_over))
    return b


def rows_to_sum(
    left_over: jax.Array, b: jax.Array, top: jax.Array, layout: RowMap, axes: Axes
) -> jax.Array:
    """This device's part of the rows of a superstep, (P, T, k); the sum is what is to be solved."""
    rest = lax.dynamic_slice_in_dim(left_over, top, layout.tile, 2).conj().transpose(1, 2, 0)
    return rest.at[lax.axis_index(axes)].add(lax.dynamic_slice_in_dim(b, top, layout.tile))


# What is left of one superstep's rows, solved with its diagonal block. Each device solves for all
# columns, or, where there are enough of them, for a part: the columns are dealt.

Solve = Callable[[jax.Array], jax.Array]
"""Solves (W, any number of columns) with the diagonal block or its adjoint."""


def block_solver(b: jax.Array, layout: RowMap) -> Callable[..., jax.Array]:
    return _solve_dealt if _is_dealt(b, layout) else _solve_alike


def sum_solver(b: jax.Array, layout: RowMap) -> Callable[..., jax.Array]:
    return _solve_sum_dealt if _is_dealt(b, layout) else _solve_sum_alike


def _is_dealt(b: jax.Array, layout: RowMap) -> bool:
    return b.shape[1] >= DEALT * layout.devices


def _solve_alike(solve: Solve, rest: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """All devices' rows ``rest``, (T, k), solved, on all of them: (W, k)."""
    return solve(gather_rows(rest, axes))


def _solve_dealt(solve: Solve, rest: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """The same; each device gets all devices' rows of its columns, (W, c), and solves those."""
    hands = _hands(rest, layout).reshape(layout.devices * rest.shape[0], -1)
    solved = solve(lax.all_to_all(hands, axes, 0, 0, tiled=True))
    dealt = lax.all_gather(solved, axes, axis=1)
    return dealt.reshape(dealt.shape[0], -1)[:, : rest.shape[1]]


def _solve_sum_alike(solve: Solve, rest: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """Own rows, (T, k), of the sum of all devices' ``rest``, (P, T, k), solved."""
    solved = solve(lax.psum(rest.reshape(-1, rest.shape[2]), axes))
    return lax.dynamic_slice_in_dim(solved, lax.axis_index(axes) * layout.tile, layout.tile)


def _solve_sum_dealt(solve: Solve, rest: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """The same; each device gets the sum's rows of its columns, (W, c), and solves those."""
    hands = _hands(rest.reshape(-1, rest.shape[2]), layout)
    solved = solve(lax.psum_scatter(hands, axes, scatter_dimension=0))
    own = lax.all_to_all(solved.reshape(layout.devices, layout.tile, -1), axes, 0, 1)
    return own.reshape(layout.tile, -1)[:, : rest.shape[2]]


def _hands(rows: jax.Array, layout: RowMap) -> jax.Array:
    """The columns of ``rows``, (m, k), dealt to the devices and padded with zeros: (P, m, c)."""
    each = -(-rows.shape[1] // layout.devices)
    wide = jnp.pad(rows, ((0, 0), (0, each * layout.devices - rows.shape[1])))
    return wide.reshape(rows.shape[0], layout.devices, each).swapaxes(0, 1)
