"""Names groups of devices by the axes of a mesh. Pure.

A device is a position in the program's list of devices: a partition, as HLO numbers them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MeshShape:
    """A mesh whose devices are positions in the program's list of devices."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    positions: tuple[int, ...]
    """The positions of the mesh's devices in row-major order."""

    @property
    def devices(self) -> int:
        return math.prod(self.sizes)

    def coordinates(self) -> dict[int, tuple[int, ...]]:
        """Position -> its index along each axis."""
        return dict(zip(self.positions, itertools.product(*map(range, self.sizes)), strict=True))

    def __str__(self) -> str:
        axes = ", ".join(f"{n}={s}" for n, s in zip(self.names, self.sizes, strict=True))
        return f"{axes} ({self.devices} devices)"


@dataclass(frozen=True)
class Axes:
    """The axes along which data moves."""

    names: tuple[str, ...]
    exact: bool = True
    """Whether a group is all devices along the axes, and not a part of them."""
    shift: str = ""
    """How far a permute moves data: ``+1``, and `` ring`` if the last device sends to the first."""

    def __str__(self) -> str:
        if not self.names:
            return "-"
        text = ",".join(self.names) + (f" {self.shift}" if self.shift else "")
        return text if self.exact else f"part of {text}"


def of_groups(groups: Sequence[Sequence[int]], meshes: Sequence[MeshShape]) -> Axes:
    """The axes of the first mesh that describes the groups exactly, else of the first one.

    Without a mesh there are no names.
    """
    found = [_of_groups(groups, mesh) for mesh in meshes]
    known = [axes for axes in found if axes is not None]
    exact = [axes for axes in known if axes.exact]
    return (exact or known or [Axes(())])[0]


def of_pairs(pairs: Sequence[tuple[int, int]], meshes: Sequence[MeshShape]) -> Axes:
    """The axes along which a permute moves data, and how far."""
    for mesh in meshes:
        at = mesh.coordinates()
        if all(device in at for pair in pairs for device in pair):
            return _of_pairs([(at[source], at[target]) for source, target in pairs], mesh)
    return Axes(())


def _of_groups(groups: Sequence[Sequence[int]], mesh: MeshShape) -> Axes | None:
    at = mesh.coordinates()
    if any(device not in at for group in groups for device in group):
        return None
    varying: set[int] = set()
    for group in groups:
        varying |= {
            axis for axis in range(len(mesh.sizes)) if len({at[d][axis] for d in group}) > 1
        }
    axes = sorted(varying)
    whole = math.prod(mesh.sizes[axis] for axis in axes)
    exact = all(len(set(group)) == whole for group in groups)
    return Axes(tuple(mesh.names[axis] for axis in axes), exact)


def _of_pairs(pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], mesh: MeshShape) -> Axes:
    axes = sorted({i for a, b in pairs for i in range(len(a)) if a[i] != b[i]})
    names = tuple(mesh.names[axis] for axis in axes)
    if len(axes) != 1:
        return Axes(names)
    axis, size = axes[0], mesh.sizes[axes[0]]
    steps = {(b[axis] - a[axis]) % size for a, b in pairs}
    if len(steps) != 1:
        return Axes(names)
    step = steps.pop()
    wraps = any((b[axis] > a[axis]) != (step <= size // 2) for a, b in pairs)
    if step > size // 2:
        step -= size
    return Axes(names, True, f"{step:+d}{' ring' if wraps else ''}")
