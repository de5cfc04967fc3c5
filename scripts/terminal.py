"""Pictures of terminals: what commands have printed, as `scripts/screens.py` has kept it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from lockstep.bench import table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "docs" / "img"
GROUND = {"light": "#ffffff", "dark": "#1e2129"}
INK = {"light": "#1f2933", "dark": "#d5dae1"}
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
"""The columns of a screen; lines are folded at 104 otherwise."""
SCREENS = {
    "bench": "lockstep bench --ops all_reduce --sizes 1KiB,64KiB,1MiB,16MiB",
    "top": "lockstep top",
    "summary": "lockstep report --summary",
    "inspect": "lockstep inspect -n 16 -d 4 inspect_step.py:train_step",
    "show_sharding": "lockstep.show_sharding(x)",
}


def results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def write(path: Path, drawn: str) -> None:
    path.write_text("".join(f"{line.rstrip()}\n" for line in drawn.splitlines()))


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _bench() -> str:
    """The all-reduces of a run of `lockstep bench`, beside gloo's, as its report shows them."""
    report = results("shared_memory_2x1_xla")
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
    write(FIGURES / f"{name}-{mode}.svg", drawn)
