"""Medians, quartiles and ratios. Pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Spread:
    """The middle of some numbers and the quartiles around it."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Raises `ValueError` when there are no values."""
        found = list(values)
        if not found:
            raise ValueError("no values")
        return cls(*np.quantile(found, (0.5, 0.25, 0.75)).tolist())


def block_ratios(other: Sequence[Sequence[float]], first: Sequence[Sequence[float]]) -> list[float]:
    """``median(other) / median(first)`` of each block that both measured.

    Blocks of one index ran next to each other, so whatever else the machine was doing then slowed
    both, and their ratio moves less than either.
    """
    pairs = zip(other, first, strict=False)
    return [statistics.median(o) / statistics.median(f) for o, f in pairs if o and f]


def loop_count(seconds: float, target: float, most: int = 8192) -> int:
    """How many calls of ``seconds`` each fill ``target`` seconds: at least 1, at most ``most``."""
    return max(1, min(most, round(target / max(seconds, 1e-9))))
