"""What `lockstep.inspect` found: plain data that prints as a table and converts to JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.inspection import assemble
from lockstep.inspection.facts import Facts

if TYPE_CHECKING:
    from lockstep.inspection.cost_model import CostModel

SCHEMA = "lockstep.inspect/1"


@dataclass(frozen=True)
class Report(Facts):
    """What the compiler made of a function; see `lockstep.inspect`."""

    def on(
        self, *, devices_per_process: int | None = None, processes_per_host: int | None = None
    ) -> Report:
        """The same program on other processes and hosts, which decide what is between hosts.

        Args:
          devices_per_process: devices of each process, in the order of the devices' ids. Default:
            as it was.
          processes_per_host: processes of each host. Default: as it was.

        Raises:
          ValueError: a number is less than 1.
        """
        return assemble.placed(self, devices_per_process, processes_per_host)

    def predict(self, model: CostModel) -> Report:
        """The same report, with the times that ``model`` predicts."""
        return assemble.predicted(self, model)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON holds it; ``schema`` changes when a key changes its meaning."""
        values = dataclasses.asdict(self)
        values["meshes"] = [
            {"axes": dict(zip(m.names, m.sizes, strict=True)), "positions": list(m.positions)}
            for m in self.meshes
        ]
        for row, each in zip(values["collectives"], self.collectives, strict=True):
            row["axes"] = list(each.axes.names)
            row["axes_exact"] = each.axes.exact
            row["shift"] = each.axes.shift
            row["group_size"], row["dtype"] = each.group_size, each.dtype
            row["trips"] = list(each.trips)
        values["seconds"] = self.seconds
        return {"schema": SCHEMA, **values}

    def to_json(self, **options: Any) -> str:
        """`to_dict` as text; ``options`` are those of `json.dumps`."""
        return json.dumps(self.to_dict(), **options)

    def print(self) -> None:
        """Prints the tables, with colours on a terminal."""
        from lockstep.inspection import rendering, tables

        rendering.show(tables.parts(self, is_narrow=rendering.is_narrow()))

    def __str__(self) -> str:
        from lockstep.inspection import rendering, tables

        return rendering.as_text(tables.parts(self))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from lockstep.inspection import rendering, tables

        return rendering.as_html(tables.parts(self))
