"""The part of the cost model that chooses grids of devices. Pure: sizes in, seconds out."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from lockstep.linalg import _cost_model, _lu_grid, _tournament
from lockstep.linalg._cost_model import Machine
from lockstep.linalg._layout import Grid

GRID_GAIN = 0.9
"""A grid is chosen where the model finds that it takes this part of the line's time, or less: it
needs a share of memory more."""


class GridShape(NamedTuple):
    """A grid of devices, and how a factorization goes over it."""

    rows: int
    columns: int
    panel: int
    """Local rows of a panel."""


class Model(NamedTuple):
    """What a factorization takes."""

    seconds: Callable[[int, GridShape, Machine], float]
    numbers: Callable[[int, int, int, int], float]
    """What a device sends, for ``n``, the rows and columns of a grid, and panels."""


def cholesky_grid_seconds(n: int, grid: GridShape, machine: Machine, item: int = 8) -> float:
    """The expected time of `lockstep.linalg._cholesky_grid.factor`.

    The factor is held twice: that is a share of memory which a line of devices does not need, and
    it costs what padding does.
    """
    r, c, devices = grid.rows, grid.columns, grid.rows * grid.columns
    width = devices * grid.panel
    steps = math.ceil(n / width)
    padded = steps * width
    products = padded**3 / 3 / devices / machine.gemm * (1 + machine.gemm_half / width)
    blocks = steps * width**3 / 3 / machine.small
    sent = cholesky_grid_numbers(padded, r, c, steps) * item / machine.link
    copied = padded**2 / devices * item / machine.padding
    return products + blocks + 4 * steps * machine.latency + sent + copied


def cholesky_grid_numbers(n: int, rows: int, columns: int, steps: int) -> float:
    """The numbers that a device sends on a grid, for ``steps`` panels of many supersteps."""
    devices = rows * columns
    gathered = (1 - 1 / rows) / columns
    summed = (1 - 1 / columns) / rows
    moved = (1 - 1 / columns) / devices
    blocks = (1 - 1 / devices) / steps
    return n**2 / 2 * ((gathered + summed + moved) * (1 - 1 / steps) + blocks)


def cholesky_grid(
    n: int, devices: int, line_tile: int, tile: int | None, platform: str
) -> GridShape | None:
    """The grid with which a factorization takes less time than on the line; None: there is none.

    ``line_tile`` is that of the line; a ``tile`` that the caller wants is that of both.
    """
    on = _cost_model.machine(platform)
    best = best_grid(n, devices, line_tile, tile, on, CHOLESKY)
    line = _cost_model.cholesky_seconds(n, devices, line_tile, on)
    return best if best and cholesky_grid_seconds(n, best, on) < GRID_GAIN * line else None


def best_grid(
    n: int,
    devices: int,
    line_tile: int,
    tile: int | None,
    on: Machine,
    model: Model,
) -> GridShape | None:
    """The fastest of the grids with more than one row and column, if there are any.

    Rows and products of a panel are a quarter of a share each, at most, as in `cholesky_tile`.
    """
    rows = -(-n // devices)
    panels = [line_tile] if tile else [*_cost_model.tiles_of(devices, rows), rows]
    shapes = []
    for r in range(2, devices // 2 + 1):
        if devices % r == 0:
            most = n // (4 * max(r, devices // r) * devices)
            fitting = [p for p in panels if p <= most or n * n // devices < _cost_model.LARGE]
            shapes += [GridShape(r, devices // r, p) for p in fitting or panels[:1]]
    return min(shapes, key=lambda shape: model.seconds(n, shape, on), default=None)


def lu_grid(
    n: int, devices: int, line_tile: int, tile: int | None, platform: str
) -> GridShape | None:
    """`cholesky_grid` for LU. A panel is one superstep, because its rows play a tournament."""
    on = _cost_model.machine(platform)
    best = best_grid(n, devices, line_tile, tile, on, LU)
    by_tournament = _cost_model.lu_by_tournament(n, devices, line_tile)
    line = _cost_model.lu_seconds(n, devices, line_tile, on, by_tournament)
    return best if best and lu_grid_seconds(n, best, on) < GRID_GAIN * line else None


def lu_grid_seconds(n: int, grid: GridShape, machine: Machine, item: int = 8) -> float:
    """The expected time of `lockstep.linalg._lu_grid.factor`."""
    r, c, devices = grid.rows, grid.columns, grid.rows * grid.columns
    width = devices * grid.panel
    steps, inner = math.ceil(n / width), _tournament.inner_rows(width)
    padded, rounds = steps * width, math.log2(devices)
    products = 2 * padded**3 / 3 / devices + (inner < width) * padded**2 * width / devices
    products *= (1 + machine.gemm_half / min(width, 4 * inner)) / machine.gemm
    panels = (padded**2 * inner / devices + 2 * padded * inner**2 * rounds) / machine.panel
    messages = 12 * steps + padded / inner * (2 * rounds + 3)
    sent = lu_grid_numbers(padded, r, c, steps) * item / machine.link
    copied = padded**2 / devices * item / machine.padding
    return products + panels + messages * machine.latency + sent + copied


def lu_grid_numbers(n: int, rows: int, columns: int, steps: int) -> float:
    """The numbers that a device sends, where columns move as for random matrices: one round."""
    devices, width = rows * columns, n / steps
    along_row, along_column = 1 - 1 / columns, 1 - 1 / rows
    half = n**2 / 2 * (1 - 1 / steps)
    gathered = half * (along_row / rows + along_column / columns)
    winners, others = _lu_grid.batches(round(width), columns)
    moved = half * along_row / rows * (winners + others * columns) / width
    panels = half / devices * (2 * along_column + 1)
    inner = _tournament.inner_rows(round(width))
    pivots = n * inner * math.log2(devices)
    if inner < width:
        pivots += n * width * (1 + _tournament.batch_of(inner, devices) / inner) * (1 - 1 / devices)
    return gathered + moved + panels + pivots + n**2 / devices * along_row


CHOLESKY = Model(cholesky_grid_seconds, cholesky_grid_numbers)
LU = Model(lu_grid_seconds, lu_grid_numbers)


def back_transformation_grid(n: int, wanted: int, devices: int, platform: str) -> Grid | None:
    """The grid with which `lockstep.linalg._back_transformation.apply` takes less time than on the
    line, for ``wanted`` eigenvectors."""
    flops = 4 * n**2 * wanted / devices
    numbers = functools.partial(back_numbers, n, wanted)
    return _products_grid(flops, numbers, devices, platform)


def qr_grid(m: int, n: int, steps: int, devices: int, platform: str) -> Grid | None:
    """The same for a QR factorization by ``steps`` panels, and the columns of its ``q``."""
    count = min(m, n)
    flops = 2 * count * (m * n + m * count - count**2) / devices

    def numbers(rows: int, columns: int) -> float:
        # Panels are spread evenly over the columns of the grid.
        return math.inf if count % columns else qr_numbers(m, n, steps, rows, columns)

    return _products_grid(flops, numbers, devices, platform)


def _products_grid(
    flops: float, numbers: Callable[[int, int], float], devices: int, platform: str
) -> Grid | None:
    """The grid on which a device that makes these products sends the least, if it saves time."""
    on = _cost_model.machine(platform)

    def seconds(rows: int, columns: int) -> float:
        return flops / on.gemm + numbers(rows, columns) * 8 / on.link

    splits = [r for r in range(2, devices // 2 + 1) if devices % r == 0]
    rows = min(splits, key=lambda r: seconds(r, devices // r), default=devices)
    if seconds(rows, devices // rows) < GRID_GAIN * seconds(devices, 1):
        return Grid(rows, devices // rows, 1)
    return None


def back_numbers(n: int, wanted: int, rows: int, columns: int) -> float:
    """The numbers that a device sends, but for the products of reflectors with each other. The
    line is a grid of one column."""
    along_row, along_column = 1 - 1 / columns, 1 - 1 / rows
    gathered = n**2 / rows * along_row
    summed = 2 * n * wanted / columns * along_column
    moved = 2 * n * wanted / (rows * columns) * along_row
    return gathered + summed + moved


def qr_numbers(m: int, n: int, steps: int, rows: int, columns: int) -> float:
    """The numbers that a device sends for ``q`` and ``r``; the line is a grid of one column."""
    devices, count = rows * columns, min(m, n)
    along_row, along_column = 1 - 1 / columns, 1 - 1 / rows
    tall = m * count - count**2 * (1 - 1 / steps) / 2
    below = n * count - count**2 * (1 + 1 / steps) / 2
    left = count**2 * (1 - 1 / steps) / 2
    gathered = 2 * tall / rows * along_row
    summed = 2 * (below + left) / columns * along_column
    moved = (2 * tall + count * n + m * n + m * count) / devices * along_row
    panels = (3 * count**2 / steps + 2 * count) * (1 - 1 / devices)
    return gathered + summed + moved + panels
