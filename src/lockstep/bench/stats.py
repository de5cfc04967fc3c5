"""Median, quartiles, ratios and geometric means. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Spread:
    """The middle of some numbers and the quartiles around it."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Raises `ValueError` when there are no values."""
        ordered = sorted(values)
        return cls(*(quantile(ordered, q) for q in (0.5, 0.25, 0.75)))


def quantile(ordered: Sequence[float], q: float) -> float:
    """The ``q`` quantile of rising ``ordered``, interpolated linearly between neighbours."""
    if not ordered:
        raise ValueError("no values")
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def block_ratios(other: Sequence[Sequence[float]], first: Sequence[Sequence[float]]) -> list[float]:
    """``median(other) / median(first)`` of each block that both measured.

    Blocks of one index ran next to each other, so whatever else the machine was doing then slowed
    both, and their ratio moves less than either.
    """
    pairs = zip(other, first, strict=False)
    return [Spread.of(o).median / Spread.of(f).median for o, f in pairs if o and f]


def geometric_mean(values: Iterable[float]) -> float | None:
    """None when there are no values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def loop_count(seconds: float, target: float, most: int = 8192) -> int:
    """How many calls of ``seconds`` each fill ``target`` seconds: at least 1, at most ``most``."""
    return max(1, min(most, round(target / max(seconds, 1e-9))))
