"""What the measurements between hosts say about the engine's choice of algorithms. Pure.

The costs of a message and of a byte are fitted to the medians of the first implementation; with
them `lockstep.inspection.algorithm_table` gives the fastest algorithm of each size.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.bench.cases import HLO_NAMES
from lockstep.bench.job import ENGINES
from lockstep.inspection import algorithm_table, algorithms
from lockstep.inspection.algorithms import Counts, Link

MIN_CASES = 6
"""The fit has four unknown costs."""
MAX_ERROR = 2.0
"""Most algorithms of one operation differ by less than this, so a worse model cannot tell them
apart."""

Points = Sequence[tuple[Counts, float]]
"""What the engine does for a case, and its measured seconds."""


def of(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """The field ``algorithms`` of a report between hosts; None where there are too few measurements
    of the engine's own choice."""
    points = _points(report)
    if len(points) < MIN_CASES:
        return None
    link = algorithms.fit(points)
    if not _shows_both(link, points):
        return None
    error = statistics.median(algorithms.error(link, *point) for point in points)
    found: dict[str, Any] = {
        "latency": link.latency,
        "seconds_per_byte": link.per_byte,
        "overhead": link.overhead,
        "seconds_per_added_byte": link.per_byte_added,
        "error": error,
        "least_gain": max(algorithm_table.MIN_GAIN, error),
        "rows": [],
        "text": None,
    }
    if error <= MAX_ERROR:
        rows = algorithm_table.table(*_layout(report), link, found["least_gain"])
        found["rows"] = [dataclasses.asdict(row) for row in algorithm_table.prescribed(rows)]
        found["text"] = algorithm_table.text(rows)
    return found


def _layout(report: Mapping[str, Any]) -> tuple[int, int]:
    """The number of hosts, and of the ranks of each."""
    processes = report["hosts"]["processes"]
    return len(processes), next(iter(processes.values())) * report["job"]["devices"]


def _points(report: Mapping[str, Any]) -> Points:
    """The measured cases, if the engine took the algorithms by its own choice."""
    first, hosts = report["implementations"][0], report["hosts"]
    own_choice = first in ENGINES and not hosts["prescribed_algorithms"]
    if not own_choice or not hosts["even"] or len(hosts["processes"]) < 2:
        return []
    count, ranks = _layout(report)
    found = []
    for entry in report["cases"]:
        op, seconds = HLO_NAMES[entry["op"]], entry["results"][first]["seconds"]
        # With several ranks most of a permute stays within the hosts.
        if seconds and (ranks == 1 or op != "collective-permute"):
            size = algorithm_table.host_bytes(op, entry["bytes"], ranks)
            found.append((algorithms.counts(op, count, size), seconds["median"]))
    return found


def _shows_both(link: Link, points: Points) -> bool:
    """Whether latency takes half of the time of some case, and bytes that of another: else one of
    the two costs is a guess."""
    waiting, moving = [], []
    for counts, _ in points:
        seconds = link.seconds(counts)
        waiting.append(counts.rounds * link.latency / seconds)
        moving.append((counts.bytes * link.per_byte + counts.added * link.per_byte_added) / seconds)
    return link.per_byte > 0 and max(waiting) >= 0.5 and max(moving) >= 0.5
