"""qr: residual and orthogonality as LAPACK's, over shapes, matrices, meshes and dtypes."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import full as in_full
from lanes import sample
from linalg.grids import SENT
from linalg.matrices import (
    assert_close,
    assert_gradient,
    eps,
    full,
    mesh,
    put,
    with_and_without_kernels,
    with_spectrum,
)
from lockstep.linalg import _arguments, _grid_model, _householder, _qr
from lockstep.linalg._layout import Grid
from lockstep.linalg._qr import QRPlan
from lockstep.linalg._validation import place

N = 48
PLACE = np.arange(N)


def of_condition(condition: float, m: int = N) -> np.ndarray:
    """A matrix with singular values from 1 down to 1 / condition."""
    u, _ = np.linalg.qr(full((m, N), np.float64, 3))
    return u @ with_spectrum(np.logspace(0, -np.log10(condition), N), np.float64)


def kahan(n: int) -> np.ndarray:
    c, s = np.cos(1.2), np.sin(1.2)
    return s ** np.arange(n)[:, None] * (np.eye(n) - c * np.triu(np.ones((n, n)), 1))


MATRICES = {
    "random": full((2 * N, N), np.float64),
    "condition 1e8": of_condition(1e8, 2 * N),
    "condition 1e15": of_condition(1e15, 2 * N),
    "graded": full((N, N), np.float64) * np.logspace(0, -25, N),
    "rank 7": full((N, 7), np.float64) @ full((7, N), np.float64, 1),
    "zero": np.zeros((N, N)),
    "identity": np.eye(N),
    "hilbert": 1 / (PLACE[:, None] + PLACE + 1.0),
    "kahan": kahan(N),
    "clusters": with_spectrum(np.r_[np.ones(N // 2), 2 + 1e-14 * PLACE[: N // 2]], np.float64),
    "huge": 1e150 * full((N, N), np.float64),
    "tiny": 1e-150 * full((N, N), np.float64),
    "its norm overflows": 5e307 * np.linalg.qr(full((N, N), np.float64))[0],
    "near the smallest numbers": 1e-300 * of_condition(1e4),
}


def assert_factored(a: np.ndarray, q: Any, r: Any, factor: float = 10) -> None:
    """``q r`` is ``a``, ``q`` orthonormal and ``r`` triangular, its diagonal not negative."""
    size = np.abs(a).max(initial=0) or 1
    a, q, r = a / size, np.asarray(q), np.asarray(r) / size
    limit = factor * max(a.shape) ** 0.5 * eps(a.dtype)
    wide = np.result_type(a.dtype, np.float64)
    norm = np.abs(a).sum(0).max(initial=0)
    assert np.abs(q.astype(wide) @ r - a).max(initial=0) <= limit * norm
    gram = q.conj().T.astype(wide) @ q
    assert np.abs(gram - np.eye(len(gram))).max(initial=0) <= limit
    assert (np.tril(r, -1) == 0).all()
    assert (np.real(np.diagonal(r)) >= 0).all()


@pytest.fixture(scope="module")
def factored() -> Any:
    """Two panels, over two devices."""
    over = mesh((2,))
    run = jax.jit(lambda a: la.qr(a, 12, mesh=over, in_specs=P("x")))
    return lambda a: run(put(a, over, P("x")))


@sample("name", list(MATRICES), *(3, 4, 5, 7))
def test_accuracy(name: str, factored: Any) -> None:
    a = MATRICES[name]
    assert_factored(a, *factored(a))


@sample(
    ("shape", "spec", "size", "tile", "dtype"),
    [
        ((4,), P("x"), (24, 16), 2, np.complex128),  # rows stay where they are
        ((2,), P(), (37, 21), 6, np.float32),  # padding
        ((2, 2), P("y", "x"), (14, 30), 2, np.float64),  # wide
        ((2, 2), P(None, "x"), (30, 30), None, np.complex64),
        ((4,), P("x"), (400, 8), None, np.float64),  # one panel
        ((3,), P(), (1, 1), None, np.float64),
        ((4,), P(), (2, 7), 1, np.float64),
        ((4,), P(), (7, 2), 3, np.complex128),
    ],
    *(1, 2, 4),
)
def test_shapes_and_shardings(
    shape: tuple[int, ...], spec: P, size: tuple[int, int], tile: int | None, dtype: Any
) -> None:
    a, over = full(size, dtype), mesh(shape)
    sharded = put(a, over, spec)
    q, r = la.qr(sharded, tile)
    assert_factored(a, q, r)
    assert (q.shape, r.shape) == ((size[0], min(size)), (min(size), size[1]))
    assert q.dtype == r.dtype == dtype
    if size[0] == min(size):
        assert q.sharding.is_equivalent_to(sharded.sharding, 2)


def over_grid(monkeypatch: pytest.MonkeyPatch, rows: int, columns: int) -> list[Grid]:
    """Lets the cost model find this grid; those of the factorizations that are traced."""
    grids: list[Any] = []

    def watched(*args: Any) -> Any:
        grids.append(args[-1].grid)
        return reflect(*args)

    reflect = _householder._reflect
    monkeypatch.setattr(_householder, "_reflect", watched)
    monkeypatch.setattr(_grid_model, "qr_grid", lambda *_: Grid(rows, columns, 1))
    jax.clear_caches()
    return grids


@pytest.mark.full
@pytest.mark.parametrize(
    ("grid", "spec", "size", "tile", "dtype"),
    [
        ((2, 2), P("x"), (48, 48), 4, np.complex128),
        ((2, 4), P(), (67, 40), 2, np.float64),  # padding, and a panel that is not full
        ((2, 2), P(None, "x"), (38, 76), 3, np.float32),  # columns beyond the panels
        ((3, 2), P(), (30, 43), 2, np.complex64),
        ((4, 2), P("x"), (96, 32), 1, np.float64),
    ],
)
def test_factors_over_a_grid(
    grid: tuple[int, int],
    spec: P,
    size: tuple[int, int],
    tile: int,
    dtype: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grids = over_grid(monkeypatch, *grid)
    a = full(size, dtype)
    sharded = put(a, mesh((grid[0] * grid[1],)), spec)
    assert_factored(a, *la.qr(sharded, tile))
    assert_factored(a, *la.qr(sharded, tile, mode="complete"))
    assert_close(np.abs(la.qr(sharded, tile, mode="r")), np.abs(np.linalg.qr(a, "r")), 1000)
    b = full((size[0], 2), dtype, 1)
    assert_close(la.lstsq(sharded, b)[0], np.linalg.lstsq(a, b, None)[0], 10000)
    assert Grid(*grid, 1) in grids


@pytest.mark.full
def test_hard_matrices_and_derivatives_over_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    over_grid(monkeypatch, 2, 2)
    over = mesh((4,))
    for name in ("condition 1e15", "graded", "rank 7", "zero", "hilbert", "kahan", "tiny"):
        a = MATRICES[name]
        assert_factored(a, *la.qr(put(a, over, P("x")), 4))

    def of(qr: Any) -> Any:
        def run(a: Any) -> Any:
            q, r = qr(a)
            return jnp.sum(q**3) + jnp.sum(r**2 * jnp.arange(16))

        return run

    def alone(a: Any) -> Any:
        q, r = jnp.linalg.qr(a)
        signs = jnp.sign(jnp.diagonal(r))
        return q * signs, r * signs[:, None]

    a = full((24, 16), np.float64)
    ours = of(lambda a: la.qr(a, 2, mesh=over, in_specs=P("x")))
    assert_gradient(ours, of(alone), (put(a, over, P("x")),), (full(a.shape, np.float64, 1),))


@sample(
    ("devices", "grid", "size", "tile", "name"),
    [
        (4, None, (2 * N, N), 2, "random"),  # groups of two panels
        (4, Grid(2, 2, 1), (N, N), 2, "random"),
        (2, None, (N, N), 1, "rank 7"),
        (4, None, (N, N), 1, "graded"),  # devices send their rows as they are
        (3, None, (N, 2 * N), 3, "wide"),  # a panel that is not full, columns beyond the panels
    ],
    1,
)
def test_the_triangle_alone(
    devices: int, grid: Grid | None, size: tuple[int, int], tile: int, name: str
) -> None:
    """That of a loop over groups of panels is that of the panels one by one."""
    wide = full(size, np.float64)
    a = wide if name == "wide" else MATRICES[name][: size[0]]
    sharded = put(a, mesh((devices,)), P("x"))
    plan = QRPlan.of(a.shape, place("qr", sharded, None, None), tile)
    plan = dataclasses.replace(plan, panels=dataclasses.replace(plan.panels, grid=grid))

    def body(shard: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows, panels = plan.take(shard), plan.panels
        whole = _householder.factor(rows, panels, plan.axes).triangle
        return whole, _householder.triangle(rows, panels, plan.axes)

    rows = P(plan.axes)
    whole, alone = jax.jit(plan.placed.map(body, P("x"), (rows, rows)))(sharded)
    assert plan.panels.steps > _householder.GROUPS
    assert_close(alone, whole, 10)
    r = np.asarray(alone)[plan.panels.triangle.slot_of_row[: min(size)]]
    assert_close(r.T @ r, a.T @ a, 10)


@with_and_without_kernels
@pytest.mark.usefixtures("kernels")
def test_a_triangle_with_a_bad_inverse() -> None:
    """Its product with a basis has a condition for which Cholesky QR is kept. A basis by the
    inverse of a block of the triangle would have a residual of rounding times the condition."""
    k, over = 30, mesh((2,))
    basis = np.linalg.qr(full((200, k), np.float64))[0]
    a = basis @ (np.eye(k) - 0.75 * np.triu(np.ones((k, k)), 1))
    assert 1e6 < np.linalg.cond(a) < 1e8
    q, r = la.qr(put(a, over, P("x")))
    assert_factored(a, q, r)
    x = np.linspace(1, 2, k)
    found = np.asarray(la.least_squares(put(a, over, P("x")), put(a @ x, over, P())))
    assert np.abs(a @ found - a @ x).max() <= 20 * eps(np.float64) * np.linalg.norm(a, 2)


@pytest.mark.full
@pytest.mark.parametrize(("m", "n"), [(64, 64), in_full(128, 64), in_full(64, 96)])
def test_what_is_sent_is_what_the_model_says(
    m: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, tile, steps = mesh((4,)), 4, 4
    a: Any = jax.ShapeDtypeStruct((m, n), "float64", sharding=NamedSharding(over, P("x")))
    plan = _qr.QRPlan.of((m, n), place("qr", a, over, P("x")), tile)

    def numbers(grid: Grid | None) -> float:
        panels = dataclasses.replace(plan.panels, grid=grid)

        def body(a: jax.Array) -> Any:
            factored = _householder.factor(a, panels, ("x",))
            q = _householder.columns_of_q(factored, panels, min(m, n), ("x",))
            return q, factored.triangle

        run = jax.shard_map(body, mesh=over, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        return SENT(jax.jit(run).lower(a).compile().as_text(), 4)[1] / 8

    for grid, rows, columns in ((None, 4, 1), (Grid(2, 2, 1), 2, 2)):
        model = _grid_model.qr_numbers(m, n, steps, rows, columns)
        # Beside these, two counts of each panel: whether it was factored well. And of a tall matrix
        # XLA drops some of what is sent to the grid.
        np.testing.assert_allclose(numbers(grid), model, rtol=0.03)


def test_a_grid_is_taken_for_many_devices_and_not_for_few() -> None:
    for devices, taken in ((2, False), (4, False), (64, True), (67, False), (1024, True)):
        grid = _grid_model.qr_grid(16384, 16384, 32, devices, "cpu")
        assert (grid is not None) == taken


@pytest.mark.parametrize("m", [9, in_full(24)])
def test_modes(m: int) -> None:
    a, over = full((m, 6), np.float64), mesh((3,))
    sharded = put(a, over, P("x"))
    q, r = la.qr(sharded, 2, mode="complete")
    assert (q.shape, r.shape) == ((m, m), (m, 6))
    assert_factored(a, q, r)
    assert_close(la.qr(sharded, 2, mode="r"), np.asarray(r)[:6])
    *_, status = la.qr(sharded * np.nan, 2, return_status=True)
    assert int(status) == 1


@pytest.mark.parametrize("size", [(0, 0), (5, 0), (0, 5)])
def test_no_elements(size: tuple[int, int]) -> None:
    a = put(np.zeros(size), mesh((2,)), P())
    for mode in ("reduced", "complete"):
        q, r = la.qr(a, mode=mode)
        wanted = np.linalg.qr(np.zeros(size), mode=mode)
        assert (q.shape, r.shape) == tuple(x.shape for x in wanted)
        assert_close(q, np.eye(*q.shape))


def test_donation() -> None:
    a, over = full((16, 8), np.float64), mesh((2,))
    given = put(a, over, P("x"))
    assert_factored(a, *la.qr(given))
    assert not given.is_deleted()
    assert_factored(a, *la.qr(given, donate=True))
    assert given.is_deleted()


@pytest.mark.parametrize("dtype", [np.complex128, in_full(np.float64)])
def test_derivatives(dtype: Any) -> None:
    over, a, da = mesh((2,)), full((8, 4), dtype), full((8, 4), dtype, 1)

    def unique(a: Any) -> Any:  # LAPACK's with our signs
        q, r = jnp.linalg.qr(a)
        sign = jnp.sign(jnp.diagonal(r).real)
        return q * sign, r * sign[:, None]

    def of(qr: Any) -> Any:
        return lambda a: sum(jnp.sum(jnp.abs(x + 1j) ** 3) for x in qr(a))

    ours = of(lambda a: la.qr(a, mesh=over, in_specs=P("x")))
    assert_gradient(ours, of(unique), (put(a, over, P("x")),), (da,))


def test_errors() -> None:
    a, numpy_mode = np.eye(4), cast(Any, "complete")
    with pytest.raises(NotImplementedError, match="pivoting=True is not supported"):
        la.qr(a, pivoting=True)
    with pytest.raises(ValueError, match="mode is 'complete'; expected mode= one of reduced, "):
        la.qr(a, numpy_mode)
    with pytest.raises(ValueError, match=r"qr: a has shape \(4,\); expected one matrix"):
        la.qr(a[0])
    with pytest.raises(TypeError, match="qr: unknown argument tiles"):
        la.qr(a, tiles=3)
    with pytest.raises(NotImplementedError, match="this is 2 x 4, mode 'reduced'"):
        jax.grad(lambda a: la.qr(a)[1].sum())(jnp.asarray(a)[:2])


@sample(("mode", "most"), [("reduced", 3), ("r", 3)], 0)
def test_memory_beside_the_operand_and_the_results(mode: str, most: float) -> None:
    """What is left of the matrix, its reflectors, and parts of products."""
    n, over = 1024, mesh((2,))
    given = put(np.eye(n), over, P("x"))
    a, placed = _arguments.matrix("qr", given, None, None)
    plan = QRPlan.of(a.shape, placed, 64)
    memory = _qr._compiled.lower(a, plan, mode).compile().memory_analysis()
    assert memory is not None
    share = n * n * 8 / 2
    assert memory.temp_size_in_bytes <= most * share, memory.temp_size_in_bytes / share
