"""A difference between the programs that processes run together, as it was found. Pure.

`lockstep.programs` finds it, from what the processes compiled; it is written down for the report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep._run_files import write_whole
from lockstep._words import processes

CONSTANT, MESH, FLAGS, OPERATIONS, SHARDING, ARGUMENTS, DTYPES, OTHER = KINDS = (
    "constant",
    "mesh",
    "flags",
    "operations",
    "sharding",
    "arguments",
    "dtypes",
    "other",
)

_SHAPE = re.compile(r"\w+\[[\d,]*\]")


@dataclasses.dataclass(frozen=True)
class Side:
    """Processes that run the same program."""

    processes: tuple[int, ...]
    program: str
    """``step (train.py:14)``."""
    what: str
    """What it has where the other one differs: ``3.0``."""
    at: str = ""
    """The line of the user's program that this comes from: ``train.py:12: y = x * scale``."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first difference between two programs that should be one."""

    kind: str
    """One of `KINDS`."""
    subject: str
    """``a constant``, ``the mesh``; "": each side says all."""
    sides: tuple[Side, Side]
    """The one with fewer processes first."""

    @property
    def culprits(self) -> tuple[int, ...]:
        """The processes that differ from most; all, where there is no majority."""
        few, many = self.sides
        is_minority = len(few.processes) < len(many.processes)
        return few.processes if is_minority else tuple(sorted(few.processes + many.processes))

    @property
    def is_of_arguments(self) -> bool:
        """Whether an argument has another shape or dtype."""
        return self.subject.startswith("argument ") and (
            self.kind == DTYPES
            or (self.kind == ARGUMENTS and all(_SHAPE.fullmatch(side.what) for side in self.sides))
        )

    @property
    def is_of_one_function(self) -> bool:
        """Whether both programs are of functions with one name."""
        few, many = (side.program.split(" ")[0] for side in self.sides)
        return few == many

    def __str__(self) -> str:
        """``process 1 runs another program than process 0: in step (a.py:14) a constant is ...``"""
        few, many = self.sides
        verb = "runs" if len(few.processes) == 1 else "run"
        what = [f"{side.what} on {processes(side.processes)}" for side in self.sides if side.what]
        values = (f"{self.subject} is " if self.subject else "") + ", ".join(what)
        where = f"in {few.program} {values}"
        if few.program != many.program:
            where = f"{few.program} and not {many.program}" + (f"; {values}" if values else "")
        return (
            f"{processes(few.processes)} {verb} another program than {processes(many.processes)}: "
            f"{where}{self._places()}"
        )

    def _places(self) -> str:
        lines = list(dict.fromkeys(side.at for side in self.sides if side.at))
        if len(lines) < 2:
            return f", {lines[0]}" if lines else ""
        told = (f"{side.at} on {processes(side.processes)}" for side in self.sides)
        return f", {'; '.join(told)}"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Difference:
        """Raises ValueError, KeyError or TypeError for what `to_json` does not make."""
        few, many = (
            Side(tuple(map(int, s["processes"])), str(s["program"]), str(s["what"]), str(s["at"]))
            for s in found["sides"]
        )
        if (kind := str(found["kind"])) not in KINDS:
            raise ValueError(f"no kind of difference: {kind!r:.100}")
        return cls(kind, str(found["subject"]), (few, many))

    def write(self, path: Path) -> None:
        """Leaves it in a file, whole or not at all. Raises OSError."""
        write_whole(path, json.dumps(self.to_json()).encode())


def read(path: Path) -> Difference | None:
    """What was written down; None: nothing, or nothing that can be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return Difference.from_json(json.loads(path.read_text("utf-8")))
    return None
