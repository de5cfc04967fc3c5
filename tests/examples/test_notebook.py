"""The tutorial notebook: run again, it shows what it is shipped with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from notebooks import Notebook, notebook, text_of

FILE = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"
_VARIES = re.compile(r"jax \d+\.\d+\.\d+\S*|^-+$|\[\d] pid.*", re.MULTILINE)


@pytest.mark.full
def test_the_tutorial_shows_what_it_was_shipped_with(tmp_path: Path) -> None:
    import nbformat

    shipped: Any = nbformat.read(FILE, as_version=4)
    cells = [cell for cell in shipped.cells if cell.cell_type == "code"]
    assert len(cells) > 8
    with notebook(tmp_path) as kernel:
        for cell in cells:
            _compare(kernel, cell)


def _compare(kernel: Notebook, cell: Any) -> None:
    found = _VARIES.sub("", kernel.run(cell.source))
    expected = _VARIES.sub("", text_of(cell))
    if cell.source == "%lockstep status":  # its tables have times
        found, expected = (text.partition("process 1 (pid")[0] for text in (found, expected))
        assert "collectives fail: process 1 left the cell by ValueError" in found
    assert found == expected, cell.source
