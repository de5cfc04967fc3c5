"""The arguments in which two executions of one function differ. Pure.

A compiled program lists the arguments of each device: ``x: f32[100,8]``. Arguments are matched by
the names that JAX records, and those without a name by their position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Differing(NamedTuple):
    """One argument, and its type in the two programs; empty: that program does not have it."""

    name: str
    mine: str
    theirs: str

    @property
    def is_dtype(self) -> bool:
        """Whether the dtypes differ; else the shapes do."""
        return self.mine.partition("[")[0] != self.theirs.partition("[")[0]

    @property
    def sizes(self) -> tuple[int, int] | None:
        """The two lengths of the axis that differs; None: more than one axis differs."""
        mine, theirs = _axes(self.mine), _axes(self.theirs)
        if self.is_dtype or len(mine) != len(theirs):
            return None
        apart = [pair for pair in zip(mine, theirs, strict=True) if pair[0] != pair[1]]
        return apart[0] if len(apart) == 1 else None

    @property
    def is_first_axis(self) -> bool:
        mine, theirs = _axes(self.mine), _axes(self.theirs)
        return self.sizes is not None and mine[:1] != theirs[:1]


def differing(mine: Sequence[str], theirs: Sequence[str]) -> tuple[Differing, ...]:
    """The arguments that differ between two programs, in the order of the first one."""
    ours, others = (dict(map(_split, arguments)) for arguments in (mine, theirs))
    names = [*ours, *(name for name in others if name not in ours)]
    found = [Differing(name, ours.get(name, ""), others.get(name, "")) for name in names]
    return tuple(one for one in found if one.mine and one.theirs and one.mine != one.theirs)


def _split(argument: str) -> tuple[str, str]:
    name, _, type_ = argument.rpartition(": ")
    return name, type_


def _axes(type_: str) -> list[int]:
    inside = type_.partition("[")[2].rpartition("]")[0]
    return [int(part) for part in inside.split(",") if part.isdigit()]
