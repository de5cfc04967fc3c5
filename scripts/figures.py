"""Draws the figures of the documentation from the kept results of benchmarks/results/.

    make figures

Each figure is drawn twice, for light and for dark pages. The same results give the same files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "docs" / "img"
GROUND = {"light": "#ffffff", "dark": "#1e2129"}
INK = {"light": "#1f2933", "dark": "#d5dae1"}
COLOURS = {"lockstep": "#2f9e67", "gloo": "#d9822b", "mpi": "#5b8dd6", "scalapack": "#5b8dd6"}
NAMES = {"lockstep": "Lockstep", "gloo": "gloo", "mpi": "MPICH", "scalapack": "ScaLAPACK"}
MARKS = {"lockstep": "o", "gloo": "s", "mpi": "^"}


def _results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def speed_against_size() -> None:
    """Seconds of five collectives against the bytes of a device: medians and quartiles."""
    cases = _results("shared_memory_2x1")["cases"]
    operations = list(dict.fromkeys(case["op"] for case in cases))
    _, panels = plt.subplots(1, len(operations), figsize=(13, 3.2), sharey=True)
    for panel, operation in zip(panels, operations, strict=True):
        for name in ("lockstep", "mpi", "gloo"):
            found = [c for c in cases if c["op"] == operation]
            sizes = [case["bytes"] for case in found]
            times = [case["results"][name]["seconds"] for case in found]
            low, high = [t["q1"] for t in times], [t["q3"] for t in times]
            panel.fill_between(sizes, low, high, color=COLOURS[name], alpha=0.25, linewidth=0)
            panel.plot(
                sizes,
                [t["median"] for t in times],
                color=COLOURS[name],
                marker=MARKS[name],
                label=NAMES[name],
            )
        panel.set(xscale="log", yscale="log", title=operation.replace("_", "-"))
        panel.set_xticks([2**10, 2**16, 2**20, 2**24], ["1 KiB", "64 KiB", "1 MiB", "16 MiB"])
        panel.tick_params(axis="x", rotation=40, which="major")
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("seconds of one call")
    panels[0].legend(frameon=False)


def between_hosts() -> None:
    """Seconds of two collectives between two hosts on a link of 1 Gbit/s."""
    _, panels = plt.subplots(1, 4, figsize=(13, 3.2), sharey=True)
    layouts = [("2x1", "1 device each"), ("2x4", "4 devices each")]
    for row, (layout, words) in enumerate(layouts):
        results = _results(f"between_hosts_1gbit_{layout}")
        for column, operation in enumerate(("all-reduce", "all-gather")):
            panel = panels[2 * row + column]
            for key, name in (("engine", "lockstep"), ("gloo", "gloo")):
                found = [each for each in results[key] if each["op"] == operation]
                panel.plot(
                    [each["bytes"] for each in found],
                    [each["seconds"] for each in found],
                    color=COLOURS[name],
                    marker=MARKS[name],
                    label=NAMES[name],
                )
            panel.set(xscale="log", yscale="log", title=f"{operation}, {words}")
            panel.set_xticks([2**10, 2**16, 2**20, 2**24], ["1 KiB", "64 KiB", "1 MiB", "16 MiB"])
            panel.tick_params(axis="x", rotation=40, which="major")
            panel.minorticks_off()
            panel.grid(alpha=0.3)
    panels[0].set_ylabel("seconds of one call")
    panels[0].legend(frameon=False)


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
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line.rstrip()}\n" for line in lines))


def main() -> None:
    for figure in (speed_against_size, between_hosts, solvers):
        for mode in GROUND:
            draw(figure, mode)


if __name__ == "__main__":
    main()
