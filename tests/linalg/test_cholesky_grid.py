"""The Cholesky factorization over rows and columns of devices, and when it is chosen."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import sample
from linalg import grids
from linalg.grids import BENCHMARK, SENT
from linalg.matrices import (
    assert_close,
    assert_gradient,
    full,
    mesh,
    positive,
    put,
    with_and_without_kernels,
)
from lockstep.linalg import _cost_model, _grid_model, _posdef
from lockstep.linalg._grid_model import GridShape
from lockstep.linalg._layout import Grid, RowMap
from lockstep.linalg._posdef import Plan
from lockstep.linalg._validation import Placed


@with_and_without_kernels
@grids.each_grid
@pytest.mark.usefixtures("kernels")
def test_solutions_and_factors(
    shape: tuple[int, ...],
    spec: P,
    grid: tuple[int, int, int],
    n: int,
    dtype: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = grids.cholesky(monkeypatch, *grid)
    a, b = positive(n, dtype), full((n, 3), dtype)
    sharded = put(a, mesh(shape), spec)
    x, logdet, status = la.potrs(sharded, b, return_status=True, return_logdet=True)
    assert_close(x, np.linalg.solve(a, b))
    assert_close(logdet, np.linalg.slogdet(a)[1])
    assert int(status) == 0
    assert_close(la.potrs(sharded, b), np.linalg.solve(a, b))
    low = la.cholesky(sharded, True)
    assert_close(low, scipy.linalg.cholesky(a, lower=True))
    assert low.sharding.is_equivalent_to(sharded.sharding, 2)
    assert {(x.rows, x.columns) for x in taken} == {grid[:2]}


@pytest.mark.full
@sample("order", [1, 40, 9], 2)
def test_not_positive_definite(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    grids.cholesky(monkeypatch, 2, 2, 4)
    a = positive(40, np.float64)
    a[order - 1, order - 1] = -1
    a[order:, order:] *= -1  # later minors fail too; the first counts
    sharded = put(a, mesh((4,)), P("x"))
    x, status = la.potrs(sharded, np.ones(40), return_status=True)
    assert int(status) == order
    assert np.isnan(np.asarray(x)).all()


@pytest.mark.full
def test_one_triangle_and_a_donated_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    grids.cholesky(monkeypatch, 2, 4, 3)
    a, b = positive(64, np.complex128), full((64, 2), np.complex128)
    rubbish = np.where(np.tri(64, dtype=bool), a, 1e300)
    over = mesh((8,))
    assert_close(la.potrs(put(rubbish, over, P("x")), b, lower=True), np.linalg.solve(a, b))
    given = put(a, over, P("x"))
    assert_close(la.potrs(given, b, donate=True), np.linalg.solve(a, b))
    assert given.is_deleted()


@pytest.mark.full
def test_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = grids.cholesky(monkeypatch, 2, 2, 2)
    over, n = mesh((4,)), 16
    a, b = positive(n, np.float64), full((n,), np.float64)

    def ours(a: Any, b: Any) -> Any:
        a = (a + a.T) / 2
        where = {"mesh": over, "in_specs": P("x")}
        low = la.cholesky(a, True, check=False, **where)
        x = la.potrs(a, b, mesh=over, in_specs=(P("x"), P()))
        return jnp.sum(x**3) + jnp.sum(low**2 * jnp.arange(n))

    def alone(a: Any, b: Any) -> Any:
        a = (a + a.T) / 2
        low = jnp.linalg.cholesky(a)
        return jnp.sum(jnp.linalg.solve(a, b) ** 3) + jnp.sum(low**2 * jnp.arange(n))

    tangents = full((n, n), np.float64, 1), full((n,), np.float64, 2)
    assert_gradient(ours, alone, (put(a, over, P("x")), put(b, over, P())), tangents)
    assert taken


def test_a_grid_is_taken_for_many_devices_and_not_for_few() -> None:
    for devices in (2, 3, 4, 8):
        for n in (256, 2048, 8192, 65536):
            tile = _cost_model.cholesky_tile(n, devices, n // devices, "cpu")
            assert _grid_model.cholesky_grid(n, devices, tile, None, "cpu") is None
    for devices, side in ((64, 8), (256, 16), (1024, 32)):
        tile = _cost_model.cholesky_tile(16384, devices, 16384 // devices, "cpu")
        grid = _grid_model.cholesky_grid(16384, devices, tile, None, "cpu")
        assert grid is not None
        assert (grid.rows, grid.columns) == (side, side)
    assert _grid_model.cholesky_grid(8192, 67, 2, None, "cpu") is None  # a prime number


def test_a_grid_has_each_device_once_and_its_panels_all_rows() -> None:
    grid, layout = Grid(2, 3, 2), RowMap.cyclic(50, 6, 2)
    assert grid.row_groups == [[0, 1, 2], [3, 4, 5]]
    assert grid.column_groups == [[0, 3], [1, 4], [2, 5]]
    assert layout.rows == 10
    assert grid.panels(layout) == [(0, 4), (4, 8), (8, 10)]


def counted(devices: int, layout: str, n: int, panels: int) -> tuple[int, float]:
    """Collectives, and numbers that a device sends, in the compiled factorization of `potrs`."""
    side = math.isqrt(devices)
    placed = Placed(mesh((devices,)), (("x",), ()))
    tile = n // devices // panels
    if layout == "line":
        plan = Plan.of(n, placed, tile, False)
    else:
        plan = Plan.on_grid(n, placed, False, GridShape(side, side, tile))
    a = jax.ShapeDtypeStruct((n, n), "float64", sharding=placed.sharding)
    run = jax.jit(lambda a: _posdef.factor(a, plan, None, False))
    count, size = SENT(run.lower(a).compile().as_text(), devices)
    return count, size / 8


def test_what_four_devices_send_is_what_the_model_says() -> None:
    n, panels = 64, 4
    count, numbers = counted(4, "line", n, panels)
    assert count == 2 * panels - 1
    assert numbers == _cost_model.cholesky_line_numbers(n, 4, panels)
    count, numbers = counted(4, "grid", n, panels)
    assert count == 4 * panels - 3
    # Four supersteps a panel: of a diagonal block 10 of 16 parts are sent, where the model has 8.
    diagonal = (10 - 8) / 16 * n**2 / panels * 3 / 4
    assert numbers == _grid_model.cholesky_grid_numbers(n, 2, 2, panels) + diagonal


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("devices", "most"), [(4, 0.9), (16, 1 / 2), (64, 1 / 3)])
def test_what_a_grid_sends_beside_what_the_line_sends(devices: int, most: float) -> None:
    options = ["--panels", "4", "--devices", str(devices), "--routines", "potrf", "cholesky"]
    command = [sys.executable, str(BENCHMARK), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    lines = [dict(word.split("=") for word in line.split()) for line in done.stdout.splitlines()]
    sent = {(x["routine"], x["split"], x["layout"]): float(x["sent"]) for x in lines}
    # The way in and out of `cholesky` is the same for both.
    for routine, limit in (("potrf", most), ("cholesky", 1.1 * most)):
        for split in ("rows", "both"):
            assert sent[routine, split, "grid"] <= limit * sent[routine, split, "line"]
