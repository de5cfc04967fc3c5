"""The arguments in which two executions of one function differ. Pure.

A compiled program says what each device is given, ``x: f32[100,8]``. Shapes are compared by the
names that JAX notes; arguments without a name, by their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Differing(NamedTuple):
    """One argument, and its type in one program and in the other; empty: it is not given."""

    name: str
    mine: str
    theirs: str

    @property
    def is_dtype(self) -> bool:
        """Whether the dtypes differ; else it is the shapes."""
        return self.mine.partition("[")[0] != self.theirs.partition("[")[0]

    @property
    def sizes(self) -> tuple[int, int] | None:
        """The lengths of the one axis that differs; None where it is not one."""
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
    """The arguments of two programs that are not alike, in the order of the first."""
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
