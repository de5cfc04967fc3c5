"""Predicts the time of a collective from its size: latency and bandwidth. Pure but for its file.

A model has, for collectives within a host and for those between hosts, one curve for each
operation: seconds by the bytes that each device has to send in the best algorithm over links
(`bus_bytes`, as nccl-tests and `lockstep bench` count). Between two measured sizes it interpolates
in logarithms, above the largest it keeps the last bandwidth. For groups of another size than the
measured one, the time at the smallest size is scaled with the number of rounds (`algorithms`).
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep._errors import ConfigError
from lockstep.inspection import algorithms

SCHEMA = "lockstep.costs/1"
FILE = "costs.json"
OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

Points = tuple[tuple[float, float], ...]
"""(bus bytes, seconds), ascending."""


@dataclass(frozen=True)
class Curve:
    """The time of one operation in groups of ``group_size`` devices."""

    group_size: int
    points: Points

    def seconds(self, op: str, size: float, group_size: int) -> float:
        """The time of ``size`` bus bytes, in groups of another size."""
        seconds = _interpolate(self.points, size)
        rounds = algorithms.rounds(op, group_size) / algorithms.rounds(op, self.group_size)
        return seconds + (rounds - 1) * self.points[0][1]


@dataclass(frozen=True)
class CostModel:
    """Predicts times of collectives; see `load`, `CostModel.of_link`."""

    within: Mapping[str, Curve]
    """Operation -> its curve, where all devices are on one host."""
    between: Mapping[str, Curve]
    """The same between hosts; empty: not known."""
    source: str
    """Where the numbers come from, for people."""
    median_error: float | None = None
    """The relative error of predictions at sizes that were measured but not used; None: no such."""
    worst_error: float | None = None

    @classmethod
    def of_link(
        cls,
        latency: float,
        bandwidth: float,
        *,
        latency_between: float | None = None,
        bandwidth_between: float | None = None,
    ) -> CostModel:
        """A model from two numbers, for a machine that is not here.

        Args:
          latency: seconds of the smallest collective between 2 devices of a host.
          bandwidth: bytes per second that a device can send within a host.
          latency_between: the latency between hosts. Default: times between hosts are not
            predicted.
          bandwidth_between: the bandwidth between hosts.

        Raises:
          ValueError: a number is not above 0.
        """
        for name, value in (("latency", latency), ("bandwidth", bandwidth)):
            _check_positive(name, value)
        between = {}
        if latency_between is not None and bandwidth_between is not None:
            _check_positive("latency_between", latency_between)
            _check_positive("bandwidth_between", bandwidth_between)
            between = {op: _line(latency_between, bandwidth_between) for op in OPS}
        within = {op: _line(latency, bandwidth) for op in OPS}
        return cls(within, between, "latency and bandwidth as given")

    def seconds(self, op: str, size: int, group_size: int, between_hosts: bool) -> float | None:
        """The time of a collective into which each device puts ``size`` bytes; None: not known."""
        curves = self.between if between_hosts else self.within
        curve = curves.get(op)
        return curve.seconds(op, bus_bytes(op, size, group_size), group_size) if curve else None

    def to_dict(self) -> dict[str, Any]:
        def curves(of: Mapping[str, Curve]) -> dict[str, Any]:
            return {
                op: {"group_size": c.group_size, "points": [list(p) for p in c.points]}
                for op, c in of.items()
            }

        return {
            "schema": SCHEMA,
            "source": self.source,
            "median_error": self.median_error,
            "worst_error": self.worst_error,
            "within": curves(self.within),
            "between": curves(self.between),
        }

    @classmethod
    def from_dict(cls, values: Any) -> CostModel:
        """Raises ValueError, KeyError or TypeError for anything that `to_dict` does not give."""
        if values["schema"] != SCHEMA:
            raise ValueError(f"its schema is {values['schema']!r}, not {SCHEMA!r}")

        def curves(of: Mapping[str, Any]) -> dict[str, Curve]:
            return {
                op: Curve(int(c["group_size"]), tuple((float(x), float(y)) for x, y in c["points"]))
                for op, c in of.items()
                if c["points"]
            }

        return cls(
            curves(values["within"]),
            curves(values["between"]),
            str(values["source"]),
            values["median_error"],
            values["worst_error"],
        )


def fit(cases: Sequence[tuple[str, int, float]], group_size: int, source: str) -> CostModel:
    """A model within a host from measured cases: (operation, bytes per device, seconds).

    A collective of more bytes takes no less time, so times that fall with the size are noise, and
    are replaced by their geometric mean. Every second size is left out first, predicted from its
    neighbours, and compared: this gives the error. The model then uses all of them.
    """
    by_op: dict[str, list[tuple[float, float]]] = {}
    for op, size, seconds in sorted(cases, key=lambda case: case[1]):
        by_op.setdefault(op, []).append((bus_bytes(op, size, group_size), seconds))
    errors = []
    for points in by_op.values():
        used = points[::2] if len(points) % 2 else [*points[::2], points[-1]]
        for size, seconds in points[1:-1:2]:
            errors.append(abs(_interpolate(_rising(used), size) / seconds - 1))
    errors.sort()
    curves = {op: Curve(group_size, _rising(points)) for op, points in by_op.items()}
    median = errors[len(errors) // 2] if errors else None
    return CostModel(curves, {}, source, median, errors[-1] if errors else None)


def _rising(points: Sequence[tuple[float, float]]) -> Points:
    """The points with times that do not fall: isotonic regression of the logarithms, by pooling
    neighbours (R. E. Barlow et al., Statistical Inference under Order Restrictions, 1972)."""
    pools: list[tuple[float, int]] = []  # mean logarithm, number of points
    for _, seconds in points:
        mean, count = math.log(seconds), 1
        while pools and pools[-1][0] > mean:
            before, more = pools.pop()
            mean, count = (mean * count + before * more) / (count + more), count + more
        pools.append((mean, count))
    times = [math.exp(mean) for mean, count in pools for _ in range(count)]
    return tuple((size, seconds) for (size, _), seconds in zip(points, times, strict=True))


def bus_bytes(op: str, size: float, group_size: int) -> float:
    """What a device has to send if each puts in ``size`` bytes (`lockstep.bench.cases`)."""
    share = (group_size - 1) / group_size
    factors = {"all-reduce": 2 * share, "all-gather": group_size - 1.0, "collective-permute": 1.0}
    return size * factors.get(op, share)


def path() -> Path:
    """The user's file: ``~/.config/lockstep/costs.json``, or below ``XDG_CONFIG_HOME``."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base) / "lockstep" / FILE


def load(file: Path | None = None) -> CostModel | None:
    """The model in a file, by default the user's; None if the user has none.

    Raises `ConfigError` for a file that is named and does not exist, and for one that is no model.
    """
    chosen = file or path()
    try:
        return CostModel.from_dict(json.loads(chosen.read_text("utf-8")))
    except FileNotFoundError:
        if file is None:
            return None
        raise ConfigError(f"{file}: there is no such file of costs.") from None
    except OSError as error:
        raise ConfigError(f"{chosen} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{chosen} has no costs of collectives ({error}). "
            "`lockstep bench --calibrate` writes a new one."
        ) from None


def save(model: CostModel, file: Path | None = None) -> Path:
    """Writes the user's file, or ``file``; raises OSError."""
    chosen = file or path()
    chosen.parent.mkdir(parents=True, exist_ok=True)
    chosen.write_text(json.dumps(model.to_dict(), indent=1) + "\n", "utf-8")
    return chosen


def _line(latency: float, bandwidth: float) -> Curve:
    sizes = [4.0**exponent for exponent in range(2, 18)]
    return Curve(2, tuple((size, latency + size / bandwidth) for size in sizes))


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be above 0, and is {value}.")


def _interpolate(points: Sequence[tuple[float, float]], size: float) -> float:
    """Interpolates logarithms; a size outside gets the first time or the last bandwidth."""
    if size <= points[0][0]:
        return points[0][1]
    for (low, early), (high, late) in itertools.pairwise(points):
        if size <= high:
            part = math.log(size / low) / math.log(high / low)
            return early * (late / early) ** part
    return points[-1][1] * size / points[-1][0]
