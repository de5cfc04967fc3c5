"""Roots and weights of secular equations by the kernels, between poles or their squares."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanes import sample
from linalg.matrices import eps, full
from lockstep.linalg import _cpu_kernels, _secular


@pytest.fixture(autouse=True)
def _kernels_are_there() -> None:
    assert _cpu_kernels.available("cpu")


POLES = {
    "random": full((2, 60), np.float64),
    "equal": np.ones((2, 60)),
    "clusters": np.round(full((2, 60), np.float64)),
    "close": 1 + 1e-15 * full((2, 60), np.float64),
    "graded": np.logspace(0, -30, 120).reshape(2, 60),
}


@sample("dtype", [np.float32, np.float64], 1)
@pytest.mark.parametrize("name", list(POLES))
@pytest.mark.parametrize("weights", ["even", "zeros", "graded"])
def test_rank_one_updates(name: str, weights: str, dtype: Any) -> None:
    """Roots between their poles; vectors orthogonal to rounding; weights as they were."""
    blocks, m = 2, 60
    z = full((blocks, m), np.float64, 1) / np.sqrt(m)
    z[:, ::3] *= {"even": 1, "zeros": 0, "graded": 1e-12}[weights]
    rho = jnp.asarray([0.7, 1e-4], dtype)
    update = _secular.update_of(jnp.asarray(POLES[name], dtype), jnp.asarray(z, dtype), rho)
    roots, found = _solved(update)
    np.testing.assert_allclose(found, update.z, rtol=200 * eps(dtype))
    vectors = np.asarray(found[:, :, None] / update.distances(*roots), np.float64)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    gram = vectors.swapaxes(1, 2) @ vectors
    assert np.abs(gram - np.eye(m)).max() <= 20 * eps(dtype)


@sample("dtype", [np.float32, np.float64], 1)
@sample("name", ["random", "equal", "graded", "zero"], 0, 3)
def test_rank_one_updates_of_squares(name: str, dtype: Any) -> None:
    """Singular values of a row above a diagonal matrix; both kinds of vectors are orthogonal."""
    m, zero = 60, 29
    unit = 1.0 if dtype == np.float64 else 2.0**40
    poles = {"zero": np.zeros((1, m))} | {key: np.abs(value[:1]) for key, value in POLES.items()}
    z = full((1, m), np.float64, 1)
    update = _secular.update_of_squares(
        jnp.asarray(poles[name] * unit, dtype), zero, jnp.asarray(z * unit, dtype), unit
    )
    roots, weights = _solved(update)
    np.testing.assert_allclose(weights, update.z, rtol=400 * eps(dtype))
    v = weights[:, :, None] / -update.distances(*roots)
    u = (update.pole + update.small)[:, :, None] * v
    u = u.at[:, zero].set(1)
    matrix = np.diag(np.asarray(update.pole + update.small, np.float64)[0])
    matrix[zero] = np.asarray(update.z, np.float64)[0]
    left, right = (np.asarray(x[0], np.float64) for x in (u, v))
    left, right = (x / np.linalg.norm(x, axis=0) for x in (left, right))
    for vectors in (left, right):
        assert np.abs(vectors.T @ vectors - np.eye(m)).max() <= 20 * eps(dtype)
    rest = left.T @ matrix @ right
    values = np.diag(rest)
    assert (values >= 0).all()
    assert np.abs(rest - np.diag(values)).max() <= 20 * eps(dtype) * values.max()


def _solved(update: _secular.Update) -> tuple[_secular.Roots, jax.Array]:
    """The roots and the weights, which a part of them has alike."""
    four, m = (update.pole, update.small, update.z, update.rho), update.pole.shape[1]
    order = update.ascending, update.ranks

    def offsets_of(first: int, count: int) -> jax.Array:
        part = jnp.int32(first), count, update.squares
        return _cpu_kernels.secular_roots(four, update.ascending, *part)

    def weights_of(first: int, count: int) -> jax.Array:
        part = jnp.int32(first), count, update.squares
        return _cpu_kernels.secular_weights(four, *order, offsets, *part)

    offsets = offsets_of(0, m)
    weights = weights_of(0, m)
    np.testing.assert_array_equal(offsets_of(17, 9), offsets[:, 17:26])
    np.testing.assert_array_equal(weights_of(17, 9), weights[:, 17:26])
    return _secular.Roots.of(offsets, update), weights
