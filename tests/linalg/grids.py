"""What tests of factorizations over rows and columns of devices share."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

from lockstep.linalg import _grid_model
from lockstep.linalg._grid_model import GridShape
from lockstep.linalg._layout import Grid, RowMap

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "linalg_grids.py"
SENT = runpy.run_path(str(BENCHMARK))["sent"]


def take(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, chosen_by: str, shape: GridShape
) -> list[Grid]:
    """Lets the cost model find a grid of this shape; the grids of the factorizations by ``module``
    that are traced. ``chosen_by``: the function of the cost model."""
    grids, factor = [], module.factor

    def watched(a: Any, layout: RowMap, grid: Grid, *how: Any) -> Any:
        grids.append(grid)
        return factor(a, layout, grid, *how)

    monkeypatch.setattr(_grid_model, chosen_by, lambda *_: shape)
    monkeypatch.setattr(module, "factor", watched)
    jax.clear_caches()
    return grids
