"""The cost model that chooses tile sizes. Pure, but for the user's `LOCKSTEP_LINALG_LINK`: sizes
in, seconds out.

All processes must compile the same programs, so nothing is measured here. What a collective costs
is one constant for each platform, or what the user has measured by ``lockstep bench`` and set for
all processes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from lockstep import _config

MAX_STEPS = 64
"""Supersteps of one factorization: each is compiled by itself, so this bounds compile time."""

LARGE = 1 << 22
"""From this many elements of a device's share on, memory is limited too, not only time."""

MIN_WIDTH = 64
"""Columns of a panel, at least, where a tile has fewer than 8 rows: for many devices."""

TILES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclasses.dataclass(frozen=True)
class Machine:
    """One device and its link to the others. Rates are of f64."""

    gemm: float
    """flops per second of a large product."""
    gemm_half: float
    """Columns of a panel with which a product reaches half of that."""
    small: float
    """flops per second where one block is factored by itself. Low on CPUs: it stands for whatever
    else grows with a block, such as temporaries."""
    panel: float
    """flops per second of LU with pivoting on a panel, which is long and narrow."""
    latency: float
    """Seconds of a small collective."""
    link: float
    """Bytes per second that a device gathers."""
    padding: float
    """Bytes per second of a matrix that is copied, for its rows are padded to whole tiles."""


CPU = Machine(
    gemm=47e9, gemm_half=28, small=5e9, panel=20e9, latency=50e-6, link=4e9, padding=0.7e9
)
GPU = Machine(
    gemm=30e12, gemm_half=256, small=200e9, panel=500e9, latency=30e-6, link=150e9, padding=500e9
)


def machine(platform: str) -> Machine:
    constants, link = (CPU if platform == "cpu" else GPU), _config.current().linalg_link
    if link is None:
        return constants
    return dataclasses.replace(constants, latency=link.latency, link=link.rate)


def cholesky_seconds(n: int, devices: int, tile: int, machine: Machine, item: int = 8) -> float:
    """The expected time of `lockstep.linalg.cholesky` for ``n`` rows, ``item`` bytes an element."""
    width = devices * tile
    steps = math.ceil(n / width)
    padded = steps * width
    products = padded**3 / 3 / devices / machine.gemm * (1 + machine.gemm_half / width)
    blocks = steps * width**3 / 3 / machine.small
    sent = cholesky_line_numbers(padded, devices, steps) * item / machine.link
    return products + blocks + 2 * steps * machine.latency + sent


def cholesky_line_numbers(n: int, devices: int, steps: int) -> float:
    """The numbers that a device sends on a line: rows of the factor, and the diagonal blocks."""
    blocks = (1 - 1 / steps) / steps
    return n**2 * ((1 + 1 / steps) / 2 + blocks) * (1 - 1 / devices)


def lu_seconds(
    n: int, devices: int, tile: int, machine: Machine, tournament: bool, item: int = 8
) -> float:
    """The expected time of `lockstep.linalg.lu_factor` for ``n`` rows."""
    width = devices * tile
    steps = math.ceil(n / width)
    padded = steps * width
    products = 2 * padded**3 / 3 / devices / machine.gemm * (1 + machine.gemm_half / width)
    panels = panel_flops(padded, devices, tile, tournament) / machine.panel
    sent = lu_line_numbers(padded, devices, steps, tournament)
    messages = 2 + math.log2(devices) if tournament else 1
    seconds = products + panels + messages * steps * machine.latency
    return seconds + sent * item / machine.link


def lu_line_numbers(n: int, devices: int, steps: int, tournament: bool) -> float:
    """The numbers that a device sends on a line."""
    gathered = n**2 / 2 * (1 + tournament / devices)
    if tournament:
        gathered += n**2 / steps * math.log2(devices)
    return gathered * (1 - 1 / devices)


def panel_flops(n: int, devices: int, tile: int, tournament: bool) -> float:
    """What one device computes for the pivots of all panels."""
    width = devices * tile
    if not tournament:
        return n**2 * width / 2
    return n**2 * width / devices + n / width * 2 * width**3 * math.log2(devices)


def lu_by_tournament(n: int, devices: int, tile: int) -> bool:
    """Whether a tournament takes less than half of the flops of the panel on every device.

    Half, because devices of one process share the whole panel, and the tournament sends more.
    """
    if devices == 1:
        return False
    return 2 * panel_flops(n, devices, tile, True) < panel_flops(n, devices, tile, False)


def lu_tile(n: int, devices: int, rows: int, platform: str) -> int:
    """The tile that the model finds fastest for LU, under the limits of `cholesky_tile`."""
    if devices == 1:
        return rows
    on = machine(platform)

    def seconds(tile: int) -> float:
        by_tournament = lu_by_tournament(n, devices, tile)
        return lu_seconds(n, devices, tile, on, by_tournament)

    tiles = [t for t in tiles_of(devices, rows) if t >= 8]
    return _fastest(n, devices, tiles, rows, on, seconds)


def cholesky_tile(n: int, devices: int, rows: int, platform: str) -> int:
    """The tile that the model finds fastest, for ``rows`` local rows of each device.

    A panel's rows are gathered, ``devices**2 tile / n`` of a share. Where shares are large that is
    a quarter at most, if any tile keeps to it: a factor then needs less than half a share beside.
    """
    on = machine(platform)
    tiles = tiles_of(devices, rows)
    return _fastest(n, devices, tiles, rows, on, lambda t: cholesky_seconds(n, devices, t, on))


def _fastest(
    n: int,
    devices: int,
    tiles: list[int],
    rows: int,
    on: Machine,
    seconds: Callable[[int], float],
) -> int:
    fitting = [*tiles, rows]
    if n * n // devices >= LARGE:
        fitting = [t for t in fitting if 4 * devices**2 * t <= n] or fitting[:1]

    def with_padding(tile: int) -> float:
        return seconds(tile) + (n * n // devices * 8 / on.padding if rows % tile else 0)

    return min((even_tile(rows, t) for t in fitting), key=with_padding)


def tiles_of(devices: int, rows: int) -> list[int]:
    """The tiles to choose from, for so many local rows."""
    wide = [t for t in TILES if t >= 8 or t * devices >= MIN_WIDTH]
    return [t for t in wide if t < rows <= MAX_STEPS * t]


def even_tile(rows: int, tile: int) -> int:
    """The largest tile of at most ``tile`` that splits ``rows`` evenly, or nearly so.

    Never so small that there would be more than `MAX_STEPS` supersteps.
    """
    if rows <= 1:
        return 1
    steps = min(math.ceil(rows / tile), MAX_STEPS)
    return math.ceil(rows / steps)


def grid_tile(rows: int) -> int:
    """The tile of a grid: as small as `MAX_STEPS` allows, and without padding if it can be had.

    The smaller it is, the less do the way into the order of the rows and the sweeps send. A panel
    is as many supersteps as it needs.
    """
    least = even_tile(rows, 1)
    return next((t for t in range(least, 2 * least) if rows % t == 0), least)


PANELS = 16
"""Panels of a QR factorization, about: each is compiled by itself, for a second."""

MIN_PANEL, MAX_PANEL = 256, 512
"""Columns of a panel: wide enough for fast products, and narrow, because every device factors
blocks of that size by itself."""


def qr_tile(columns: int, devices: int) -> int:
    """The tile of a QR factorization of so many columns: a panel has a tile of every device."""
    width = min(max(columns // PANELS, MIN_PANEL), MAX_PANEL)
    return math.ceil(max(width, columns / MAX_STEPS) / devices)
