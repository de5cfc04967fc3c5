"""Draws the figures of the documentation from the kept results of benchmarks/results/.

    make figures

Each figure is drawn twice, for light and for dark pages. The same results give the same files.
Screens of commands are those that `scripts/screens.py` has kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from terminal import FIGURES, GROUND, INK, RESULTS, SCREENS, results, screen, write

COLOURS = {
    "lockstep": "#2f9e67",
    "gloo": "#d9822b",
    "mpi": "#5b8dd6",
    "xla": "#a974c9",
    "scalapack": "#5b8dd6",
}
NAMES = {
    "lockstep": "Lockstep, 2 processes",
    "gloo": "gloo, 2 processes",
    "mpi": "MPICH, 2 processes",
    "xla": "XLA, 2 devices of one process",
}
MARKS = {"lockstep": "o", "gloo": "s", "mpi": "^", "xla": "D"}
HOST_JOBS = {
    "gloo": ("gloo", "gloo, not encrypted"),
    "plain": ("lockstep", "Lockstep, --no-encryption"),
    "tls": ("lockstep", "Lockstep, TLS"),
}
"""Jobs of `benchmarks/between_hosts.py`: whose colour, and the label."""
TRACE = {"waiting for the slowest": "#d9822b", "moving data": "#2f9e67"}
"""Slices of a trace, and their colours."""


def speed_against_size() -> None:
    """Seconds of five collectives against the bytes of a device: medians and quartiles."""
    cases = results("shared_memory_2x1_xla")["cases"]
    operations = list(dict.fromkeys(case["op"] for case in cases))
    figure, panels = plt.subplots(2, 3, figsize=(9.5, 5.8), sharex=True, sharey=True)
    figure.subplots_adjust(hspace=0.2, wspace=0.06)
    for panel, operation in zip(panels.flat, operations, strict=False):
        for name in ("gloo", "xla", "mpi", "lockstep"):
            found = [c for c in cases if c["op"] == operation]
            sizes = [case["bytes"] for case in found]
            times = [case["results"][name]["seconds"] for case in found]
            low, high = [t["q1"] for t in times], [t["q3"] for t in times]
            colour = COLOURS[name]
            panel.fill_between(sizes, low, high, color=colour, alpha=0.25, linewidth=0)
            medians = [t["median"] for t in times]
            panel.plot(sizes, medians, color=colour, marker=MARKS[name], label=NAMES[name])
        _log_log(panel, operation.replace("_", "-"))
    for panel in panels[:, 0]:
        panel.set_ylabel("seconds")
    panels[0, 2].tick_params(labelbottom=True)
    panels[1, 2].axis("off")
    panels[1, 2].legend(*panels[0, 0].get_legend_handles_labels(), frameon=False, loc="center")


def _log_log(panel: Any, title: str) -> None:
    panel.set(xscale="log", yscale="log", title=title)
    panel.set_xticks([2**10, 2**16, 2**20, 2**24], ["1 KiB", "64 KiB", "1 MiB", "16 MiB"])
    panel.tick_params(axis="x", rotation=40, which="major")
    panel.minorticks_off()
    panel.grid(alpha=0.3)


def _between_hosts(gbit: float | None) -> dict[Any, list[dict[str, Any]]]:
    """Cases by layout (hosts, processes of a host, devices of a process), of links with this rate.

    Each has ``op``, ``bytes``, and seconds (median and quartiles) of each of `HOST_JOBS`.
    """
    found: dict[Any, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("between_hosts*.json")):
        document = json.loads(path.read_text())
        if "layouts" in document and document["gbit"] == gbit:
            for layout in document["layouts"]:
                key = (layout["hosts"], layout["processes"], layout["devices"])
                found.setdefault(key, [])[:] = [_seconds(case) for case in layout["cases"]]
    return found


def _seconds(case: dict[str, Any]) -> dict[str, Any]:
    measured = {job: result["seconds"] for job, result in case["results"].items()}
    return {"op": case["op"], "bytes": case["bytes"], **measured}


def _line(panel: Any, job: str, xs: list[int], spreads: list[dict[str, float]]) -> None:
    """Medians, and a band of the quartiles."""
    name, label = HOST_JOBS[job]
    colour, style = COLOURS[name], "--" if job == "plain" else "-"
    low, high = [each["q1"] for each in spreads], [each["q3"] for each in spreads]
    panel.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0)
    middle = [each["median"] for each in spreads]
    panel.plot(xs, middle, style, color=colour, marker=MARKS[name], label=label)


def between_hosts() -> None:
    """Seconds of two collectives between two hosts on a link of 1 Gbit/s."""
    figure, panels = plt.subplots(2, 2, figsize=(9.5, 6.2), sharex=True, sharey=True)
    figure.subplots_adjust(hspace=0.2, wspace=0.06)
    measured = _between_hosts(gbit=1)
    for row, devices in zip(panels, (1, 4), strict=True):
        for panel, operation in zip(row, ("all_reduce", "all_gather"), strict=True):
            cases = [case for case in measured[2, 1, devices] if case["op"] == operation]
            for job in HOST_JOBS:
                if job in cases[0]:
                    sizes = [case["bytes"] for case in cases]
                    _line(panel, job, sizes, [case[job] for case in cases])
            words = "1 device" if devices == 1 else f"{devices} devices"
            _log_log(panel, f"{operation.replace('_', '-')}, {words} each")
        row[0].set_ylabel("seconds")
    panels[0, 0].legend(frameon=False)


def against_hosts() -> None:
    """Seconds of an all-reduce against the number of hosts, on links without a rate."""
    cases = {
        (hosts, case["bytes"]): case
        for (hosts, *rest), found in _between_hosts(gbit=None).items()
        if rest == [1, 1]
        for case in found
        if case["op"] == "all_reduce"
    }
    counts = sorted({hosts for hosts, _ in cases})
    sizes = {2**10: "1 KiB", 2**20: "1 MiB", 2**24: "16 MiB"}
    _, panels = plt.subplots(1, len(sizes), figsize=(9.5, 3.4))
    for panel, (size, words) in zip(panels, sizes.items(), strict=True):
        for job in HOST_JOBS:
            _line(panel, job, counts, [cases[hosts, size][job] for hosts in counts])
        panel.set(xscale="log", yscale="log", title=f"all-reduce, {words}", xlabel="hosts")
        panel.set_xticks(counts, [str(hosts) for hosts in counts])
        panel.xaxis.minorticks_off()
        panel.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("seconds")
    panels[-1].legend(frameon=False)
    plt.tight_layout()


def straggler() -> None:
    """A trace of `lockstep report --trace`, drawn as Perfetto shows it."""
    events = results("screens/straggler")["traceEvents"]
    rows = sorted({event["pid"] for event in events})
    _, panel = plt.subplots(figsize=(9.5, 2.6))
    for part, colour in TRACE.items():
        for row in rows:
            slices = [e for e in events if e["ph"] == "X" and (e["name"], e["pid"]) == (part, row)]
            # A slice of microseconds would not be seen.
            spans = [(each["ts"] / 1e3, max(each["dur"] / 1e3, 0.6)) for each in slices]
            label = part if row == rows[0] else None
            panel.broken_barh(spans, (row - 0.35, 0.7), color=colour, label=label)
    panel.set_yticks(rows, [f"process {row}" for row in rows])
    panel.invert_yaxis()
    panel.set_xlabel("milliseconds; without colour: in no collective")
    panel.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)


def solvers() -> None:
    """Speed of each routine as a multiple of ScaLAPACK's in the same run."""
    rows = [row for row in results("linalg_2x1") if row.get("scalapack")]
    labels = [
        f"{row['routine']} n={row['n']}"
        + (f", {row['rhs']} rhs" if row["routine"] == "posv" else "")
        for row in rows
    ]
    speeds = [row["scalapack"] / row["seconds"] for row in rows]
    _, panel = plt.subplots(figsize=(8, 0.5 + 0.32 * len(rows)))
    places = list(range(len(rows)))
    panel.barh(places, speeds, color=COLOURS["lockstep"])
    panel.axvline(1, color=COLOURS["scalapack"], linewidth=2, label="ScaLAPACK")
    panel.set_yticks(places, labels)
    panel.invert_yaxis()
    panel.set_xlabel("speed as a multiple of ScaLAPACK's: right of the line is faster")
    panel.legend(frameon=False, loc="lower right")


def long_run() -> None:
    """What a process has against the steps that it has made, as a share of what it had first."""
    names = {
        "rss": "memory",
        "launcher_rss": "memory of the launcher",
        "descriptors": "descriptors",
        "threads": "threads",
        "run_dir": "files of the run",
    }
    _, panels = plt.subplots(1, 2, figsize=(9.5, 3.2), sharey=True)
    for panel, (job, title) in zip(
        panels, {"lockstep": "Lockstep", "gloo": "gloo"}.items(), strict=True
    ):
        rows = results("long_run")[job]
        steps = [row["step"] / 1000 for row in rows]
        for name, label in names.items():
            # The first sample is before the first step, which makes connections and buffers.
            panel.plot(steps[1:], [row[name] / rows[1][name] for row in rows[1:]], label=label)
        panel.set(title=title, xlabel="thousand steps", ylim=(0.8, 1.2))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("of that after 1% of the steps")
    panels[1].legend(frameon=False, loc="lower right", fontsize=8)


def draw(figure: Callable[[], None], mode: str) -> None:
    ink = INK[mode]
    style: dict[Any, Any] = {  # matplotlib's type of names is not public
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), ink),
        **dict.fromkeys(("xtick.color", "ytick.color"), ink),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), GROUND[mode]),
        "svg.hashsalt": "lockstep",
        "font.size": 10,
    }
    with plt.rc_context(style):
        figure()
        path = FIGURES / f"{figure.__name__}-{mode}.svg"
        plt.savefig(path, bbox_inches="tight", metadata={"Date": None})
        plt.close("all")
    write(path, path.read_text())


def main() -> None:
    for mode in GROUND:
        for figure in (
            *(speed_against_size, between_hosts, against_hosts, solvers, straggler),
            long_run,
        ):
            draw(figure, mode)
        for name in SCREENS:
            screen(name, mode)


if __name__ == "__main__":
    main()
