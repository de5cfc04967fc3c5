"""The engine's table of algorithms for another network, as text of ``LOCKSTEP_ALGORITHMS``. Pure.

The engine's own limits are constants, because the algorithm decides about the bits of a sum and
every run has to take the same. On a network with other costs (`algorithms.fit`) other algorithms
may be faster; the user can prescribe them, up to a number of bytes that each device puts in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep._words import UNITS
from lockstep.inspection import algorithms
from lockstep.inspection.algorithms import Link

OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
"""Those for which there is more than one algorithm."""
SIZES = tuple(1 << power for power in range(10, 29))
"""That a host puts in: 1 KiB to 256 MiB."""
MIN_GAIN = 1.25
"""Another algorithm has to be so many times as fast as the engine's own choice. In the median the
model is off by about this factor (docs/design/between-hosts.md), so a smaller gain may be none."""


@dataclass(frozen=True)
class Row:
    """The algorithm for a range of sizes: those above the row before."""

    op: str
    algorithm: str
    up_to: int | None
    """Bytes that each device puts in; None: all larger sizes."""
    gain: float
    """How many times as fast as the engine's own choice, where it gains most; 1: it is that."""


def host_bytes(op: str, size: int, ranks: int) -> int:
    """What a host of ``ranks`` devices puts in, each of which has ``size`` bytes: of a sum, it adds
    them up first."""
    return size * ranks if op in ("all-gather", "all-to-all") else size


def table(hosts: int, ranks: int, link: Link, least_gain: float = MIN_GAIN) -> list[Row]:
    """The algorithms for hosts of ``ranks`` devices each: those that take least by the model, or
    the engine's own where they are not ``least_gain`` times as fast."""
    return [row for op in OPS for row in _rows(op, hosts, ranks, link, least_gain)]


def _rows(op: str, hosts: int, ranks: int, link: Link, least_gain: float) -> list[Row]:
    rows: list[Row] = []
    share = host_bytes(op, 1, ranks)
    for size in SIZES:
        name, gain = _choice(op, hosts, size, link)
        if gain < least_gain:
            name, gain = algorithms.choose(op, hosts, size), 1.0
        if rows and rows[-1].algorithm == name:
            rows[-1] = replace(rows[-1], up_to=size // share, gain=max(gain, rows[-1].gain))
        else:
            rows.append(Row(op, name, size // share, gain))
    rows[-1] = replace(rows[-1], up_to=None)
    return rows


def _choice(op: str, hosts: int, size: int, link: Link) -> tuple[str, float]:
    """The algorithm that takes least by the model, and how many times as fast as the engine's own
    choice it is."""
    name, least = algorithms.best(op, hosts, size, link)
    return name, link.seconds(algorithms.counts(op, hosts, size)) / least


def prescribed(rows: Sequence[Row]) -> list[Row]:
    """The rows that ``LOCKSTEP_ALGORITHMS`` has to name: those that differ from the engine's own
    choice, and those of smaller sizes, because the first entry that fits is taken."""
    found = []
    for op in OPS:
        mine = [row for row in rows if row.op == op]
        count = max((index for index, row in enumerate(mine, 1) if row.gain > 1), default=0)
        found += mine[:count]
    return found


def text(rows: Sequence[Row]) -> str:
    """The value of ``LOCKSTEP_ALGORITHMS``; "": the engine's own choice is that of ``rows``."""
    entries = (
        f"{row.op}={row.algorithm}" + (f":{_size(row.up_to)}" if row.up_to is not None else "")
        for row in prescribed(rows)
    )
    return ",".join(entries)


def _size(size: int) -> str:
    """A whole number of bytes, in the largest unit that has no fraction."""
    unit, factor = max(
        (item for item in UNITS.items() if size % item[1] == 0), key=lambda item: item[1]
    )
    return f"{size // factor}{'' if unit == 'B' else unit}"
