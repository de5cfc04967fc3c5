"""What tests of factorizations over rows and columns of devices share."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from lanes import sample
from lockstep.linalg import _cholesky_grid, _grid_model, _lu_grid, _tournament
from lockstep.linalg._grid_model import GridShape
from lockstep.linalg._layout import Grid, RowMap

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "linalg_grids.py"
SENT = runpy.run_path(str(BENCHMARK))["sent"]


each_grid = sample(
    ("shape", "spec", "grid", "n", "dtype"),
    [
        ((4,), P("x"), (2, 2, 3), 40, np.float64),
        ((2, 4), P("x", "y"), (2, 4, 2), 64, np.complex64),
        ((2, 4), P(), (4, 2, 1), 37, np.complex128),
        ((4, 2), P(None, "y"), (2, 4, 100), 150, np.float32),
        ((6,), P(), (2, 3, 5), 131, np.complex64),
        ((2, 2, 2), P("z", "x"), (4, 2, 2), 90, np.float64),
        ((8,), P(), (2, 4, 1), 3, np.float32),
    ],
    0,
)
"""A mesh, how a matrix is sharded over it, the grid that is taken, and the matrix."""


def cholesky(monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, panel: int) -> list[Grid]:
    shape = GridShape(rows, columns, panel)
    return _take(monkeypatch, _cholesky_grid, "cholesky_grid", shape)


def lu(monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, panel: int) -> list[Grid]:
    monkeypatch.setattr(_tournament, "MAX_INNER", 4)  # several tournaments in each panel
    return _take(monkeypatch, _lu_grid, "lu_grid", GridShape(rows, columns, panel))


def _take(
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
