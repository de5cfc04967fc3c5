"""eigh(a, b): residuals and normalization as SciPy's, over types, matrices, meshes and dtypes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import sample
from linalg.matrices import (
    assert_close,
    eps,
    full,
    hermitian,
    mesh,
    positive,
    put,
    with_and_without_kernels,
    with_spectrum,
)
from lockstep.linalg import _generalized
from lockstep.linalg._posdef import Plan
from lockstep.linalg._validation import Placed


def assert_solved(a: Any, b: Any, values: Any, vectors: Any, kind: int = 1) -> None:
    """Small residuals beside the norms, and vectors of norm 1 in the product of ``b``."""
    values, v = np.asarray(values), np.asarray(vectors)
    wide = np.result_type(a.dtype, np.float64)
    a, b, v = (x.astype(wide) for x in (a, b, v))
    left, right = {1: (a @ v, b @ v), 2: (a @ b @ v, v), 3: (b @ a @ v, v)}[kind]
    norm_a, norm_b = np.linalg.norm(a, 2), np.linalg.norm(b, 2)
    scale = norm_a * (1 if kind == 1 else norm_b) + np.abs(values).max() * norm_b
    limit = 20 * len(a) * eps(vectors.dtype)
    assert np.abs(left - right * values).max() <= limit * scale * np.abs(v).max()
    metric = b if kind < 3 else np.linalg.inv(b)
    identity = np.eye(v.shape[1])
    assert np.abs(v.conj().T @ metric @ v - identity).max() <= limit * np.linalg.cond(b)
    assert (np.diff(values) >= 0).all()


@pytest.mark.parametrize("kind", [1, 2, 3])
@sample("dtype", [np.float32, np.float64, np.complex64, np.complex128], 3)
def test_types_and_dtypes(kind: int, dtype: Any) -> None:
    n, over = 24, mesh((4,))
    a, b = hermitian(n, dtype), positive(n, dtype, 1)
    values, vectors = la.eigh(put(a, over, P("x")), put(b, over, P("x")), type=kind)
    assert_solved(a, b, values, vectors, kind)
    assert (values.dtype, vectors.dtype) == (np.real(a).dtype, dtype)
    assert_close(values, scipy.linalg.eigvalsh(a, b, type=kind))


@sample(
    ("shape", "spec", "n"),
    [
        ((4,), P("x"), 300),  # by the distributed algorithm
        ((3,), P(), 1),
        ((4,), P(), 37),
        ((2, 2), P("y", "x"), 70),
        ((2, 2), P(None, "x"), 64),
    ],
    3,
)
def test_shardings_and_sizes(shape: tuple[int, ...], spec: P, n: int) -> None:
    a, b, over = hermitian(n, np.float64), positive(n, np.float64, 1), mesh(shape)
    sharded = put(a, over, spec)
    values, vectors = la.eigh(sharded, put(b, over, spec))
    assert_solved(a, b, values, vectors)
    assert vectors.sharding.is_equivalent_to(sharded.sharding, 2)
    assert values.sharding.is_fully_replicated


@with_and_without_kernels
@sample(
    ("devices", "n", "tile", "dtype"),
    [(4, 128, 2, np.complex64), (3, 70, 3, np.float64), (2, 37, 2, np.complex128)],
    2,
)
@pytest.mark.usefixtures("kernels")
def test_the_reduction_of_a_matrix_whose_columns_are_dealt(
    devices: int, n: int, tile: int, dtype: Any
) -> None:
    """Over several stages, with and without padding; only one triangle of each matrix is read."""
    over = mesh((devices,))
    a, low = hermitian(n, dtype), np.linalg.cholesky(positive(n, dtype, 1))
    spec = P() if n % devices else P("x")
    read = put(np.tril(a) + np.triu(full((n, n), dtype), 1), over, spec)
    plan = Plan.of(n, Placed(over, (("x",) * len(spec), ())), tile, True)
    found = np.asarray(_generalized._congruence(put(low, over, spec), read, plan))
    assert_close(found, np.linalg.solve(low, np.linalg.solve(low, a).conj().T), 1000)
    np.testing.assert_array_equal(found, found.conj().T)


@sample(("shape", "spec"), [((1,), P("x")), ((1, 2), P("x", "y")), ((2, 1), P("x", "y"))], 0)
def test_axes_of_size_1(shape: tuple[int, ...], spec: P) -> None:
    """The arrays on the way have shardings without such an axis, and `a` has one with it."""
    a, b, over = hermitian(12, np.float64), positive(12, np.float64, 1), mesh(shape)
    values, vectors = la.eigh(put(a, over, spec), put(b, over, spec))
    assert_solved(a, b, values, vectors)


def test_one_triangle_and_a_subset() -> None:
    n, over = 40, mesh((4,))
    a, b = hermitian(n, np.float64), positive(n, np.float64, 1)
    wanted = scipy.linalg.eigvalsh(a, b)
    lower = np.tri(n, dtype=bool)
    for keep, is_lower in ((lower, True), (lower.T, False)):
        pair = (put(np.where(keep, x, 1e6), over, P("x")) for x in (a, b))
        values, vectors = la.eigh(*pair, lower=is_lower, subset_by_index=(3, 12))
        assert_close(values, wanted[3:13])
        assert_solved(a, b, values, vectors)
        assert vectors.shape == (n, 10)
    sharded = put(a, over, P("x")), put(b, over, P("x"))
    assert_close(la.eigvalsh(*sharded, subset_by_index=(0, 3)), wanted[:4])
    assert_close(la.eigvalsh(sharded[0]), np.linalg.eigvalsh(a))


@pytest.mark.full
def test_ill_conditioned_pairs() -> None:
    """The error grows with the condition of ``b``, as that of LAPACK's sygvd does."""
    n, over = 48, mesh((4,))
    a = hermitian(n, np.float64)
    for b in (
        with_spectrum(np.logspace(0, -8, n), np.float64),
        positive(n, np.float64) * np.outer(*[np.logspace(0, -4, n)] * 2),
        1e100 * positive(n, np.float64),
    ):
        values, vectors = la.eigh(put(a, over, P("x")), put(b, over, P("x")))
        assert_solved(a, b, values, vectors)


@sample("n", [0, 1], 0)
def test_the_smallest_matrices(n: int) -> None:
    a, b = np.full((n, n), 6.0), np.full((n, n), 4.0)
    over = mesh((4,))
    values, vectors = la.eigh(put(a, over, P()), put(b, over, P()))
    np.testing.assert_allclose(values, np.full(n, 1.5))
    np.testing.assert_allclose(np.abs(vectors), np.full((n, n), 0.5))


def test_derivatives() -> None:
    n, over = 8, mesh((4,))
    a, b, weights = hermitian(n, np.float64), positive(n, np.float64), full((n, n), np.float64)

    def ours(a: Any, b: Any) -> Any:
        pair = (a + a.T) / 2, (b + b.T) / 2
        values, vectors = la.eigh(*pair, mesh=over, in_specs=P("x"))
        return jnp.sum(values**3) + jnp.sum(vectors**2 * weights)

    def alone(a: Any, b: Any) -> Any:
        low = jnp.linalg.cholesky((b + b.T) / 2)
        inverse = jnp.linalg.inv(low)
        values, vectors = jnp.linalg.eigh(inverse @ ((a + a.T) / 2) @ inverse.T)
        return jnp.sum(values**3) + jnp.sum((inverse.T @ vectors) ** 2 * weights)

    got = jax.jit(jax.grad(ours, (0, 1)))(put(a, over, P("x")), put(b, over, P("x")))
    wanted = jax.jit(jax.grad(alone, (0, 1)))(a, b)
    jax.tree.map(lambda x, y: assert_close(x, y, 1e4), got, wanted)


def test_a_pair_that_is_not_positive_definite_is_nan() -> None:
    over = mesh((4,))
    values = la.eigvalsh(put(np.eye(8), over, P("x")), put(-np.eye(8), over, P("x")))
    assert np.isnan(np.asarray(values)).all()


def test_errors() -> None:
    a = np.eye(4)
    with pytest.raises(ValueError, match=r"type is 4; expected one of 1 \(a v = w b v\), 2"):
        la.eigh(a, a, type=4)
    with pytest.raises(TypeError, match="b is True; the triangle is given by keyword: lower=True"):
        la.eigh(a, True)
    with pytest.raises(TypeError, match=r"b is float64\(3, 3\), a is float64\(4, 4\); expected"):
        la.eigh(a, np.eye(3))
    with pytest.raises(ValueError, match="eigh: b is not symmetric"):
        la.eigh(a, np.tri(4) + 4 * a)
