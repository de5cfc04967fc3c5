"""Draws an `ArrayLayout` with characters (`rendering` shows them)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from lockstep._words import counted, ranges
from lockstep.inspection import layout
from lockstep.inspection.layout import ArrayLayout

PALETTE = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")
_LEFT_OUT = "…"


def parts(drawn: ArrayLayout) -> Iterator[RenderableType]:
    yield Text("\n".join(headline(drawn)), style="bold")
    grids = drawn.grids()
    for fixed in grids[: layout.MAX_GRIDS]:
        yield _grid(drawn, fixed)
    if (left := len(grids) - layout.MAX_GRIDS) > 0:
        yield Text(f"... {counted(left, 'grid')} more, cut in the same way")


def headline(drawn: ArrayLayout) -> list[str]:
    """What the drawing is of, in words."""
    devices = {device for holders in drawn.blocks.values() for device in holders}
    where = counted(len(devices), "device")
    if processes := {drawn.processes[d] for d in devices if d in drawn.processes}:
        where += f" of {counted(len(processes), 'process')}"
    shard = ",".join(map(str, drawn.shard_shape))
    lines = [f"{drawn.type}  {drawn.spec}".rstrip() + (f"  on {drawn.mesh}" if drawn.mesh else "")]
    text = f"{where}; {drawn.dtype}[{shard}] on each"
    several = drawn.copies > 1 and not drawn.is_local
    lines.append(text + (f", {drawn.copies} copies of each block" if several else ""))
    for at in drawn.cut:
        dimension = drawn.dimensions[at]
        axes = f" along {', '.join(dimension.axes)}" if dimension.axes else ""
        lines.append(f"dimension {at}: {dimension.size} in {dimension.blocks} blocks{axes}")
    return [*lines, *([drawn.note] if drawn.note else [])]


def title(drawn: ArrayLayout, fixed: dict[int, int]) -> str:
    """``[0:4, :, ...]`` where a grid is one of several; else ""."""
    if not fixed:
        return ""
    spans = [
        drawn.dimensions[at].span(fixed[at]) if at in fixed else ":"
        for at in range(len(drawn.dimensions))
    ]
    return f"[{', '.join(spans)}]"


def colour(drawn: ArrayLayout, holders: tuple[int, ...]) -> str:
    """Tells processes apart where there are several, else blocks."""
    processes = set(drawn.processes.values())
    if len(processes) > 1:
        return PALETTE[drawn.processes[holders[0]] % len(PALETTE)]
    return PALETTE[list(drawn.blocks.values()).index(holders) % len(PALETTE)]


def label(drawn: ArrayLayout, holders: tuple[int, ...]) -> str:
    """The devices of a block, and their processes where there are several."""
    text = _ranges(holders)
    processes = {drawn.processes[device] for device in holders if device in drawn.processes}
    if len(set(drawn.processes.values())) > 1:
        text += f"\nprocess {_ranges(processes)}"
    return text


def _ranges(numbers: Collection[int]) -> str:
    """``0-3,8``: all of them, without the spaces of a sentence."""
    return ranges(sorted(numbers), len(numbers)).replace(", ", ",")


def _grid(drawn: ArrayLayout, fixed: dict[int, int]) -> Table:
    rows, columns = drawn.sides()
    table = Table(title=title(drawn, fixed) or None, title_justify="left", show_lines=True)
    along = drawn.shown_along(columns)
    table.add_column("")
    for column in along:
        table.add_column(_span(drawn, columns, column), justify="center")
    for row in drawn.shown_along(rows):
        cells: list[str | Text] = [_span(drawn, rows, row)]
        for column in along:
            if row is None or column is None:
                cells.append(_LEFT_OUT)
                continue
            holders = drawn.holders(fixed, row, column)
            style = f"white on {colour(drawn, holders)}"
            cells.append(Text(label(drawn, holders), style=style, justify="center"))
        table.add_row(*cells)
    return table


def _span(drawn: ArrayLayout, dimension: int | None, block: int | None) -> str:
    if dimension is None:
        return "all"
    return _LEFT_OUT if block is None else drawn.dimensions[dimension].span(block)
