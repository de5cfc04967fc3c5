"""Advice about a compiled program, where it is certain. Pure.

Each piece states a fact of the compiled program and what removes it. Nothing is said that depends
on how fast something is.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from lockstep._words import format_size
from lockstep.inspection.causes import Kind
from lockstep.inspection.facts import Collective, Facts, Reach
from lockstep.inspection.mesh_axes import MeshShape

SMALL = 1 << 20
"""Arrays below this many bytes are not worth a sentence."""


def of(report: Facts) -> tuple[str, ...]:
    """Sentences, each about one thing."""
    found = (*_loops(report), *_slices(report), *_copies(report), *_swaps(report))
    return tuple(dict.fromkeys(found))


def where(row: Collective) -> str:
    """``train.py:41``; the operation's path where the line is not known."""
    return f"{row.file.rsplit('/', 1)[-1]}:{row.line}" if row.file else row.op_name or row.op


def _loops(report: Facts) -> Iterator[str]:
    for row in report.collectives:
        if row.cause.kind != Kind.RESHARDING:
            continue
        times = f"{row.executions} times" if row.executions else "in every iteration"
        if row.carried:
            yield (
                f"{where(row)}: what the loop carries is resharded at the end of every iteration "
                f"({row.op} of {format_size(row.bytes)}, {times}): the loop gives it in another "
                "sharding than it takes it. Where the computation permits, keep one in the loop."
            )
        if row.invariant:
            yield (
                f"{where(row)}: the same {row.op} of {format_size(row.bytes)} runs {times} in a "
                "loop that does not change the array. Reshard it once before the loop "
                "(jax.lax.with_sharding_constraint, or jax.sharding.reshard)."
            )


def _slices(report: Facts) -> Iterator[str]:
    for row in report.collectives:
        if row.op == "all-gather" and row.only_sliced and row.cause.kind != Kind.EXPLICIT:
            yield (
                f"{where(row)}: the array is gathered whole ({format_size(row.result_bytes)} on "
                "each device), and only slices of it are used. Slice inside jax.shard_map, or "
                "shard another dimension than the one that is sliced."
            )


def _copies(report: Facts) -> Iterator[str]:
    for array in report.inputs:
        if array.copies < report.placement.counts[0] or array.bytes < SMALL:
            continue
        for mesh in report.meshes[:1]:
            axes = [(n, s) for n, s in zip(mesh.names, mesh.sizes, strict=True) if s > 1]
            fitting = [(n, s) for n, s in axes if any(d % s == 0 for d in array.shape)]
            if fitting:
                name, size = max(fitting, key=lambda axis: axis[1])
                yield (
                    f"argument {array.name} is whole on each of {array.copies} devices "
                    f"({format_size(array.bytes)} each); sharded over {name} it takes "
                    f"{format_size(array.bytes / size)} each."
                )


def _swaps(report: Facts) -> Iterator[str]:
    """Two axes of one size, of which the one between hosts moves more."""
    moved: Counter[str] = Counter()
    for row in report.collectives:
        if len(row.axes.names) != 1 or not row.axes.exact:
            return  # what crosses both axes would change too
        moved[row.axes.names[0]] += row.total_bytes
    for mesh in report.meshes[:1]:
        sizes = dict(zip(mesh.names, mesh.sizes, strict=True))
        far = {name for name in mesh.names if _crosses_hosts(mesh, name, report)}
        for outer, inner in itertools.product(sorted(far), sorted(set(mesh.names) - far)):
            if sizes[inner] == sizes[outer] > 1 and moved[outer] > moved[inner]:
                yield (
                    f"axis {outer} runs between hosts and moves {format_size(moved[outer])} "
                    f"of each device, axis {inner} stays within a host and moves "
                    f"{format_size(moved[inner])}: exchange the two in the mesh."
                )


def _crosses_hosts(mesh: MeshShape, name: str, report: Facts) -> bool:
    axis = mesh.names.index(name)
    lines: dict[tuple[int, ...], list[int]] = {}
    for position, at in mesh.coordinates().items():
        lines.setdefault((*at[:axis], *at[axis + 1 :]), []).append(position)
    return any(report.placement.reach(line) == Reach.HOSTS for line in lines.values())
