"""Householder QR of a matrix whose rows are spread over the devices, by panels of columns.

Blocked as LAPACK's geqrf and ormqr (Bischof and Van Loan, "The WY representation for products of
Householder matrices", 1987), over the slots of `_layout`. A QR factorization is the same for any
order of the rows, up to that order in ``q``. So the triangle of panel ``s``, which has ``W = P T``
columns, goes to tile ``s`` of every device, and all have the same number of rows left after it: a
matrix that is sharded by rows is not redistributed. `_panel` factors a panel. Then each panel costs
one all-reduce of ``W`` rows of the columns to its right, as does each panel when the reflectors are
applied.

Everything here runs inside `jax.shard_map`. A device holds its local rows, (R, n).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from lockstep.linalg import _cpu_kernels, _grid_model, _panel, _sweeps
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._layout import Axes, Grid, RowMap
from lockstep.linalg._spread import Spread, flat
from lockstep.linalg._sweeps import gather_rows
from lockstep.linalg._tiles import adjoint, gemm, packed, put, unpacked

MAX_PARTS = 8
"""Parts at most in which a panel's reflectors are applied: a product is then an eighth as large as
what it changes. A kernel makes no such product."""

MIN_PART = 256
"""Columns at least of such a part, for fast products and few collectives."""

GROUPS = 4
"""Groups of panels at most that `triangle` compiles a loop for."""


@dataclasses.dataclass(frozen=True)
class Panels:
    """How ``count`` columns are eliminated from a matrix whose rows have ``layout``.

    The layout has no padding, or it is cyclic with tiles of ``tile`` rows; every device has at
    least one tile for each panel.
    """

    layout: RowMap
    count: int
    tile: int
    grid: Grid | None = None
    """The grid over which the columns right of a panel are spread; None: the line."""
    kernels: bool = False
    """Whether the engine's kernels do what plain JAX would."""

    def on_best_grid(self, columns: int, platform: str) -> Panels:
        """The same on the grid that the cost model finds faster, for so many columns in all."""
        if self.steps < 2:
            return self
        size = self.layout.n, columns
        grid = _grid_model.qr_grid(*size, self.steps, self.layout.devices, platform)
        return dataclasses.replace(self, grid=grid)

    @property
    def width(self) -> int:
        return self.tile * self.layout.devices

    @property
    def steps(self) -> int:
        return -(-self.count // self.width)

    def columns(self, s: int) -> tuple[int, int]:
        """(first, end) of the columns of panel ``s``."""
        return s * self.width, min((s + 1) * self.width, self.count)

    @property
    def triangle(self) -> RowMap:
        """The layout of the rows of the triangular factor, which is ``count`` rows high."""
        return RowMap.cyclic(self.count, self.layout.devices, self.tile)

    @functools.cached_property
    def place(self) -> NDArray[np.int32]:
        """Shape (P, R): the place of each slot in the order of elimination; padding is last."""
        layout, tiles = self.layout, -(-self.layout.rows // self.tile)
        local = np.arange(layout.rows)
        step, within = np.divmod(local, self.tile)
        device = np.arange(layout.devices)[:, None]
        key = (step * layout.devices + device) * self.tile + within
        key = key + np.where(layout.row_of_slot < layout.n, 0, tiles * self.width)
        place = np.empty(key.size, np.int32)
        place[np.argsort(key.ravel(), kind="stable")] = np.arange(key.size)
        return place.reshape(key.shape)

    def mine(self, axes: Axes) -> jax.Array:
        """`place` of the local rows, (R,)."""
        return jnp.asarray(self.place)[lax.axis_index(axes)]


class Factored(NamedTuple):
    """``a = q r``: ``q`` is the product of unitary ``I - y t y^H``, one a panel, and of phases.

    The diagonal of ``r`` is not negative.
    """

    triangle: jax.Array
    """The local rows of ``r``, (steps T, n), in the layout `Panels.triangle`."""
    y: tuple[jax.Array, ...]
    """The local rows from the panel's own tile on, (R - s T, w)."""
    t_and_u: tuple[jax.Array, ...]
    """(w + 1, w): ``t`` and the adjoint of ``u`` of `_panel.reflectors`, packed; on all devices."""
    phases: jax.Array
    """(R,): factors of modulus 1 of the local rows, or of the columns with their places."""


def factor(rows: jax.Array, panels: Panels, axes: Axes) -> Factored:
    """The factorization of the local ``rows`` (R, n) by the first ``panels.count`` columns."""
    blocks, ys, small, phases = [], [], [], []
    rest = Spread(panels.grid, axes).take(rows)
    for s in range(panels.steps):
        first, end = panels.columns(s)
        done = _eliminate(rest, s, (s, s + 1), end - first, panels, axes)
        rest = done.rest
        blocks.append(done.block)
        phases.append(done.signs)
        ys.append(done.y)
        small.append(packed(adjoint(done.u), done.t))
    phase = jnp.concatenate(phases)
    found, phase = _collect(rest, blocks, phase, rows.shape[1], panels, axes)
    return Factored(found, tuple(ys), tuple(small), phase)


def triangle(rows: jax.Array, panels: Panels, axes: Axes) -> jax.Array:
    """`Factored.triangle` alone, by a program that compiles faster than `factor`'s.

    A loop goes over a group of panels. XLA compiles its body once, for rows from the group's first
    tile on: a group of four computes with up to three tiles of zeros.
    """
    rest, width, tile = Spread(panels.grid, axes).take(rows), panels.width, panels.tile
    blocks = jnp.zeros((panels.steps, tile, width), rows.dtype)
    phase = jnp.zeros(panels.steps * width, rows.dtype)
    whole = panels.count // width
    narrow = [(s, s + 1) for s in range(whole, panels.steps)]
    for group in [*_sweeps.stages(whole, GROUPS), *narrow]:

        def step(
            s: int | jax.Array,
            state: tuple[jax.Array, ...],
            group: tuple[int, int] = group,
            columns: int = min(width, panels.count - group[0] * width),
        ) -> tuple[jax.Array, ...]:
            rest, blocks, phase = state
            done = _eliminate(rest, s, group, columns, panels, axes)
            blocks = lax.dynamic_update_slice(blocks, done.block[None], (s, 0, 0))
            return done.rest, blocks, lax.dynamic_update_slice(phase, done.signs, (s * width,))

        state = rest, blocks, phase
        alone = group[1] == group[0] + 1
        rest, blocks, phase = step(group[0], state) if alone else lax.fori_loop(*group, step, state)
    some = [block[:, : min(width, panels.count - s * width)] for s, block in enumerate(blocks)]
    return _collect(rest, some, phase[: panels.count], rows.shape[1], panels, axes)[0]


class Eliminated(NamedTuple):
    """What the elimination of the ``w`` columns of a panel gives."""

    rest: jax.Array
    """(c, R, k): the matrix over the grid, whose columns right of the panel are reflected."""
    block: jax.Array
    """(T, w): local rows of the panel's triangle."""
    signs: jax.Array
    """(w,)"""
    y: jax.Array
    u: jax.Array
    t: jax.Array


def _eliminate(
    rest: jax.Array,
    s: int | jax.Array,
    group: tuple[int, int],
    width: int,
    panels: Panels,
    axes: Axes,
) -> Eliminated:
    """Panel ``s``, ``width`` columns wide, of a group of panels (first, end).

    ``rest`` is read from the first tile of the group on.
    """
    devices, tile, spread = panels.layout.devices, panels.tile, Spread(panels.grid, axes)
    top, above = group[0] * tile, (s - group[0]) * tile
    begin, mine = s * panels.width // spread.columns, -(-width // spread.columns)
    height = rest.shape[1] - top
    panel = lax.dynamic_slice(rest, (0, top, begin), (spread.columns, height, mine))
    panel = spread.give(panel, width)
    spare = (group[1] - 1 - group[0]) * tile
    if spare:  # rows above the panel count as padding
        panel = jnp.where(jnp.arange(height)[:, None] < above, 0, panel)
        panel = jnp.roll(panel, -above, axis=0)
    basis = _panel.basis(panel, axes, devices, tile, spare, panels.kernels)
    solve_right = _sweeps.right_solver(panels.kernels)
    first = solve_right(gather_rows(basis.x[:tile], axes)[:width], basis.low)
    y1, u, t, signs = _panel.reflectors(first, panels.kernels)
    # y = q u^-1, without q.
    y = solve_right(basis.x, gemm(basis.low, adjoint(u)))
    y = _put_in_tile(y1, y, tile, axes)
    y = jnp.roll(y, above, axis=0) if spare else y
    tall = flat(spread.gather(y))
    rest = _reflect(rest, tall, adjoint(t), top, begin + mine, panels, spread)
    return Eliminated(
        rest, rows_of_triangle(signs[:, None] * basis.r, panels, axes), signs, y, u, t
    )


def _collect(
    rest: jax.Array,
    blocks: list[jax.Array],
    phase: jax.Array,
    columns: int,
    panels: Panels,
    axes: Axes,
) -> tuple[jax.Array, jax.Array]:
    """`Factored.triangle` and `Factored.phases`."""
    mine, tile, one = panels.mine(axes), panels.tile, jnp.ones(1, phase.dtype)
    phase = jnp.take(jnp.concatenate([phase, one]), mine, mode="clip")
    found = Spread(panels.grid, axes).give(rest[:, : panels.steps * tile], columns)
    for s, block in enumerate(blocks):
        found = put(found, block, s * tile, panels.columns(s)[0])
    height = found.shape[0]
    # Left of the diagonal blocks, and in rows beyond the last, is what is left of the matrix.
    left = np.arange(columns) < np.arange(height)[:, None] // tile * panels.width
    found = jnp.where((mine[:height, None] < panels.count) & ~left, found, 0)
    return phase[:height, None].conj() * found, phase


def _reflect(
    b: jax.Array,
    tall: jax.Array,
    t: jax.Array,
    top: int,
    first: int | jax.Array,
    panels: Panels,
    spread: Spread,
) -> jax.Array:
    """``b - y t y^H b`` in the rows from ``top`` and the columns from ``first`` on.

    ``b`` is (c, R, k) and ``tall``, ``y`` over the grid, is (c (R - top), w). A part of the columns
    at a time is changed in place, so that no second matrix is held.
    """
    devices, rows, end = b.shape
    if isinstance(first, int):
        parts = max(1, min(MAX_PARTS, (end - first) // MIN_PART))
        if panels.kernels:  # the products, which are w rows high, are an eighth of a share
            most = devices * rows * end / 8
            parts = min(parts, math.ceil(tall.shape[1] * (end - first) / most) or 1)
        width = -(-(end - first) // parts)
    else:  # the sizes of arrays do not depend on it
        width = -(-end // max(1, min(2 * MAX_PARTS, end // MIN_PART)))
        parts = -(-(end - first) // width)
    if not width:
        return b
    products = _adjoint_times_by_kernel if panels.kernels else _adjoint_times
    subtract = _subtract_by_kernel if panels.kernels else _subtract
    tall = tall.reshape(devices, rows - top, -1)

    def step(k: jax.Array, b: jax.Array) -> jax.Array:
        begin = first + k * width
        at = jnp.minimum(begin, end - width)
        # The last part begins with columns of the one before, which are done.
        fresh = at + jnp.arange(width) >= begin
        z = jnp.where(fresh, spread.sum(products(tall, b, at, top=top, width=width)), 0)
        return subtract(b, tall, t, z, at, top=top)

    return lax.fori_loop(0, parts, step, b)


def _part(b: jax.Array, at: jax.Array, top: int, width: int) -> jax.Array:
    """The rows from ``top`` on of so many columns of ``b`` (c, R, k): (c (R - top), width)."""
    devices, rows, _ = b.shape
    return flat(lax.dynamic_slice(b, (0, top, at), (devices, rows - top, width)))


def _adjoint_times(tall: jax.Array, b: jax.Array, at: jax.Array, top: int, width: int) -> jax.Array:
    """``tall^H`` (c, R - top, w) times a part of ``b``: (w, width)."""
    return gemm(adjoint(flat(tall)), _part(b, at, top, width))


def _subtract(
    b: jax.Array, tall: jax.Array, t: jax.Array, z: jax.Array, at: jax.Array, top: int
) -> jax.Array:
    """``b`` with a part of it, as wide as ``z`` (w, width), less ``tall t z``."""
    part = _part(b, at, top, z.shape[1]) - gemm(flat(tall), gemm(t, z))
    return lax.dynamic_update_slice(b, part.reshape(*tall.shape[:2], -1), (0, top, at))


@_cpu_kernels.with_derivatives_of(_adjoint_times)
def _adjoint_times_by_kernel(
    tall: jax.Array, b: jax.Array, at: jax.Array, top: int, width: int
) -> jax.Array:
    devices, height, inner = tall.shape
    return _cpu_kernels.sum_of_products(
        Blocks(tall, row_axis=1, step_l=(1, 0, 0)),
        Blocks(b, (0, top, at), row_axis=1, step_l=(1, 0, 0)),
        Sizes(inner, width, height, count_l=devices, adjoint_a=True),
    )


_subtract_by_kernel = _cpu_kernels.with_derivatives_of(_subtract)(_cpu_kernels.reflect)


def rows_of_triangle(r: jax.Array, panels: Panels, axes: Axes) -> jax.Array:
    """The local rows of the triangle of a single panel, ``r`` (w, w), which all devices have."""
    return _put_in_tile(r, jnp.zeros((panels.tile, r.shape[1]), r.dtype), panels.tile, axes)


def _put_in_tile(block: jax.Array, rows: jax.Array, tile: int, axes: Axes) -> jax.Array:
    """``rows`` with those of ``block``, (w, n), in the first w places of the first tiles."""
    spare = tile * lax.axis_size(axes) - block.shape[0]
    start = lax.axis_index(axes) * tile
    mine = lax.dynamic_slice_in_dim(jnp.pad(block, ((0, spare), (0, 0))), start, tile)
    is_in = (start + jnp.arange(tile) < block.shape[0])[:, None]
    return jnp.concatenate([jnp.where(is_in, mine, rows[:tile]), rows[tile:]])


def apply_adjoint(factored: Factored, b: jax.Array, panels: Panels, axes: Axes) -> jax.Array:
    """``q^H b`` for local rows ``b`` (R, k)."""
    line, b = Spread(None, axes), b[None]
    for s, (y, small) in enumerate(zip(factored.y, factored.t_and_u, strict=True)):
        t = adjoint(unpacked(small)[1])
        b = _reflect(b, y, t, s * panels.tile, 0, panels, line)
    return factored.phases[:, None].conj() * b[0]


def apply(factored: Factored, b: jax.Array, panels: Panels, axes: Axes) -> jax.Array:
    """``q b`` for local rows ``b`` (R, k)."""
    line, b = Spread(None, axes), (factored.phases[:, None] * b)[None]
    for s in reversed(range(panels.steps)):
        _, t = unpacked(factored.t_and_u[s])
        b = _reflect(b, factored.y[s], t, s * panels.tile, 0, panels, line)
    return b[0]


def columns_of_q(factored: Factored, panels: Panels, count: int, axes: Axes) -> jax.Array:
    """The first ``count`` columns of ``q``: local rows (R, count). ``count`` is at least that of r.

    Backward: a panel then changes only the columns from its own on (LAPACK's orgqr).
    """
    tile, mine, spread = panels.tile, panels.mine(axes), Spread(panels.grid, axes)

    def unit(s: int, first: int, end: int) -> jax.Array:
        here = mine[s * tile :, None] == jnp.arange(first, end)
        return spread.take(jnp.where(here, factored.phases[s * tile :, None], 0))

    q = jnp.zeros((spread.columns, len(mine), -(-count // spread.columns)), factored.phases.dtype)
    # Columns beyond the last panel's are unit vectors in the order of elimination.
    if count > panels.count:
        last = panels.steps - 1
        q = put(q, unit(last, panels.count, count), 0, last * tile, panels.count // spread.columns)
    for s in reversed(range(panels.steps)):
        first, end = panels.columns(s)
        y, top, begin = factored.y[s], s * tile, first // spread.columns
        u, t = unpacked(factored.t_and_u[s])
        # Were this the same operation as in `factor`, XLA would keep all that it gathered there: as
        # many shares as the grid has columns.
        tall = flat(adjoint(spread.gather(adjoint(y))))
        here = unit(s, first, end)
        q = _reflect(q, tall, t, top, begin + here.shape[2], panels, spread)
        # The panel's unit vectors have phases: reflected, they lose y t y1^H phases = -y u.
        subtract = _subtract_by_kernel if panels.kernels else _subtract
        q, some = put(q, here, 0, top, begin), spread.own_columns(adjoint(u))
        one, at = -jnp.eye(len(some), dtype=q.dtype), jnp.asarray(begin)
        q = subtract(q, tall.reshape(*here.shape[:2], -1), one, some, at, top=top)
    return spread.give(q, count)
