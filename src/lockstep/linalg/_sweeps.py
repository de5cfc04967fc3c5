"""Sweeps over a triangle, on the local rows of every device.

``t^-1 b`` and ``t^-H b`` for a triangle ``t``, by supersteps of the layout
(`lockstep.linalg._layout`). A device has the rows of its own slots of ``t``. So in ``t^-1 b`` each
solved block goes to all devices; in ``t^-H b`` the devices add up what they leave to a block. A
lower triangle is swept from the first superstep on for ``t^-1 b`` and from the last one back for
``t^-H b``, an upper one the other way round.

Everything here runs inside `jax.shard_map`. A triangle is (R, P, R), and a right-hand side (R, k):
the rows of this device's slots.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

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


class Triangle(NamedTuple):
    """Which triangle of the slots is meant, and how."""

    slots: jax.Array
    upper: bool = False
    unit: bool = False
    """Whether the diagonal of an upper triangle counts as that of ones."""


def gather_rows(tile_rows: jax.Array, axes: Axes) -> jax.Array:
    return lax.all_gather(tile_rows, axes, axis=0, tiled=True)


def diagonal_block(low: jax.Array, top: int | jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """The diagonal block whose local rows start at ``top``, on every device."""
    tile = layout.tile
    own = lax.dynamic_slice(low, (top, 0, top), (tile, layout.devices, tile))
    return gather_rows(own.reshape(tile, -1), axes)


def solve(
    triangle: Triangle,
    b: jax.Array,
    layout: RowMap,
    axes: Axes,
    kernels: bool = False,
    conjugate_transpose: bool = False,
) -> jax.Array:
    """``t^-1 b`` or ``t^-H b``."""
    how = layout, axes, kernels
    if conjugate_transpose:
        return in_columns(lambda b: solve_adjoint(triangle, b, *how), b, layout)
    me = 0 if layout.devices == 1 else lax.axis_index(axes)
    return in_columns(lambda b: adjoint(solve_gathered(triangle, b, *how)[:, me]), b, layout)


def in_columns(run: Callable[[jax.Array], jax.Array], b: jax.Array, layout: RowMap) -> jax.Array:
    """``run`` on so many columns at a time that all their rows fit in half of a share."""
    most = max(1, layout.padded // (2 * layout.devices))
    width = b.shape[1]
    if width <= most or layout.devices == 1:
        return run(b)
    parts = -(-width // most)
    each = -(-width // parts)
    wide = jnp.pad(b, ((0, 0), (0, parts * each - width)))
    done = lax.map(run, wide.reshape(-1, parts, each).swapaxes(0, 1))
    return done.swapaxes(0, 1).reshape(b.shape[0], -1)[:, :width]


def solve_gathered(
    triangle: Triangle, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool
) -> jax.Array:
    """The adjoint of ``t^-1 b``, with the rows of all devices: (k, P, R)."""
    if layout.devices == 1:
        return adjoint(_solve_alone(triangle, b))[:, None]
    leave = _leave_row_by_kernel if kernels else _leave_row
    run = _solve_dealt if _is_dealt(b, layout) else _solve_alike

    def step(top: jax.Array, done: jax.Array, columns: tuple[int, int]) -> jax.Array:
        rest = adjoint(lax.dynamic_slice_in_dim(b, top, layout.tile))
        which = {"columns": columns, "upper": triangle.upper}
        rest = adjoint(leave(rest, triangle.slots, done, top, **which))
        block = diagonal_block(triangle.slots, top, layout, axes)
        solved = run(block_solver(triangle, block, kernels), rest, layout, axes)
        solved = adjoint(solved).reshape(b.shape[1], layout.devices, layout.tile)
        return lax.dynamic_update_slice_in_dim(done, solved, top, 2)

    done = jnp.zeros((b.shape[1], layout.devices, b.shape[0]), b.dtype)
    return _sweep(step, done, layout, kernels, triangle.upper, from_first=not triangle.upper)


def solve_adjoint(
    triangle: Triangle, b: jax.Array, layout: RowMap, axes: Axes, kernels: bool
) -> jax.Array:
    """``t^-H b``. An all-reduce a superstep sums what is left to its rows."""
    if layout.devices == 1:
        return _solve_alone(triangle, b, True)
    leave = _leave_rows_by_kernel if kernels else _leave_rows
    run = _solve_sum_dealt if _is_dealt(b, layout) else _solve_sum_alike

    def step(
        top: jax.Array, state: tuple[jax.Array, jax.Array], columns: tuple[int, int]
    ) -> tuple[jax.Array, jax.Array]:
        b, left_over = state
        rest = _rows_to_sum(left_over, b, top, layout, axes)
        block = diagonal_block(triangle.slots, top, layout, axes)
        own = run(block_solver(triangle, block, kernels, True), rest, layout, axes)
        which = {"columns": columns, "upper": triangle.upper}
        left_over = leave(left_over, triangle.slots, adjoint(own), top, **which)
        return lax.dynamic_update_slice_in_dim(b, own, top, 0), left_over

    # What the rows of this device that are solved leave to each row of every device, as adjoint.
    left_over = jnp.zeros((b.shape[1], layout.devices, b.shape[0]), b.dtype)
    state = b, left_over
    return _sweep(step, state, layout, kernels, triangle.upper, from_first=triangle.upper)[0]


def _solve_alone(triangle: Triangle, b: jax.Array, conjugate_transpose: bool = False) -> jax.Array:
    """With all slots on one device."""
    slots = triangle.slots[:, 0]
    if triangle.upper:
        return _tiles.trsm_upper(slots, b, conjugate_transpose, triangle.unit)
    return _tiles.trsm(slots, b, conjugate_transpose)


def _sweep(
    step: Callable[..., Any],
    state: Any,
    layout: RowMap,
    kernels: bool,
    upper: bool,
    from_first: bool,
) -> Any:
    """``state`` after ``step(top, state, columns)`` for each superstep.

    ``top`` is its first local row, and ``columns`` are those of the triangle that its stage needs.
    A kernel takes what each superstep needs, so that one stage is enough.
    """
    ranges, tile = stages(layout.steps, 1 if kernels else STAGES), layout.tile
    for first, end in ranges if from_first else reversed(ranges):

        def run(k: jax.Array, state: Any, first: int = first, end: int = end) -> Any:
            columns = (first * tile, layout.rows) if upper else (0, end * tile)
            return step((first + k if from_first else end - 1 - k) * tile, state, columns)

        state = lax.fori_loop(0, end - first, run, state)
    return state


def stages(steps: int, count: int = STAGES) -> list[tuple[int, int]]:
    """The supersteps (first, end) of each stage, of which there are ``count`` or fewer.

    What a superstep needs of a triangle is taken as wide as its stage needs it, so that as many
    products are compiled as there are stages, and they are 1 + 1 / count times the least.
    """
    ends = [steps * k // count for k in range(count + 1)]
    return [(first, end) for first, end in itertools.pairwise(ends) if first < end]


def _beside(
    slots: jax.Array, top: jax.Array, tile: int, columns: tuple[int, int], upper: bool
) -> jax.Array:
    """These columns of the triangle in the tile rows from ``top`` on, without the diagonal block.

    Zero is in place of that, and of the other triangle, which may hold anything.
    """
    first, end = columns
    rows = lax.dynamic_slice(slots, (top, 0, first), (tile, slots.shape[1], end - first))
    places = jnp.arange(first, end)
    return jnp.where(places >= top + tile if upper else places < top, rows, 0).reshape(tile, -1)


def _range_beside(
    slots: jax.Array, top: jax.Array, tile: int, upper: bool
) -> tuple[int | jax.Array, jax.Array]:
    """The first column beside the diagonal block, and how many there are."""
    return (top + tile, len(slots) - top - tile) if upper else (0, top)


# Both sweeps keep the adjoint of what is summed, (k, P, R): the BLAS, which goes by columns, then
# has the long side first, and packs that one faster.


def _leave_row(
    rest: jax.Array,
    slots: jax.Array,
    done: jax.Array,
    top: jax.Array,
    columns: tuple[int, int],
    upper: bool,
) -> jax.Array:
    """``rest``, (k, T), the rows from ``top`` on, without what the rows ``done`` leave to it."""
    beside = _beside(slots, top, rest.shape[1], columns, upper)
    solved = done[:, :, slice(*columns)].reshape(-1, beside.shape[1])
    return rest - gemm(solved, adjoint(beside))


@_cpu_kernels.with_derivatives_of(_leave_row)
def _leave_row_by_kernel(
    rest: jax.Array,
    slots: jax.Array,
    done: jax.Array,
    top: jax.Array,
    columns: tuple[int, int],
    upper: bool,
) -> jax.Array:
    k, tile = rest.shape
    start, count = _range_beside(slots, top, tile, upper)
    return _cpu_kernels.subtract_products(
        Blocks(rest[:, None]),
        Blocks(done, (0, 0, start), step_l=(0, 1, 0)),
        Blocks(slots, (top, 0, start), step_l=(0, 1, 0)),
        Sizes(k, tile, count, count_l=slots.shape[1], adjoint_b=True),
    )[:, 0]


def _leave_rows(
    left_over: jax.Array,
    slots: jax.Array,
    own: jax.Array,
    top: jax.Array,
    columns: tuple[int, int],
    upper: bool,
) -> jax.Array:
    """``left_over``, (k, P, R), without what ``own``, (k, T), leaves to rows yet to be solved."""
    first, end = columns
    change = gemm(own, _beside(slots, top, own.shape[1], columns, upper))
    left = left_over[:, :, first:end] - change.reshape(*left_over.shape[:2], end - first)
    return _tiles.put(left_over, left, 0, 0, first)


@_cpu_kernels.with_derivatives_of(_leave_rows)
def _leave_rows_by_kernel(
    left_over: jax.Array,
    slots: jax.Array,
    own: jax.Array,
    top: jax.Array,
    columns: tuple[int, int],
    upper: bool,
) -> jax.Array:
    k, tile = own.shape
    start, count = _range_beside(slots, top, tile, upper)
    return _cpu_kernels.subtract_products(
        Blocks(left_over, (0, 0, start), step_i=(0, 1, 0)),
        Blocks(own[:, None]),
        Blocks(slots, (top, 0, start), step_i=(0, 1, 0)),
        Sizes(k, count, tile, count_i=slots.shape[1]),
    )


trsm_by_kernel = _cpu_kernels.with_derivatives_of(_tiles.trsm)(_cpu_kernels.trsm)
solve_right_by_kernel = _cpu_kernels.with_derivatives_of(_tiles.solve_right)(
    _cpu_kernels.solve_right
)


def right_solver(kernels: bool) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """`lockstep.linalg._tiles.solve_right`, or the kernel that does the same."""
    return solve_right_by_kernel if kernels else _tiles.solve_right


Solve = Callable[[jax.Array], jax.Array]
"""Solves (W, any number of columns) with the diagonal block or its adjoint."""


def block_solver(
    triangle: Triangle, block: jax.Array, kernels: bool, conjugate_transpose: bool = False
) -> Solve:
    """Solves with the diagonal block ``block`` of a triangle, or with its adjoint."""
    trsm = trsm_by_kernel if kernels else _tiles.trsm
    if not triangle.upper:
        return functools.partial(trsm, block, conjugate_transpose=conjugate_transpose)
    low = _tiles.unit_lower(block) if triangle.unit else adjoint(jnp.triu(block))
    return functools.partial(trsm, low, conjugate_transpose=not conjugate_transpose)


def _rows_to_sum(
    left_over: jax.Array, b: jax.Array, top: jax.Array, layout: RowMap, axes: Axes
) -> jax.Array:
    """This device's part of the rows of a superstep, (P, T, k); the sum is what is to be solved."""
    rest = lax.dynamic_slice_in_dim(left_over, top, layout.tile, 2).conj().transpose(1, 2, 0)
    return rest.at[lax.axis_index(axes)].add(lax.dynamic_slice_in_dim(b, top, layout.tile))


# What is left of one superstep's rows, solved with its diagonal block. Each device solves for all
# columns, or, where there are enough of them, for a part: the columns are dealt.


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
