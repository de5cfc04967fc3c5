"""Draws an `ArrayLayout` as an image, with matplotlib."""

from __future__ import annotations

import importlib.util
from typing import Any

from lockstep._errors import InspectError
from lockstep.inspection import drawing, layout
from lockstep.inspection.layout import ArrayLayout

ENDINGS = (".png", ".svg")
_CELL = (1.3, 0.7)
"""Inches of a block."""


def save(drawn: ArrayLayout, path: str) -> None:
    """Raises `InspectError` for another ending and without matplotlib; OSError."""
    if not path.endswith(ENDINGS):
        raise InspectError(f"{path!r} must end in .png or .svg.")
    if importlib.util.find_spec("matplotlib") is None:
        raise InspectError(
            "an image of a sharding needs matplotlib: pip install 'lockstep-jax[inspect]'. "
            "Without it, print() and str() draw with characters."
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    grids = drawn.grids()[: layout.MAX_GRIDS]
    rows, columns = (drawn.shown_along(side) for side in drawn.sides())
    head = drawing.headline(drawn)
    width = max(4.5, _CELL[0] * (len(columns) + 1)) * max(1, len(grids))
    height = _CELL[1] * (len(rows) + 1) + 0.22 * len(head) + 0.3
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("\n".join(head), fontsize=9, ha="left", x=0.01)
    for at, fixed in enumerate(grids):
        _draw(figure.add_subplot(1, len(grids), at + 1), drawn, fixed, rows, columns)
    figure.savefig(path)


def _draw(
    axes: Any,
    drawn: ArrayLayout,
    fixed: dict[int, int],
    rows: list[int | None],
    columns: list[int | None],
) -> None:
    for down, row in enumerate(rows):
        for right, column in enumerate(columns):
            if row is None or column is None:
                axes.text(right + 0.5, down + 0.5, "...", ha="center", va="center")
                continue
            holders = drawn.holders(fixed, row, column)
            colour = drawing.colour(drawn, holders)
            axes.fill([right, right + 1, right + 1, right], [down, down, down + 1, down + 1],
                      facecolor=colour, edgecolor="white", linewidth=2)  # fmt: skip
            text = drawing.label(drawn, holders)
            axes.text(right + 0.5, down + 0.5, text, ha="center", va="center", color="white")
    side_rows, side_columns = drawn.sides()
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([at + 0.5 for at in range(len(columns))], _spans(drawn, side_columns, columns))
    axes.set_yticks([at + 0.5 for at in range(len(rows))], _spans(drawn, side_rows, rows))
    axes.tick_params(length=0, labelsize=8)
    axes.xaxis.tick_top()
    axes.set_title(drawing.title(drawn, fixed), fontsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _spans(drawn: ArrayLayout, dimension: int | None, blocks: list[int | None]) -> list[str]:
    if dimension is None:
        return ["all"]
    spans = drawn.dimensions[dimension]
    return ["..." if block is None else spans.span(block) for block in blocks]
