"""Assigns cores to processes."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

_CPU = Path("/sys/devices/system/cpu")


def shares(cores: Sequence[int], processes: int) -> list[frozenset[int]]:
    """Splits ``cores`` into disjoint runs of neighbours, one per process.

    The lengths differ by one at most. With fewer cores than processes there is no core for each, so
    every process may use all cores.
    """
    if len(cores) < processes:
        return [frozenset(cores)] * processes
    cuts = [len(cores) * i // processes for i in range(processes + 1)]
    return [frozenset(cores[a:b]) for a, b in itertools.pairwise(cuts)]


def chosen(
    bind: str | None, usable: Sequence[int], processes: int, devices: int | None
) -> list[frozenset[int]] | None:
    """The cores of each process by ``--bind``; None: not bound."""
    if bind == "none":
        return None
    if bind is None and not worth_binding(len(usable), processes, devices):
        return None
    return shares(usable, processes)


def worth_binding(cores: int, processes: int, devices: int | None) -> bool:
    """Whether binding to shares of this size helps; decides for runs without ``--bind``.

    A process needs a core for each device, and at least two: its devices wait for each other, and
    XLA and Python have threads of their own. Bound to fewer cores, these threads wait for a core
    while other cores are idle. On a machine of two cores, a step on 2 x 4 devices took up to five
    times as long when each process was bound to one core.
    """
    return cores // processes >= max(2, devices or 1)


def _topology(core: int, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((_CPU / f"cpu{core}" / "topology" / name).read_text())
    return 0


def _by_neighbourhood(cores: Iterable[int]) -> list[int]:
    # Hardware threads of one core, and cores of one socket, share caches: they stay together.
    names = ("physical_package_id", "core_id")
    return sorted(cores, key=lambda core: (*(_topology(core, name) for name in names), core))


def usable() -> list[int]:
    """The cores that this process may run on, those that share caches side by side."""
    return _by_neighbourhood(os.sched_getaffinity(0))
