"""svd, gesvd, polar: residuals, orthogonality and values as LAPACK's; their derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import full as in_full
from lanes import sample
from linalg.matrices import assert_close, assert_gradient, eps, full, mesh, put
from linalg.test_qr import MATRICES, N
from lockstep.linalg import (
    _arguments,
    _cost_model,
    _cpu_kernels,
    _divide_and_conquer,
    _singular,
    _singular_plan,
)
from lockstep.linalg._singular_plan import Plan


def assert_decomposed(a: np.ndarray, u: Any, s: Any, vh: Any, factor: float = 10) -> None:
    u, s, vh = np.asarray(u), np.asarray(s), np.asarray(vh)
    wide, k = np.result_type(a.dtype, np.float64), len(s)
    wanted = np.linalg.svd(a.astype(wide), compute_uv=False)
    limit = factor * max(a.shape) ** 0.5 * eps(a.dtype)
    norm = max(wanted.max(initial=0), 1e-300)
    assert np.abs((u[:, :k].astype(wide) * s) @ vh[:k] - a).max(initial=0) <= limit * norm
    assert np.abs(s - wanted).max(initial=0) <= limit * norm
    assert (s >= 0).all()
    assert (np.diff(s) <= 0).all()
    for rows in (u.conj().T, vh):
        gram = rows.astype(wide) @ rows.conj().T
        assert np.abs(gram - np.eye(len(rows))).max(initial=0) <= limit


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of GPUs."""
    monkeypatch.setattr(_cpu_kernels, "available", lambda platform: False)


@pytest.mark.usefixtures("no_kernels")
def test_the_iteration_ends_when_all_values_are_one() -> None:
    """With these numbers a step changes little before that."""
    over, worst = mesh((2,)), 0.0
    decompose = jax.jit(lambda a: la.polar(a, mesh=over, in_specs=P("x"), method="distributed")[0])
    for seed in range(12):
        a = np.random.default_rng(seed).standard_normal((2, 2)).astype(np.float32)
        u = np.asarray(decompose(put(a, over, P("x"))))
        worst = max(worst, float(np.abs(u.T @ u - np.eye(2)).max()))
    assert worst <= 20 * eps(np.float32)


@sample("name", list(MATRICES), 0)
@pytest.mark.parametrize("kernels", [True, in_full(False)])
def test_accuracy_of_the_distributed_way(
    name: str, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both decompositions, also of singular matrices; they share most of their programs."""
    monkeypatch.setattr(_cost_model, "qr_tile", lambda columns, devices: N // 4)  # two panels
    monkeypatch.setattr(_divide_and_conquer, "LEAF", 12)
    if not kernels:
        monkeypatch.setattr(_cpu_kernels, "available", lambda platform: False)
    a = MATRICES[name]
    sharded = put(a, mesh((2,)), P("x"))
    found = la.svd(sharded, False, method="distributed")
    u, h = la.polar(sharded, method="distributed")
    assert_decomposed(a, *found, factor=20)
    wanted = np.linalg.svd(a, compute_uv=False)
    values = np.asarray(la.svdvals(sharded, method="distributed"))
    assert np.abs(values - wanted).max() <= 20 * eps(a.dtype) * len(a) ** 0.5 * wanted[0]
    u, h, norm = np.asarray(u), np.asarray(h), max(np.linalg.norm(a, 2), 1e-300)
    limit = 20 * len(a) ** 0.5 * eps(np.float64)
    assert np.abs(u.T @ u - np.eye(len(h))).max() <= limit
    assert np.abs(u @ h - a).max() <= limit * norm
    assert np.abs(h - h.T).max() <= limit * norm
    assert np.linalg.eigvalsh(h / norm).min() >= -limit


@sample(
    ("shape", "spec", "size", "dtype"),
    [
        ((2,), P("x"), (12, 8), np.complex128),
        ((2, 2), P("y", "x"), (8, 14), np.float64),  # wide
        ((3,), P(), (7, 5), np.float32),
        ((2,), P(None, "x"), (6, 6), np.complex64),
        ((4,), P(), (1, 1), np.float64),
        ((4,), P(), (2, 50), np.float32),
    ],
    4,
)
@pytest.mark.parametrize("full_matrices", [True, in_full(False)])
def test_shapes_and_shardings(
    shape: Any, spec: P, size: tuple[int, int], dtype: Any, full_matrices: bool
) -> None:
    a, over = full(size, dtype), mesh(shape)
    sharded = put(a, over, spec)
    u, s, vh = la.svd(sharded, full_matrices)
    assert_decomposed(a, u, s, vh)
    wanted = np.linalg.svd(a, full_matrices)
    assert [x.shape for x in (u, s, vh)] == [x.shape for x in wanted]
    assert [x.dtype for x in (u, s, vh)] == [dtype, np.real(a).dtype, dtype]
    assert_close(la.svdvals(sharded), wanted[1])


@sample(
    ("size", "dtype"),
    [((39, 39), np.complex128), ((40, 24), np.complex64), ((20, 36), np.float32)],
    2,
)
def test_distributed_shapes_and_dtypes(size: tuple[int, int], dtype: Any) -> None:
    """With padding, and one value of zero beside it."""
    a, over = full(size, dtype), mesh((2,))
    a[:, -1] = a[:, 0]
    found = la.svd(put(a, over, P(None)), False, method="distributed")
    assert_decomposed(a, *found, factor=30)


@sample(
    ("devices", "spec", "size", "dtype"),
    [
        (2, P("x"), (24, 24), np.complex128),
        (3, P(), (40, 40), np.float64),  # padding
        (2, P(None, "x"), (70, 70), np.float32),
        (4, P("x"), (64, 20), np.complex64),
        (2, P("x"), (12, 33), np.float64),
        (1, P(), (9, 9), np.float64),
        (2, P(), (1, 1), np.float64),
    ],
    *(0, 1, 4),
)
@sample("kernels", [True, False], 0)
def test_values_alone(
    devices: int,
    spec: P,
    size: tuple[int, int],
    dtype: Any,
    kernels: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By reflections from both sides and, without kernels, by the polar decomposition."""
    if not kernels:
        monkeypatch.setattr(_cpu_kernels, "available", lambda platform: False)
    a, over = full(size, dtype), mesh((devices,))
    a[:, -1] = a[:, 0]  # one value is zero
    s = np.asarray(la.svdvals(put(a, over, spec), method="distributed"))
    assert_close(s, np.linalg.svd(a, compute_uv=False))
    assert (np.diff(s) <= 0).all()
    a[-1, -1] = np.nan
    assert np.isnan(la.svdvals(put(a, over, spec), method="distributed")).all()


@pytest.mark.parametrize("size", [(0, 0), (3, 0), (0, 3)])
def test_no_elements(size: tuple[int, int]) -> None:
    a = put(np.zeros(size), mesh((2,)), P())
    for got, wanted in zip(la.svd(a), np.linalg.svd(np.zeros(size)), strict=True):
        assert_close(got, wanted)
    rows = put(np.zeros((2 * size[0], size[1])), mesh((2,)), P("x"))
    assert np.asarray(la.svd(rows, False)[0]).shape == (2 * size[0], 0)
    assert np.asarray(la.pinv(rows)).shape == (size[1], 2 * size[0])
    assert la.polar(put(np.zeros((size[0], 0)), mesh((2,)), P()))[0].shape == (size[0], 0)


def test_jaxmg_calls() -> None:
    over = jax.make_mesh((2, 1), ("pr", "pc"), devices=jax.devices()[:2])
    specs, k = P("pr", "pc"), 24
    a = np.zeros((48, k), np.float32)
    a[np.arange(k), np.arange(k)] = values = np.linspace(2, 1, k, dtype=np.float32)
    sharded = put(a, over, specs)
    u, s, vh, status = la.gesvd(sharded, 64, mesh=over, matrix_specs=specs, return_status=True)
    assert_decomposed(a, u, s, vh)
    assert int(status) == 0
    u, s = la.gesvd(sharded, 64, over, specs, compute_vh=False, full_matrices=True, pad=True)
    assert u.shape == (48, 48)
    s, vh = la.gesvd(sharded, 64, over, in_specs=specs, compute_u=False)
    np.testing.assert_allclose(s, values, rtol=1e-6)
    assert vh.shape == (k, k)
    s = la.gesvd(sharded, 64, compute_u=False, compute_vh=False)
    np.testing.assert_allclose(s, values, rtol=1e-6)


@pytest.mark.full
@sample("grid", [(2, 1), (1, 2)], 0, 1)
@sample("dtype", [np.float32, np.float64, np.complex64, np.complex128], 0, 1, 2, 3)
def test_jaxmg_polar_case(grid: tuple[int, int], dtype: Any) -> None:
    """Its documented case, 384 x 192 in tiles of 128, and its tolerances."""
    over = jax.make_mesh(grid, ("pr", "pc"), devices=jax.devices()[:2])
    m, n, specs = 384, 192, P("pr", "pc")
    a = full((m, n), dtype)
    a[np.arange(n), np.arange(n)] += 2 * np.sqrt(m)
    sharded = put(a, over, specs)
    u, h, status = la.polar(sharded, 128, mesh=over, matrix_specs=specs, return_status=True)
    limit = 5e-3 if eps(dtype) > 1e-10 else 1e-9
    u, h = np.asarray(u), np.asarray(h)
    np.testing.assert_allclose(u.conj().T @ u, np.eye(n), rtol=limit, atol=limit)
    np.testing.assert_allclose(h, h.conj().T, rtol=limit, atol=limit)
    np.testing.assert_allclose(u @ h, a, rtol=limit, atol=limit)
    assert int(status) == 0


@pytest.mark.full
@pytest.mark.parametrize(("size", "dtype"), [((6, 4), np.complex128), ((4, 6), np.float64)])
def test_derivatives_of_svd(size: tuple[int, int], dtype: Any) -> None:
    over, a, da = mesh((2,)), full(size, dtype), full(size, dtype, 1)
    weights = full((6, 6), np.float64, 2)

    def of(svd: Any) -> Any:
        def loss(a: Any) -> Any:
            u, s, vh = svd(a)
            ends = jnp.abs(u) ** 2 * weights[: u.shape[0], : u.shape[1]]
            return jnp.sum(ends) + jnp.sum(s**3) + jnp.sum(jnp.abs((u * s**2) @ vh) ** 2)

        return loss

    ours = of(lambda a: la.svd(a, False, mesh=over, in_specs=P("x")))
    alone = of(lambda a: jnp.linalg.svd(a, full_matrices=False))
    assert_gradient(ours, alone, (put(a, over, P("x")),), (da,))


def test_derivatives_at_equal_singular_values() -> None:
    """Finite; and correct for a function that does not depend on the basis."""
    over = mesh((2,))

    def square(a: Any) -> Any:
        u, s, vh = la.svd(a, False, mesh=over, in_specs=P("x"))
        return jnp.sum(((u * s) @ vh) ** 2)

    a = put(2 * np.eye(4), over, P("x"))
    np.testing.assert_allclose(jax.jit(jax.grad(square))(a), 4 * np.eye(4), atol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("size", [(6, 4), (4, 4)])
def test_derivatives_of_polar(size: tuple[int, int]) -> None:
    over, a, da = mesh((2,)), full(size, np.complex128), full(size, np.complex128, 1)

    def of(polar: Any) -> Any:
        return lambda a: sum(jnp.sum(jnp.abs(x + 1j) ** 3) for x in polar(a))

    def by_svd(a: Any) -> Any:
        u, s, vh = jnp.linalg.svd(a, full_matrices=False)
        return u @ vh, (vh.conj().T * s) @ vh

    ours, alone = of(lambda a: la.polar(a, mesh=over, in_specs=P("x"))), of(by_svd)
    assert_gradient(ours, alone, (put(a, over, P("x")),), (da,))


def test_errors() -> None:
    a = np.eye(4)
    with pytest.raises(ValueError, match="polar: a is 2 x 4; expected at least as many rows"):
        la.polar(a[:2])
    with pytest.raises(ValueError, match="svd: method is 'fast'; expected one of distributed, "):
        la.svd(a, method="fast")
    with pytest.raises(TypeError, match="gesvd: unknown argument tiles"):
        la.gesvd(a, tiles=3)
    with pytest.raises(NotImplementedError, match=r"this is 2 x 4\. Give full_matrices=False"):
        jax.grad(lambda a: la.svd(a)[0].sum())(jnp.asarray(a)[:2])


@pytest.mark.full
@sample(
    ("size", "method", "dtype"),
    [
        ((24, 24), "distributed", np.float64),
        ((24, 10), "replicated", np.complex64),
        ((10, 24), "replicated", np.float32),
    ],
    0,
)
def test_condition_numbers_in_the_2_norm(
    size: tuple[int, int], method: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_singular_plan, "REPLICATED_BELOW", 0 if method == "distributed" else 256)
    a, over = full(size, dtype), mesh((2,))
    sharded = put(a, over, P("x"))
    for p in (None, 2, -2):
        found = la.cond(sharded) if p is None else la.cond(sharded, p)
        # The least value is off by rounding errors of the largest, condition times its own.
        assert_close(found, np.linalg.cond(a, p), 1000 + 10 * np.linalg.cond(a, 2))


def test_the_condition_number_of_a_singular_matrix_is_infinite() -> None:
    a = put(np.zeros((4, 4)), mesh((2,)), P("x"))
    assert [float(la.cond(a, p)) for p in (None, 2, -2)] == [np.inf] * 3
    one = put(np.diag([3.0, 0, 1, 2]), mesh((2,)), P("x"))
    assert [float(la.cond(one, p)) for p in (2, -2)] == [np.inf, 0]
    assert np.isnan(float(la.cond(put(np.full((4, 4), np.nan), mesh((2,)), P("x")))))


@pytest.mark.full
def test_the_derivative_of_the_condition_number() -> None:
    over, a = mesh((2,)), full((8, 6), np.float64)
    ours = jax.tree_util.Partial(la.cond, mesh=over, in_specs=P("x"))
    tangents = (full((8, 6), np.float64, 1),)
    assert_gradient(ours, jnp.linalg.cond, (put(a, over, P("x")),), tangents)


@pytest.mark.full
@pytest.mark.parametrize(("kernels", "most"), [(True, 1.4), (False, 5.5)])
def test_memory_of_svdvals_beside_the_operand(
    kernels: bool, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trailing matrix; without kernels the iterate, ``q1``, ``q2`` and a Gram matrix."""
    if not kernels:
        monkeypatch.setattr(_cpu_kernels, "available", lambda platform: False)
    n, over = 2048, mesh((2,))
    a, placed = _arguments.matrix("svdvals", put(np.eye(n), over, P("x")), None, None)
    plan = Plan.of(a.shape, placed, False, False, False, 64, "distributed")
    memory = _singular.values.lower(a, plan).compile().memory_analysis()
    share = n * n * 8 / 2
    assert memory is not None
    assert memory.temp_size_in_bytes <= most * share, memory.temp_size_in_bytes / share
