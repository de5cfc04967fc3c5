"""A report of `lockstep.inspect` as tables (`rendering` shows them)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from lockstep._words import counted, format_count, format_seconds, format_size
from lockstep.inspection.facts import ArrayInfo, Collective, Facts, Reach

MAX_ROWS = 40
"""Rows of a table of arguments or results; a model has thousands."""
MAX_OPERANDS = 3
_COLOURS = {Reach.PROCESS: "green", Reach.HOST: "", Reach.HOSTS: "yellow"}


def parts(report: Facts, *, is_narrow: bool = False) -> Iterator[RenderableType]:
    yield Text(_headline(report), style="bold")
    yield Text("mesh: " + ("; ".join(map(str, report.meshes)) if report.meshes else "none"))
    yield _arrays("arguments", report.inputs)
    yield _arrays("results", report.outputs)
    if report.collectives:
        yield _narrow_collectives(report) if is_narrow else _collectives(report)
    else:
        yield Text("no collectives: the program sends nothing between devices", style="green")
    yield Text(_sums(report))
    if report.model is not None:
        yield Text(_error(report))
    for warning in report.warnings:
        yield Text(f"XLA warns: {warning}", style="yellow")
    for advice in report.advice:
        yield Text(f"advice: {advice}", style="cyan")


def _headline(report: Facts) -> str:
    devices, processes, hosts = report.placement.counts
    where = f"{counted(devices, 'device')} of {counted(processes, 'process')}"
    where += f" on {counted(hosts, 'host')}"
    kinds = counted(len(report.collectives), "collective")
    return f"{report.name}: {kinds} on {where}"


def _arrays(title: str, arrays: tuple[ArrayInfo, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("name", "type", "on each device", "sharding"):
        table.add_column(column, overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("copies", justify="right")
    for each in arrays[:MAX_ROWS]:
        table.add_row(
            each.name,
            _type(each.dtype, each.shape),
            _type("", each.shard_shape),
            each.spec + (", donated" if each.donated else ""),
            format_size(each.bytes),
            str(each.copies) if each.copies != 1 else "",
        )
    if len(arrays) > MAX_ROWS:
        rest = arrays[MAX_ROWS:]
        size = format_size(sum(each.bytes for each in rest))
        table.add_row(f"... {len(rest)} more", "", "", "", size, "")
    return table


def _collectives(report: Facts) -> Table:
    """A row for each collective; for several that are alike in all that is shown, one."""
    table = Table(title="collectives", title_justify="left", title_style="bold", show_lines=False)
    table.add_column("operation", no_wrap=True)
    table.add_column("of each device", overflow="fold")
    table.add_column("bytes", justify="right")
    table.add_column("runs", justify="right")
    table.add_column("axes", overflow="fold")
    table.add_column("groups", justify="right")
    table.add_column("reach")
    if report.model is not None:
        table.add_column("predicted", justify="right")
    table.add_column("line", overflow="fold")
    table.add_column("why", overflow="fold")
    for cells, reach in _rows(report):
        table.add_row(*cells[:6], Text(reach, style=_COLOURS[reach]), *cells[6:])
    return table


def _narrow_collectives(report: Facts) -> Table:
    """The same in 80 columns: what belongs together lies in one cell."""
    table = Table(title="collectives", title_justify="left", title_style="bold", show_lines=True)
    table.add_column("operation,\nof each device", overflow="fold")
    predicted = ",\npredicted" if report.model is not None else ""
    table.add_column(f"bytes,\nruns{predicted}", justify="right", no_wrap=True)
    table.add_column("axes,\ngroups, reach", overflow="fold")
    table.add_column("line, why", overflow="fold")
    for cells, reach in _rows(report):
        operation, operands, size, times, axes, groups, *seconds, at, why = cells
        where = Text.assemble(f"{axes}\n{groups}\n", (reach, _COLOURS[reach]))
        cost = "\n".join([size, f"x {times}", *seconds])
        table.add_row(f"{operation}\n{operands}", cost, where, f"{at}\n{why}")
    return table


def _rows(report: Facts) -> Iterator[tuple[list[str], Reach]]:
    """The cells of the rows but the reach, which has a colour. Alike rows are one, and counted."""
    counts = Counter((tuple(_cells(row, report)), row.reach) for row in report.collectives)
    for (cells, reach), count in counts.items():
        operation = f"{count} x {cells[0]}" if count > 1 else cells[0]
        yield [operation, *cells[1:]], reach


def _cells(row: Collective, report: Facts) -> Iterator[str]:
    yield row.op + (f"\n({row.reduction})" if row.reduction else "")
    yield _operands(row)
    yield format_size(row.bytes)
    yield runs(row)
    yield str(row.axes)
    yield _groups(row)
    if report.model is not None:
        yield "?" if row.seconds is None else format_seconds(row.seconds)
    yield line(row) + loop_lines(row)
    yield row.cause.text


def _operands(row: Collective) -> str:
    """``f32[8,4]``; ``4 x f32[2]``; the first few of different ones."""
    shown = [_type(dtype, shape) for dtype, shape in row.operands]
    counts = [(each, shown.count(each)) for each in dict.fromkeys(shown)]
    texts = [each if count == 1 else f"{count} x {each}" for each, count in counts[:MAX_OPERANDS]]
    return "\n".join([*texts, *([f"... {len(counts)} types"] if counts[MAX_OPERANDS:] else [])])


def line(row: Collective) -> str:
    """``train.py:41 in step``; "-" where it is not known."""
    if not row.file:
        return "-"
    function = row.function.rsplit(".", 1)[-1]
    return f"{row.file.rsplit('/', 1)[-1]}:{row.line}" + (f" in {function}" if function else "")


def loop_lines(row: Collective) -> str:
    """The lines of the loops around it, each below the other, the outermost first."""
    known = [loop for loop in row.loops if loop.file]
    files = ("" if loop.file == row.file else loop.file.rsplit("/", 1)[-1] + ":" for loop in known)
    return "".join(f"\nloop at {file}{loop.line}" for file, loop in zip(files, known, strict=True))


def runs(row: Collective) -> str:
    """``1``, ``3 x 5``, ``n`` for a loop of unknown length; with ``?`` in a branch."""
    text = " x ".join("n" if trips is None else str(trips) for trips in row.trips) or "1"
    return f"{text}?" if row.conditional else text


def _groups(row: Collective) -> str:
    if row.pairs:
        return counted(len(row.pairs), "pair")
    return f"{len(row.groups)} of {row.group_size}"


def _type(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _sums(report: Facts) -> str:
    sent = sum(row.total_bytes for row in report.collectives)
    text = [f"each device puts {format_size(sent)} into collectives in one execution"]
    if any(row.executions is None for row in report.collectives):
        text.append("a loop of unknown length (n) counts once")
    if report.memory is not None:
        memory = report.memory
        text.append(
            f"memory of a device: {format_size(memory.total)} (arguments "
            f"{format_size(memory.arguments)}, results {format_size(memory.outputs)}, temporaries "
            f"{format_size(memory.temporaries)}"
            + (f"; {format_size(memory.aliased)} in donated arguments)" if memory.aliased else ")")
        )
    if report.flops is not None:
        text.append(
            f"flops of a device: {format_count(report.product_flops)} in matrix products and "
            f"convolutions; XLA's account of everything, the body of a loop once: "
            f"{format_count(report.flops)}"
        )
    return "\n".join(text)


def _error(report: Facts) -> str:
    model = report.model
    assert model is not None
    total = report.seconds
    text = (
        f"predicted for all collectives, one after the other: {format_seconds(total)}"
        if (total is not None)
        else "some times are not predicted: no costs are known for that operation, or between hosts"
    )
    text += f"; costs: {model.source}"
    if model.median_error is not None and model.worst_error is not None:
        text += (
            f"; error at sizes left out: {model.median_error:.0%} in the middle, "
            f"{model.worst_error:.0%} at worst"
        )
    return text
