"""eigh and syevd: residuals and orthogonality as LAPACK's, over matrices and meshes."""

from __future__ import annotations

import functools
from typing import Any

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
    hermitian,
    mesh,
    put,
    with_spectrum,
)
from lockstep.linalg import _back_transformation, _cpu_kernels, _grid_model, _tridiagonalize
from lockstep.linalg._layout import Grid, RowMap

N = 96
PLACE = np.arange(N)
MATRICES = {
    "random": hermitian(N, np.float64),
    "identity": np.eye(N),
    "zero": np.zeros((N, N)),
    "clusters": with_spectrum(np.r_[np.ones(N // 2), 2 + 1e-14 * PLACE[: N // 2]], np.float64),
    "condition 1e12": with_spectrum(np.logspace(0, -12, N), np.float64),
    "rank 7": with_spectrum(np.r_[np.zeros(N - 7), PLACE[:7]], np.float64),
    "graded": hermitian(N, np.float64) * np.outer(*[np.logspace(0, -8, N)] * 2),
    "hilbert": 1 / (PLACE[:, None] + PLACE + 1.0),
    "wilkinson": np.diag(np.abs(PLACE - N / 2)) + np.eye(N, k=1) + np.eye(N, k=-1),
    "huge": 1e150 * hermitian(N, np.float64),
    "tiny": 1e-150 * hermitian(N, np.float64),
    "near the largest numbers": 5e307 * with_spectrum(np.linspace(-1, 1, N), np.float64),
    "near the smallest numbers": 1e-302 * with_spectrum(np.linspace(-1, 1, N), np.float64),
}


def assert_decomposed(a: np.ndarray, values: Any, vectors: Any, factor: float = 10) -> None:
    values, vectors = np.asarray(values), np.asarray(vectors)
    wide = a.astype(np.result_type(a.dtype, np.float64))
    norm = max(np.abs(np.linalg.eigvalsh(wide)).max(), 1e-300)
    limit = factor * np.sqrt(len(a)) * eps(a.dtype)
    assert np.abs(wide @ vectors - vectors * values).max() <= limit * norm
    identity = np.eye(vectors.shape[1])
    assert np.abs(vectors.conj().T.astype(wide.dtype) @ vectors - identity).max() <= limit
    assert (np.diff(values) >= 0).all()


@pytest.fixture(scope="module", params=["kernels", in_full("plain")])
def decompose(request: Any) -> Any:
    """With the engine's kernels, and in plain JAX; several chunks and blocks of everything."""
    over = mesh((2,))
    run = jax.jit(
        lambda a: la.eigh(a, mesh=over, in_specs=P("x"), method="distributed"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tridiagonalize, "CHUNK", 24)
        patch.setattr(_back_transformation, "WIDTH", 48)
        if request.param == "plain":
            patch.setattr(_cpu_kernels, "available", lambda platform: False)
        else:
            assert _cpu_kernels.available("cpu")
        yield lambda a: run(put(a, over, P("x")))


@pytest.mark.parametrize("name", list(MATRICES))
def test_accuracy(name: str, decompose: Any) -> None:
    a = MATRICES[name]
    assert_decomposed(a, *decompose(a))


@sample("dtype", [np.float32, np.complex64, np.complex128], 1)
@sample("decompose", ["kernels", "plain"], 0, indirect=True)
def test_dtypes(dtype: Any, decompose: Any) -> None:
    for a in (hermitian(64, dtype), with_spectrum(np.repeat([1.0, 2, 3, 4], 16), dtype)):
        values, vectors = decompose(a)
        assert_decomposed(a, values, vectors)
        assert (values.dtype, vectors.dtype) == (np.real(a).dtype, dtype)


@sample(
    ("shape", "spec", "n"),
    [((3,), P(), 1), ((4,), P(), 37), ((2, 2), P("y", "x"), 70), ((2, 2), P(None, "x"), 64)],
    2,
)
def test_shardings_and_sizes(shape: tuple[int, ...], spec: P, n: int) -> None:
    a, over = hermitian(n, np.float64), mesh(shape)
    sharded = put(np.where(np.tri(n, dtype=bool), a, 1e6), over, spec)  # only the lower one is read
    values, vectors = la.eigh(sharded, lower=True, method="distributed")
    assert_decomposed(a, values, vectors)
    assert vectors.sharding.is_equivalent_to(sharded.sharding, 2)
    assert values.sharding.is_fully_replicated


def test_values_only_of_tiny_numbers() -> None:
    a, over = hermitian(37, np.complex64), mesh((2, 2))
    lower = np.where(np.tri(37, dtype=bool), 1e-30 * a, np.nan)
    found = la.eigh(
        put(lower, over, P()),
        lower=True,
        eigvals_only=True,
        subset_by_index=(5, 17),
        method="distributed",
    )
    assert_close(1e30 * found, np.linalg.eigvalsh(a)[5:18], 10)


@pytest.mark.full
def test_upper_triangle_values_only_and_subset() -> None:
    a, over = 1e-200 * hermitian(80, np.float64), mesh((4,))
    sharded = put(np.where(np.tri(80, dtype=bool).T, a, np.nan), over, P("x"))
    wanted = np.linalg.eigvalsh(1e200 * a)
    for method in ("distributed", "replicated"):
        options = {"lower": False, "method": method}
        assert_close(1e200 * la.eigh(sharded, eigvals_only=True, **options), wanted)
        values, vectors = la.eigh(sharded, subset_by_index=(3, 12), **options)
        assert_close(1e200 * values, wanted[3:13])
        assert vectors.shape == (80, 10)
        assert_decomposed(a, values, vectors)


@pytest.mark.full
@sample(
    ("grid", "n", "subset", "dtype"),
    [
        ((2, 2), 96, None, np.complex128),
        ((2, 4), 70, (3, 12), np.float64),
        ((4, 2), 64, (0, 6), np.float32),
        ((3, 2), 41, None, np.complex64),
    ],
    1,
)
def test_the_way_back_over_a_grid(
    grid: tuple[int, int],
    n: int,
    subset: tuple[int, int] | None,
    dtype: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = Grid(*grid, 1)
    monkeypatch.setattr(_grid_model, "back_transformation_grid", lambda *_: taken)
    monkeypatch.setattr(_back_transformation, "WIDTH", 24)
    jax.clear_caches()
    a, over = hermitian(n, dtype), mesh((grid[0] * grid[1],))
    sharded = put(a, over, P("x") if n % over.size == 0 else P())
    values, vectors = la.eigh(sharded, method="distributed", subset_by_index=subset)
    assert_decomposed(a, values, vectors)


def test_the_way_back_sends_what_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    n, over = 64, mesh((4,))
    layout, width = RowMap.cyclic(n, 4, 4), 16

    def numbers(grid: Grid | None) -> float:
        def body(a: jax.Array) -> jax.Array:
            q = _back_transformation.Reflectors(a, jnp.ones(n))
            return _back_transformation.apply(q, a.reshape(-1, n), layout, ("x",), grid)

        run = jax.shard_map(body, mesh=over, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        there = NamedSharding(over, P("x"))
        a = jax.ShapeDtypeStruct((n, 4, n // 4), "float64", sharding=there)
        return SENT(jax.jit(run).lower(a).compile().as_text(), 4)[1] / 8

    monkeypatch.setattr(_back_transformation, "WIDTH", width)
    gram = 2 * n * width * 3 / 4
    assert numbers(None) == _grid_model.back_numbers(n, n, 4, 1) + gram
    assert numbers(Grid(2, 2, 1)) == _grid_model.back_numbers(n, n, 2, 2) + gram


def test_a_grid_is_taken_for_the_way_back_of_many_devices_and_not_of_few() -> None:
    for devices, taken in ((2, False), (4, False), (64, True), (67, False), (1024, True)):
        grid = _grid_model.back_transformation_grid(16384, 16384, devices, "cpu")
        assert (grid is not None) == taken


def test_jaxmg_call_as_it_is() -> None:
    over, a = mesh((4,)), hermitian(24, np.float32)
    sharded = put(a, over, P("x", None))
    specs = P("x", None)
    values, vectors = la.syevd(sharded, 256, over, specs, return_eigenvectors=True)
    assert_decomposed(a, values, vectors)
    values, status = la.syevd(sharded, 256, over, (specs,), False, return_status=True, pad=True)
    assert_close(values, np.linalg.eigvalsh(a))
    assert int(status) == 0
    _, _, status = la.syevd(sharded * np.nan, 256, over, specs, return_status=True)
    assert int(status) == 1


def test_derivatives() -> None:
    n, over = 16, mesh((4,))
    a, weights = hermitian(n, np.complex128), full((n, n), np.float64)
    da = hermitian(n, np.complex128, 1)

    def of(eigh: Any, eigvals: Any) -> Any:
        def loss(a: Any) -> Any:
            values, vectors = eigh(a)
            return jnp.sum(jnp.abs(vectors) ** 2 * weights) + jnp.sum(values**3 + eigvals(a))

        return loss

    where = {"mesh": over, "in_specs": P("x")}
    ours = of(lambda a: la.eigh(a, **where), lambda a: la.eigh(a, eigvals_only=True, **where))
    alone = of(jnp.linalg.eigh, jnp.linalg.eigvalsh)

    def of_hermitian(loss: Any) -> Any:
        return lambda a: loss((a + a.conj().T) / 2)

    sharded = put(a, over, P("x"))
    assert_gradient(of_hermitian(ours), of_hermitian(alone), (sharded,), (da,))


def test_errors() -> None:
    a = np.eye(4)
    with pytest.raises(ValueError, match=r"subset_by_index is \(2, 4\); expected .* < 4"):
        la.eigh(a, subset_by_index=(2, 4))
    with pytest.raises(ValueError, match="method is 'fast'; expected 'distributed' or 'replic"):
        la.eigh(a, method="fast")
    with pytest.raises(TypeError, match="syevd: unknown argument tiles"):
        la.syevd(a, tiles=3)
    with pytest.raises(NotImplementedError, match="needs all: leave subset_by_index out"):
        jax.grad(lambda a: la.eigh(a, subset_by_index=(0, 1))[1].sum())(jnp.asarray(a))


@pytest.mark.full
def test_memory_is_a_few_shares() -> None:
    """The compiled program's own figure for one of four devices: a few shares of the matrix."""
    n, over = 1024, mesh((4,))
    a = jax.ShapeDtypeStruct((n, n), np.float64, sharding=put(np.eye(4), over, P("x")).sharding)
    for values_only, most in ((False, 4), (True, 3.5)):
        options = {"eigvals_only": values_only, "mesh": over, "in_specs": P("x")}
        run = jax.jit(functools.partial(la.eigh, **options))
        memory = run.lower(a).compile().memory_analysis()
        assert memory is not None
        share = n * n * 8 // 4
        assert memory.temp_size_in_bytes <= most * share, memory.temp_size_in_bytes / share
