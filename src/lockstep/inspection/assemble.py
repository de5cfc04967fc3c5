"""Puts a report together from facts about a program. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from lockstep.hlo import collectives as hlo
from lockstep.inspection import advice, causes, mesh_axes
from lockstep.inspection.cost_model import CostModel
from lockstep.inspection.facts import Collective, Facts, Loop, Placement, Reach
from lockstep.inspection.mesh_axes import MeshShape

T = TypeVar("T", bound=Facts)


def collectives(
    found: Sequence[hlo.Collective], meshes: Sequence[MeshShape], placement: Placement
) -> tuple[Collective, ...]:
    """The rows of the report; what runs on one device alone is none."""
    return tuple(_row(each, meshes, placement) for each in found if _moves(each))


def finished(report: T) -> T:
    """Adds the advice."""
    return dataclasses.replace(report, advice=advice.of(report))


def placed(report: T, devices_per_process: int | None, processes_per_host: int | None) -> T:
    """See `Report.on`."""
    for name, value in (
        ("devices_per_process", devices_per_process),
        ("processes_per_host", processes_per_host),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be 1 or more, and is {value}.")
    old = report.placement
    processes = old.processes
    if devices_per_process is not None:
        ranks = {device: rank for rank, device in enumerate(sorted(old.devices))}
        processes = tuple(ranks[device] // devices_per_process for device in old.devices)
    placement = Placement(old.devices, processes, processes_per_host or old.processes_per_host)
    rows = tuple(
        dataclasses.replace(row, reach=_reach(row.groups, row.pairs, placement))
        for row in report.collectives
    )
    moved = dataclasses.replace(report, placement=placement, collectives=rows)
    return finished(moved if report.model is None else predicted(moved, report.model))


def predicted(report: T, model: CostModel) -> T:
    """See `Report.predict`."""
    rows = tuple(
        dataclasses.replace(
            row,
            seconds=model.seconds(row.op, row.bytes, row.group_size, row.reach == Reach.HOSTS),
        )
        for row in report.collectives
    )
    return dataclasses.replace(report, collectives=rows, model=model)


def _moves(each: hlo.Collective) -> bool:
    if each.pairs or each.op == hlo.PERMUTE:
        return any(source != target for source, target in each.pairs)
    return any(len(group) > 1 for group in each.groups)


def _row(each: hlo.Collective, meshes: Sequence[MeshShape], placement: Placement) -> Collective:
    permute = each.op == hlo.PERMUTE
    pairs = tuple((source, target) for source, target in each.pairs if source != target)
    axes = (
        mesh_axes.of_pairs(pairs, meshes) if permute else mesh_axes.of_groups(each.groups, meshes)
    )
    at = each.at if each.at.file else each.user_at
    if not at.file and each.carried:
        at = each.loops[-1].at
    return Collective(
        op=each.op,
        reduction=each.reduction,
        operands=tuple((array.dtype, array.shape) for array in each.inputs),
        bytes=each.bytes,
        result_bytes=each.result_bytes,
        executions=each.executions,
        loops=tuple(Loop(loop.trips, loop.at.file, loop.at.line) for loop in each.loops),
        conditional=each.conditional,
        axes=axes,
        groups=each.groups,
        pairs=pairs,
        reach=_reach(each.groups, pairs, placement),
        file=at.file,
        line=at.line,
        function=at.function,
        op_name=each.op_name,
        cause=causes.of(each),
        invariant=each.invariant,
        only_sliced=each.only_sliced,
        carried=each.carried,
    )


def _reach(
    groups: Sequence[Sequence[int]], pairs: Sequence[tuple[int, int]], placement: Placement
) -> Reach:
    found = {placement.reach(members) for members in (*groups, *pairs)}
    return next((r for r in (Reach.HOSTS, Reach.HOST) if r in found), Reach.PROCESS)
