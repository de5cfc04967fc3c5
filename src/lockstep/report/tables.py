"""A report on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep._words import format_seconds, format_size
from lockstep.flight_recorder.diagnose import Diagnosis
from lockstep.flight_recorder.text_report import CULPRIT, table
from lockstep.flight_recorder.time_summary import Line, Summary


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Prints the whole report: headline, processes, likely causes."""
    head, *lines = table(diagnosis).splitlines()
    colour = "red" if diagnosis.kind.is_fault else "green"
    console.print(Text(head, style=f"bold {colour}"), soft_wrap=True)
    for line in lines:
        style = "yellow" if line.startswith(CULPRIT) else ""
        # Lines are not wrapped, because a path that spans lines cannot be clicked.
        console.print(Text(line, style=style), soft_wrap=True)


def show_summary(summary: Summary, console: Console) -> None:
    """Prints where the time of the collectives went."""
    console.print()
    console.print(summary_table(summary))
    kept = f"{summary.recorded} of {summary.written} collectives"
    console.print(
        Text(f"from {kept} (each device keeps its latest); times are averages over the devices")
    )


def summary_table(summary: Summary, most: int | None = None) -> Table:
    """A row a call site, those that took most time first."""
    table = Table(title="collectives by line", title_justify="left", title_style="bold")
    table.add_column("collective", overflow="fold")
    is_timed = any(line.moving is not None for line in summary.lines[:most])
    for column in ("calls", "per call", "waiting", *(["moving"] if is_timed else [])):
        table.add_column(column, justify="right")
    table.add_column("slowest", min_width=12)
    for line in summary.lines[:most]:
        table.add_row(
            "\n".join(part for part in (line.where, line.what) if part),
            str(line.calls),
            format_size(line.bytes),
            format_seconds(line.waiting),
            *([_moving(line)] if is_timed else []),
            _slowest(line),
        )
    return table


def _moving(line: Line) -> str:
    return "-" if line.moving is None else format_seconds(line.moving)


def _slowest(line: Line) -> str:
    if not line.slowest:
        return "-"
    named = [f"process {process}: {times}" for process, times in line.slowest[:2]]
    return "\n".join([*named, f"of {line.timed}"])
