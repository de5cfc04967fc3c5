"""The report as a picture: time against size, a panel for each collective."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from lockstep._words import counted, format_size, unit_of_time
from lockstep.bench.cases import OPS

STYLES = {
    "lockstep": ("#0b6e4f", "o"),
    "gloo": ("#c8553d", "s"),
    "mpi": ("#3d5a80", "^"),
    "plain": ("#e9a23b", "P"),
    "xla": ("#b08900", "X"),
    "unrecorded": ("#8ab17d", "D"),
    "strict": ("#6d597a", "v"),
    "nccl": ("#5f7f1c", "*"),
}
"""Colour and marker of each implementation."""
_TICKS = tuple(1 << power for power in range(10, 31, 4))


def missing() -> str | None:
    """None when matplotlib is there, else what to do about it."""
    if importlib.util.find_spec("matplotlib") is not None:
        return None
    return "--plot needs matplotlib: pip install 'lockstep-jax[bench]'"


def _line(axes: Any, report: Mapping[str, Any], op: str, name: str) -> None:
    points = [
        (entry["bytes"], entry["results"][name]["seconds"])
        for entry in report["cases"]
        if entry["op"] == op and entry["results"][name]["seconds"]
    ]
    if not points:
        return
    sizes = [size for size, _ in points]
    colour, marker = STYLES[name]
    axes.fill_between(
        sizes,
        [s["q1"] * 1e6 for _, s in points],
        [s["q3"] * 1e6 for _, s in points],
        color=colour,
        alpha=0.18,
        linewidth=0,
    )
    axes.plot(
        sizes,
        [s["median"] * 1e6 for _, s in points],
        color=colour,
        marker=marker,
        markersize=4,
        linewidth=1.6,
        label=name,
    )


def _time_label(microseconds: float, _position: object = None) -> str:
    seconds = microseconds * 1e-6
    factor, unit = unit_of_time(seconds)
    return f"{seconds * factor:g} {unit}"


def _panel(axes: Any, report: Mapping[str, Any], op: str) -> None:
    for name in report["implementations"]:
        _line(axes, report, op, name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(op.replace("_", "-"), loc="left", fontsize=11, fontweight="bold")
    axes.yaxis.set_major_formatter(_time_label)
    axes.grid(True, which="major", color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    sizes = [entry["bytes"] for entry in report["cases"]]
    ticks = [tick for tick in _TICKS if min(sizes) <= tick <= max(sizes)]
    axes.set_xticks(ticks or sizes, [format_size(tick) for tick in ticks or sizes])
    axes.minorticks_off()


def _ratios(axes: Any, report: Mapping[str, Any], ops: list[str]) -> None:
    """The last panel: how many times faster the first is, by operation."""
    first = report["implementations"][0]
    rows = [(row["op"], row["implementation"], row["all"]) for row in report["geometric_means"]]
    rows = [row for row in rows if row[0] in ops and row[2]]
    places = range(len(rows))
    colours = [STYLES[row[1]][0] for row in rows]
    bars = axes.barh(places, [r[2] for r in rows], color=colours, height=0.6)
    axes.bar_label(bars, labels=[f"{r[2]:.3g}x" for r in rows], padding=4, fontsize=9)
    axes.set_yticks(places, [r[0].replace("_", "-") for r in rows], fontsize=9)
    axes.invert_yaxis()
    axes.axvline(1, color="#555555", linewidth=0.8)
    axes.set_xlim(0, 1.2 * max([r[2] for r in rows], default=1.0))
    axes.set_title(f"time over that of {first}", loc="left", fontsize=11, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=9)
    axes.set_xlabel("geometric mean over all sizes", fontsize=9)


def save(report: Mapping[str, Any], path: str) -> None:
    """Writes the picture of ``report`` to ``path``, in the format of its ending."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ops = [op for op in OPS if any(entry["op"] == op for entry in report["cases"])]
    compared = bool(report["geometric_means"])
    panels = len(ops) + compared
    columns = min(3, panels)
    rows = -(-panels // columns)
    size = (1.0 + 3.7 * columns, 1.3 + 2.9 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    panes = list(grid.flat)
    for axes in panes[1 : len(ops)]:
        axes.sharey(panes[0])
    for axes, op in zip(panes, ops, strict=False):
        _panel(axes, report, op)
        axes.set_ylabel("time" if axes in grid[:, 0] else "", fontsize=9)
        axes.set_xlabel("input per device", fontsize=9)
    if compared:
        _ratios(panes[len(ops)], report, ops)
    for axes in panes[panels:]:
        axes.set_visible(False)
    panes[0].legend(frameon=False, fontsize=9)
    job, machine, versions = report["job"], report["machine"], report["versions"]
    figure.suptitle(
        f"{counted(job['processes'], 'process')} x {counted(job['devices'], 'device')}, "
        f"{job['dtype']}, on {machine['cpu']}, {counted(machine['usable_cores'], 'core')}, "
        f"jaxlib {versions.get('jaxlib', '?')} (median, quartiles shaded)",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=144)
    plt.close(figure)
