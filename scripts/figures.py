"""Draws the figures of the documentation from the kept results of benchmarks/results/.

    make figures

Each figure is drawn twice, for light and for dark pages. The same results give the same files.
Screens of commands are those that `scripts/screens.py` has kept.
"""

from __future__ import annotations

import io
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from lockstep.bench import table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "docs" / "img"
GROUND = {"light": "#ffffff", "dark": "#1e2129"}
ANSI = {
    "light": [
        "#1f2933",
        "#b3261e",
        "#1d7a4d",
        "#9a6700",
        "#0b5cad",
        "#8250a8",
        "#0f7681",
        "#6b7785",
    ],
    "dark": [
        "#6b7785",
        "#ff8f86",
        "#7ddba8",
        "#e8c268",
        "#86b7ff",
        "#d3a6ff",
        "#76d7e2",
        "#d5dae1",
    ],
}
"""The eight colours of a terminal."""
MAX_COLUMNS = {"inspect": 132}
"""Of a screen; lines are folded at 104 otherwise."""
INK = {"light": "#1f2933", "dark": "#d5dae1"}
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
SCREENS = {
    "bench": "lockstep bench --ops all_reduce --sizes 1KiB,64KiB,1MiB,16MiB",
    "top": "lockstep top",
    "summary": "lockstep report --summary",
    "inspect": "lockstep inspect -n 16 -d 4 inspect_step.py:train_step",
    "show_sharding": "lockstep.show_sharding(x)",
}


def _results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def speed_against_size() -> None:
    """Seconds of five collectives against the bytes of a device: medians and quartiles."""
    cases = _results("shared_memory_2x1_xla")["cases"]
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


def _rows(name: str) -> list[dict[str, Any]]:
    """Rows of `benchmarks/between_hosts.py`: the seconds of each job's rounds, or the least."""
    found = _results(name)
    if isinstance(found, list):
        return [
            row | {job: row.get("samples", {}).get(job, row[job][:1]) for job in HOST_JOBS}
            for row in found
        ]
    pairs = zip(found["engine"], found["gloo"], strict=True)
    return [ours | {"tls": [ours["seconds"]], "gloo": [its["seconds"]]} for ours, its in pairs]


def _line(panel: Any, job: str, xs: list[Any], rounds: list[list[float]]) -> None:
    """Medians of the rounds, and a band from the least to the largest."""
    name, label = HOST_JOBS[job]
    colour, style = COLOURS[name], "--" if job == "plain" else "-"
    low, high = [min(each) for each in rounds], [max(each) for each in rounds]
    panel.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0)
    middle = [statistics.median(each) for each in rounds]
    panel.plot(xs, middle, style, color=colour, marker=MARKS[name], label=label)


def between_hosts() -> None:
    """Seconds of two collectives between two hosts on a link of 1 Gbit/s."""
    figure, panels = plt.subplots(2, 2, figsize=(9.5, 6.2), sharex=True, sharey=True)
    figure.subplots_adjust(hspace=0.2, wspace=0.06)
    for row, layout in zip(panels, ("2x1", "2x4"), strict=True):
        rows = _rows(f"between_hosts_1gbit_{layout}")
        for panel, operation in zip(row, ("all-reduce", "all-gather"), strict=True):
            found = [each for each in rows if each["op"] == operation]
            for job in HOST_JOBS:
                if job in found[0]:
                    sizes = [each["bytes"] for each in found]
                    _line(panel, job, sizes, [each[job] for each in found])
            devices = "1 device" if layout == "2x1" else "4 devices"
            _log_log(panel, f"{operation}, {devices} each")
        row[0].set_ylabel("seconds")
    panels[0, 0].legend(frameon=False)


def against_hosts() -> None:
    """Seconds of an all-reduce against the number of hosts, on links without a rate."""
    hosts = sorted(int(path.stem.split("_")[2]) for path in RESULTS.glob("all_reduce_*_hosts.json"))
    by_hosts = {n: {row["bytes"]: row for row in _rows(f"all_reduce_{n}_hosts")} for n in hosts}
    sizes = {2**10: "1 KiB", 2**20: "1 MiB", 2**24: "16 MiB"}
    _, panels = plt.subplots(1, len(sizes), figsize=(9.5, 3.4))
    for panel, (size, words) in zip(panels, sizes.items(), strict=True):
        for job in HOST_JOBS:
            measured = [n for n in hosts if job in by_hosts[n][size]]
            _line(panel, job, measured, [by_hosts[n][size][job] for n in measured])
        panel.set(xscale="log", yscale="log", title=f"all-reduce, {words}", xlabel="hosts")
        panel.set_xticks(hosts, [str(n) for n in hosts])
        panel.xaxis.minorticks_off()
        panel.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("seconds")
    panels[-1].legend(frameon=False)
    plt.tight_layout()


def straggler() -> None:
    """A trace of `lockstep report --trace`, drawn as Perfetto shows it."""
    events = _results("screens/straggler")["traceEvents"]
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
    rows = [row for row in _results("linalg_2x1") if row.get("scalapack")]
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
    _write(path, path.read_text())


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _bench() -> str:
    """The all-reduces of a run of `lockstep bench`, beside gloo's, as its report shows them."""
    report = _results("shared_memory_2x1_xla")
    report["implementations"] = ["lockstep", "gloo"]
    report["cases"] = [each for each in report["cases"] if each["op"] == "all_reduce"]
    report["geometric_means"] = [
        each
        for each in report["geometric_means"]
        if (each["op"], each["implementation"]) == ("all_reduce", "gloo")
    ]
    shown = io.StringIO()
    table.show(report, Console(width=104, file=shown, force_terminal=True))
    return shown.getvalue()


def screen(name: str, mode: str) -> None:
    """What a command has printed, as a terminal shows it."""
    kept = RESULTS / "screens" / f"{name}.ansi"
    text = Text.from_ansi((_bench() if name == "bench" else kept.read_text()).rstrip())
    width = min(MAX_COLUMNS.get(name, 104), max(len(line) for line in text.plain.splitlines()))
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(text, end="")
    bright = [_rgb(colour) for colour in ANSI[mode]]
    theme = TerminalTheme(_rgb(GROUND[mode]), _rgb(INK[mode]), bright, bright)
    drawn = console.export_svg(title=SCREENS[name], theme=theme, unique_id=f"{name}-{mode}")
    # No picture asks another server for a font.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.S)
    drawn = drawn.replace("Fira Code, monospace", "DejaVu Sans Mono, Menlo, Consolas, monospace")
    _write(FIGURES / f"{name}-{mode}.svg", drawn)


def _write(path: Path, drawn: str) -> None:
    path.write_text("".join(f"{line.rstrip()}\n" for line in drawn.splitlines()))


def main() -> None:
    for mode in GROUND:
        for figure in (speed_against_size, between_hosts, against_hosts, solvers, straggler):
            draw(figure, mode)
        for name in SCREENS:
            screen(name, mode)


if __name__ == "__main__":
    main()
