"""Solutions with a triangle for many right-hand sides, whose columns are dealt to the devices.

A sweep (`lockstep.linalg._sweeps`) leaves each right-hand side in rows, so all devices wait for
each other at every superstep, and each gets all rows of the solution. With about as many columns
as rows, it is faster to give each device all rows of its own columns. Then it needs the triangle,
which is gathered a panel at a time (``n^2 / 2`` numbers), and solves without another exchange.

The triangle is lower, and a panel its columns of one superstep, or upper, and a panel its rows: in
either case what is at and after the diagonal block. With a panel, a forward substitution leaves
what is solved to all rows after it; a backward one sums what those leave to the panel's rows.

Everything here runs inside `jax.shard_map`. A triangle is (R, P, R) as in `_layout`, and columns
``x`` are (P, R, c): the rows of all devices' slots.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels, _sweeps, _tiles
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._sweeps import Triangle
from lockstep.linalg._tiles import adjoint


def pays(columns: int, layout: RowMap) -> bool:
    """Whether there are enough columns for it."""
    return layout.devices > 1 and 2 * columns >= layout.padded


def to_columns(b: jax.Array, axes: Axes, devices: int) -> jax.Array:
    """All rows, (P, R, c), of the columns dealt to this device, from its own rows (R, k)."""
    each = -(-b.shape[1] // devices)
    wide = jnp.pad(b, ((0, 0), (0, each * devices - b.shape[1])))
    return lax.all_to_all(wide.reshape(b.shape[0], devices, each), axes, 1, 0)


def to_rows(x: jax.Array, axes: Axes, width: int) -> jax.Array:
    """The inverse of `to_columns`, for ``width`` columns."""
    return lax.all_to_all(x, axes, 0, 1).reshape(x.shape[1], -1)[:, :width]


def solve(
    triangle: Triangle,
    b: jax.Array,
    layout: RowMap,
    axes: Axes,
    kernels: bool,
    conjugate_transpose: bool = False,
) -> jax.Array:
    """``t^-1 b`` or ``t^-H b`` for own rows ``b``, (R, k), by a sweep where that is faster."""
    if not pays(b.shape[1], layout):
        return _sweeps.solve(triangle, b, layout, axes, kernels, conjugate_transpose)
    x = to_columns(b, axes, layout.devices)
    x = solve_columns(triangle, x, layout, axes, kernels, conjugate_transpose)
    return to_rows(x, axes, b.shape[1])


def solve_columns(
    triangle: Triangle,
    x: jax.Array,
    layout: RowMap,
    axes: Axes,
    kernels: bool,
    conjugate_transpose: bool = False,
    lower: bool = False,
) -> jax.Array:
    """``t^-1 x`` or ``t^-H x`` for own columns ``x``, (P, R, c).

    ``lower``, for a forward substitution: ``x`` are columns of slots, (P, R, R), zero above the
    diagonal, so that a stage takes only those which begin before its end.
    """
    tile, forward = layout.tile, triangle.upper == conjugate_transpose
    leave, upper = _leave_by_kernel if kernels else _leave, triangle.upper
    ranges = _sweeps.stages(layout.steps)  # a panel is gathered as long as its stage needs it
    for first, end in ranges if forward else reversed(ranges):

        def step(k: jax.Array, x: jax.Array, first: int = first, end: int = end) -> jax.Array:
            top = (first + k if forward else end - 1 - k) * tile
            panel = _panel(triangle, top, first * tile, tile, axes)
            after = top + tile
            block = _block(panel, top - first * tile, tile, upper)
            solve_block = _sweeps.block_solver(triangle, block, kernels, conjugate_transpose)
            rest = lax.dynamic_slice_in_dim(x, top, tile, 1)
            if not forward:
                rest = left_to(rest, panel, x, after, kernels, upper)
            solved = solve_block(rest.reshape(-1, x.shape[2]))
            x = lax.dynamic_update_slice_in_dim(x, solved.reshape(rest.shape), top, 1)
            if not forward:
                return x
            return leave(x, panel, solved, after, upper=upper)

        if lower and end < layout.steps:
            some = lax.fori_loop(0, end - first, step, x[:, :, : end * tile])
            x = lax.dynamic_update_slice_in_dim(x, some, 0, 2)
        else:
            x = lax.fori_loop(0, end - first, step, x)
    return x


def congruence(
    low: jax.Array, half: jax.Array, layout: RowMap, axes: Axes, kernels: bool
) -> jax.Array:
    """``l^-1 (t + t^H) l^-H`` for slots of lower ``l`` and ``t``, the ``half``.

    It is the sum of ``l^-1 t l^-H`` and its adjoint. The first of the two solutions is lower
    triangular and takes a third of the work of the second one.
    """
    triangle = Triangle(low)
    x = lax.all_to_all(half, axes, 1, 0)
    x = solve_columns(triangle, x, layout, axes, kernels, lower=True)
    x = lax.all_to_all(x, axes, 0, 1).transpose(1, 2, 0).conj()
    x = solve_columns(triangle, x, layout, axes, kernels)
    return x.transpose(2, 0, 1).conj() + lax.all_to_all(x, axes, 0, 1)


def _panel(triangle: Triangle, top: jax.Array, first: int, tile: int, axes: Axes) -> jax.Array:
    """The panel of the superstep at the local row ``top``, from ``first`` on, of all devices:
    (P, H, W) of a lower triangle, (W, P, H) of an upper one."""
    slots = triangle.slots
    rows, devices, _ = slots.shape
    if triangle.upper:
        own = lax.dynamic_slice(slots, (top, 0, first), (tile, devices, rows - first))
        return lax.all_gather(own, axes, axis=0, tiled=True)
    own = lax.dynamic_slice(slots, (first, 0, top), (rows - first, devices, tile))
    return lax.all_gather(own.reshape(rows - first, -1), axes)


def _block(panel: jax.Array, at: jax.Array, tile: int, upper: bool) -> jax.Array:
    """The panel's diagonal block, (W, W)."""
    width = panel.shape[0] if upper else panel.shape[2]
    return lax.dynamic_slice_in_dim(panel, at, tile, 2 if upper else 1).reshape(width, width)


def _after(panel: jax.Array, rows: int, after: jax.Array, upper: bool) -> tuple[jax.Array, int]:
    """The panel as (P, H, W), with zeros before the local row ``after``, and its first one."""
    if upper:
        panel = panel.transpose(1, 2, 0)
    first = rows - panel.shape[1]
    # What is above the diagonal may be anything, so it is not multiplied by zero.
    return jnp.where(jnp.arange(first, rows)[:, None] >= after, panel, 0), first


def _leave(
    x: jax.Array, panel: jax.Array, solved: jax.Array, after: jax.Array, upper: bool
) -> jax.Array:
    """``x`` without what the rows ``solved``, (W, c), leave to the rows from ``after`` on."""
    below, first = _after(panel, x.shape[1], after, upper)
    below = below.conj() if upper else below

    # A device's rows at a time, so that products take no memory of the size of a share.
    def step(p: jax.Array, x: jax.Array) -> jax.Array:
        change = _tiles.gemm(below[p], solved)
        return lax.dynamic_update_slice(x, x[p, first:][None] - change, (p, first, 0))

    return lax.fori_loop(0, len(x), step, x)


@_cpu_kernels.with_derivatives_of(_leave)
def _leave_by_kernel(
    x: jax.Array, panel: jax.Array, solved: jax.Array, after: jax.Array, upper: bool
) -> jax.Array:
    devices, rows, columns = x.shape
    below = _blocks_after(panel, rows, after, upper)
    return _cpu_kernels.subtract_products(
        Blocks(x, (0, after, 0), row_axis=1, step_i=(1, 0, 0)),
        below._replace(step_i=(0, 1, 0) if upper else (1, 0, 0)),
        Blocks(solved[None], row_axis=1),
        Sizes(rows - after, columns, len(solved), count_i=devices, adjoint_a=upper),
    )


def left_to(
    rest: jax.Array, panel: jax.Array, x: jax.Array, after: jax.Array, kernels: bool, upper: bool
) -> jax.Array:
    """The panel's own rows ``rest``, (P, T, c), without what the rows from ``after`` on leave."""
    return (_left_to_by_kernel if kernels else _left_to)(rest, panel, x, after, upper=upper)


def _left_to(
    rest: jax.Array, panel: jax.Array, x: jax.Array, after: jax.Array, upper: bool
) -> jax.Array:
    below, first = _after(panel, x.shape[1], after, upper)
    left = below.swapaxes(1, 2) if upper else adjoint(below)

    def step(p: jax.Array, rest: jax.Array) -> jax.Array:
        return rest - _tiles.gemm(left[p], x[p, first:]).reshape(rest.shape)

    return lax.fori_loop(0, len(x), step, rest)


@_cpu_kernels.with_derivatives_of(_left_to)
def _left_to_by_kernel(
    rest: jax.Array, panel: jax.Array, x: jax.Array, after: jax.Array, upper: bool
) -> jax.Array:
    devices, rows, columns = x.shape
    width = rest.shape[0] * rest.shape[1]
    right = _blocks_after(panel, rows, after, upper)
    return _cpu_kernels.subtract_products(
        Blocks(rest.reshape(1, width, columns), row_axis=1),
        right._replace(step_l=(0, 1, 0) if upper else (1, 0, 0)),
        Blocks(x, (0, after, 0), row_axis=1, step_l=(1, 0, 0)),
        Sizes(width, columns, rows - after, count_l=devices, adjoint_a=not upper),
    ).reshape(rest.shape)


def _blocks_after(panel: jax.Array, rows: int, after: jax.Array, upper: bool) -> Blocks:
    """The panel's blocks of the devices, from the local row ``after`` on."""
    at = after - rows + panel.shape[2 if upper else 1]
    return Blocks(panel, (0, 0, at)) if upper else Blocks(panel, (0, at, 0), row_axis=1)
