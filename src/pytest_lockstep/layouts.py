"""The layouts of a test: numbers of processes and devices, from its mark and the options. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

PARAMETER = "lockstep_layout"
"""The parameter of a test that runs in several layouts, and the fixture that gives its layout."""
_DEFAULTS: dict[str, Any] = {"n": 2, "devices": 4, "collectives": None}
_OPTIONS = {"n": "lockstep_n", "devices": "lockstep_devices", "collectives": "lockstep_collectives"}


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the processes of a test are; tests with the same layout share processes."""

    n: int
    devices: int | None
    collectives: str | None


def of_mark(mark: pytest.Mark, config: pytest.Config) -> list[Layout]:
    """The layouts of a test with ``mark``. Raises `pytest.Collector.CollectError`."""
    unknown = set(mark.kwargs) - {*_DEFAULTS, "timeout"}
    if mark.args or unknown:
        raise pytest.Collector.CollectError(
            f"pytest.mark.lockstep takes n, devices, collectives and timeout by name, not "
            f"{', '.join(sorted(unknown)) or mark.args}"
        )
    seconds = mark.kwargs.get("timeout")
    if seconds is not None and not (_is_number(seconds) and seconds >= 0):
        raise pytest.Collector.CollectError(
            f"pytest.mark.lockstep(timeout=...): {seconds!r} is not a number of seconds"
        )
    choices = [_choices(name, mark, config) for name in _DEFAULTS]
    return [Layout(*values) for values in itertools.product(*choices)]


def of_item(item: Any) -> Layout:
    """The layout of a test with the mark ``lockstep``. Raises `pytest.Collector.CollectError`."""
    callspec = getattr(item, "callspec", None)
    if callspec and isinstance(found := callspec.params.get(PARAMETER), Layout):
        return found
    several = of_mark(item.get_closest_marker("lockstep"), item.config)
    if len(several) > 1:  # the function has no mark, which would make a test for each
        raise pytest.Collector.CollectError(
            f"pytest.mark.lockstep of one parameter asks for {len(several)} layouts "
            f"({', '.join(map(name, several))}), and a parameter is one test. Mark the function, "
            "or give a parameter for each"
        )
    return several[0]


def name(layout: Layout) -> str:
    """The id of a test in this layout: ``n2-d4``."""
    devices = "" if layout.devices is None else f"-d{layout.devices}"
    return f"n{layout.n}{devices}" + (f"-{layout.collectives}" if layout.collectives else "")


def _choices(key: str, mark: pytest.Mark, config: pytest.Config) -> list[Any]:
    given = config.getoption(_OPTIONS[key])
    if given is not None:
        values: list[Any] = [text.strip() for text in given.split(",")]
        if key != "collectives":
            values = [int(text) if text.isdigit() else text for text in values]
        where = f"--{_OPTIONS[key].replace('_', '-')}"
    else:
        value = mark.kwargs.get(key, _DEFAULTS[key])
        values = list(value) if isinstance(value, list | tuple) else [value]
        where = f"pytest.mark.lockstep({key}=...)"
    if not values:
        raise pytest.Collector.CollectError(f"{where}: the list is empty")
    for value in values:
        if key == "collectives":
            fits = value in (None, "lockstep", "gloo", "mpi")
            expected = "lockstep, gloo or mpi"
        else:
            is_count = _is_number(value) and isinstance(value, int) and value > 0
            fits = is_count or (value is None and key == "devices")
            expected = "a whole number, 1 or more"
        if not fits:
            raise pytest.Collector.CollectError(f"{where}: {value!r} is not {expected}")
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
