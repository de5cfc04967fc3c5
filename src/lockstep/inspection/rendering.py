"""Parts of rich, on a terminal, as text and as HTML."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType

WIDTH_WITHOUT_TERMINAL = 140
_HTML = '<pre style="line-height:1.2;font-family:monospace">{code}</pre>'


NARROW = 120
"""Below so many columns the wide table of collectives folds in the middle of words."""


def is_narrow() -> bool:
    """Whether the terminal has too few columns for wide tables; False where there is none."""
    console = Console()
    return console.is_terminal and console.width < NARROW


def show(parts: Iterable[RenderableType]) -> None:
    """Prints the parts."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH_WITHOUT_TERMINAL)
    for part in parts:
        console.print(part)


def _to_memory() -> Console:
    # In a notebook rich would display what is only to be returned: it is told that it is in none.
    return Console(
        file=io.StringIO(),
        record=True,
        highlight=False,
        width=WIDTH_WITHOUT_TERMINAL,
        force_jupyter=False,
        color_system=None,  # kernels of notebooks set FORCE_COLOR; HTML has the colours still
    )


def as_text(parts: Iterable[RenderableType]) -> str:
    """The parts without colours."""
    console = _to_memory()
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def as_html(parts: Iterable[RenderableType]) -> str:
    """The parts with colours, for a notebook."""
    console = _to_memory()
    for part in parts:
        console.print(part)
    return console.export_html(code_format=_HTML, inline_styles=True)
