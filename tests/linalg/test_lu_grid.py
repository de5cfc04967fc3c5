"""The LU factorization over rows and columns of devices: `solve` and what is built on it."""

from __future__ import annotations

import dataclasses
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
from linalg.grids import SENT
from linalg.matrices import (
    assert_close,
    assert_gradient,
    full,
    general,
    mesh,
    put,
    with_and_without_kernels,
)
from linalg.test_general import assert_solved_as_by_lapack, hard_matrices
from lockstep.linalg import _column_moves, _cost_model, _general, _grid_model, _posdef
from lockstep.linalg._layout import Grid
from lockstep.linalg._posdef import Plan
from lockstep.linalg._validation import Placed


@with_and_without_kernels
@grids.each_grid
@pytest.mark.usefixtures("kernels")
def test_solutions_inverses_and_determinants(
    shape: tuple[int, ...],
    spec: P,
    grid: tuple[int, int, int],
    n: int,
    dtype: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = grids.lu(monkeypatch, *grid)
    a, b = general(n, dtype), full((n, 3), dtype)
    sharded = put(a, mesh(shape), spec)
    x, status = la.solve(sharded, b, return_status=True)
    assert_close(x, np.linalg.solve(a, b), 1000)
    assert int(status) == 0
    assert_close(la.solve(sharded, b, transposed=True), np.linalg.solve(a.T, b), 1000)
    inverse = la.inv(sharded)
    assert_close(inverse, np.linalg.inv(a), 1000)
    assert inverse.sharding.is_equivalent_to(sharded.sharding, 2)
    for got, wanted in zip(la.slogdet(sharded), np.linalg.slogdet(a), strict=True):
        assert_close(got, wanted, 1000)
    assert {(x.rows, x.columns) for x in taken} == {grid[:2]}


@pytest.mark.full
def test_hard_matrices_as_lapack(monkeypatch: pytest.MonkeyPatch) -> None:
    """One grid's column holds all of the first pivots in one of them: all other columns move."""
    n = 48
    grids.lu(monkeypatch, 2, 2, 4)
    weights = 10.0 ** (-6 * ((np.arange(n) // (n // 4) + 1) % 2))
    for a in [*hard_matrices(n), full((n, n), np.float64) * weights]:
        assert_solved_as_by_lapack(a, mesh((4,)))


@pytest.mark.full
def test_singular_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    grids.lu(monkeypatch, 2, 2, 3)
    a, b = full((24, 24), np.float64), np.ones(24)
    a[9] = 0
    sharded = put(a, mesh((4,)), P("x"))
    x, status = la.solve(sharded, b, return_status=True)
    assert int(status) == 10
    assert np.isnan(np.asarray(x)).all()
    assert float(la.det(sharded)) == 0
    for empty in (np.zeros((24, 24)), np.where(np.eye(24, k=3), np.nan, a)):
        assert int(la.solve(put(empty, mesh((4,)), P("x")), b, return_status=True)[1]) > 0


@sample(
    ("shape", "grid", "n", "dtype"),
    [((4,), (2, 2, 3), 48, np.float64), ((2, 4), (2, 4, 2), 64, np.complex64)],
    0,
)
def test_factors_of_a_matrix_without_padding(
    shape: tuple[int, ...],
    grid: tuple[int, int, int],
    n: int,
    dtype: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = grids.lu(monkeypatch, *grid)
    a, b = general(n, dtype), full((n, 2), dtype)
    sharded = put(a, mesh(shape), P("x"))
    p, lower, upper = (np.asarray(x) for x in la.lu(sharded))
    assert_close(p @ lower @ upper, a, 1000)
    np.testing.assert_array_equal(np.tril(lower), lower)
    assert np.abs(lower).max() < 10
    pair = la.lu_factor(sharded)
    assert_close(la.lu_solve(pair, b), np.linalg.solve(a, b), 1000)
    assert_close(la.lu_solve(pair, b, 2), np.linalg.solve(a.conj().T, b), 1000)
    assert_close(
        scipy.linalg.lu_solve((np.asarray(pair[0]), np.asarray(pair[1])), b),
        la.lu_solve(pair, b),
        1000,
    )
    assert {(x.rows, x.columns) for x in taken} == {grid[:2]}


@pytest.mark.full
def test_factors_of_singular_and_of_padded_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """With padding they are on the line: a tournament may take its columns if others are zero."""
    taken = grids.lu(monkeypatch, 2, 2, 3)
    a = full((24, 24), np.float64)
    a[:, 9] = 0
    (packed, pivots), status = la.lu_factor(put(a, mesh((4,)), P("x")), return_status=True)
    assert int(status) == 10
    assert np.isfinite(np.asarray(packed)).all()
    assert int(pivots.max()) < 24
    assert taken.pop()
    a = full((23, 23), np.float64)
    p, lower, upper = (np.asarray(x) for x in la.lu(put(a, mesh((4,)), P())))
    assert_close(p @ lower @ upper, a, 1000)
    assert not taken


@pytest.mark.full
def test_gradients_and_a_donated_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = grids.lu(monkeypatch, 2, 2, 2)
    over, n = mesh((4,)), 16
    a, b = general(n, np.float64), full((n,), np.float64)

    def ours(a: Any, b: Any) -> Any:
        where = {"mesh": over, "in_specs": P("x")}
        x = la.solve(a, b, mesh=over, in_specs=(P("x"), P()))
        return jnp.sum(x**3) + la.slogdet(a, **where)[1] + jnp.sum(la.inv(a, **where) ** 2)

    def alone(a: Any, b: Any) -> Any:
        rest = jnp.linalg.slogdet(a)[1] + jnp.sum(jnp.linalg.inv(a) ** 2)
        return jnp.sum(jnp.linalg.solve(a, b) ** 3) + rest

    tangents = full((n, n), np.float64, 1), full((n,), np.float64, 2)
    assert_gradient(ours, alone, (put(a, over, P("x")), put(b, over, P())), tangents)
    assert taken
    given = put(a, over, P("x"))
    assert_close(la.solve(given, b, donate=True), np.linalg.solve(a, b), 1000)
    assert given.is_deleted()


@sample("seed", range(8), 2)
def test_moves_empty_the_places_of_a_superstep_and_keep_columns_level(seed: int) -> None:
    rng = np.random.default_rng(seed)
    grid, rows, (top, end) = Grid(2, 4, 1), 6, (2, 4)
    free = np.arange(8 * rows).reshape(8, rows)[:, top:]
    free = free[np.arange(8) % 4 == 1] if seed % 2 else free  # of one column of the grid only
    won = rng.permutation(free.ravel())[: 8 * (end - top)]
    if len(won) < 16:
        rest = np.setdiff1d(np.arange(8 * rows).reshape(8, rows)[:, top:], won)
        won = np.concatenate([won, rng.permutation(rest)[: 16 - len(won)]])
    found = _column_moves.find(jnp.asarray(won, jnp.int32), grid, rows, top, end)
    slots, numbers = (np.asarray(x) for x in found.winners[:2])
    assert sorted(numbers[numbers < 16]) == list(range(16))
    np.testing.assert_array_equal(won[numbers[numbers < 16]], slots[numbers < 16])
    assert (grid.column_of(slots, rows) == np.arange(4)[:, None])[numbers < 16].all()
    order = jnp.arange(8 * rows, dtype=jnp.int32)
    first = np.arange(8 * rows).reshape(8, rows)[:, top:end].ravel()
    after = _column_moves.reordered(order, jnp.asarray(won), found, jnp.asarray(first))
    assert sorted(np.asarray(after)) == list(range(8 * rows))
    np.testing.assert_array_equal(np.asarray(after)[first], won)
    for listed, stays in ((found.within, True), (found.between, False)):
        slots, targets = (np.asarray(x) for x in listed[:2])
        used = np.arange(slots.shape[1]) < np.asarray(listed.counts)[:, None]
        assert ((slots < _column_moves.NONE) == used).all()
        assert (grid.column_of(slots, rows) == np.arange(4)[:, None])[used].all()
        assert ((grid.column_of(targets, rows) == np.arange(4)[:, None]) == stays)[used].all()


def test_a_grid_is_taken_for_many_devices_and_not_for_few() -> None:
    for devices, taken in ((2, False), (4, False), (64, True), (256, True), (1024, True)):
        tile = _cost_model.lu_tile(65536, devices, 65536 // devices, "cpu")
        grid = _grid_model.lu_grid(65536, devices, tile, None, "cpu")
        assert (grid is not None) == taken


@pytest.mark.full
def test_what_four_devices_send_is_what_the_model_says() -> None:
    n, panels = 64, 4
    placed = Placed(mesh((4,)), (("x",), ()))
    plan = dataclasses.replace(Plan.of(n, placed, n // 4 // panels, False), grid=Grid(2, 2, 1))
    a = jax.ShapeDtypeStruct((n, n), "float64", sharding=placed.sharding)
    slots = jax.eval_shape(lambda a: _posdef.to_slots(a, plan, None), a)
    there = jax.sharding.NamedSharding(placed.mesh, plan.slots)
    slots = jax.ShapeDtypeStruct(slots.shape, slots.dtype, sharding=there)
    text = _general.factor_slots.lower(slots, plan).compile().as_text()
    _, size = SENT(text, 4)
    model = _grid_model.lu_grid_numbers(n, 2, 2, panels)
    # The devices have fewer columns of the last panels than a tournament asks for.
    assert 0.8 * model < size / 8 < model
