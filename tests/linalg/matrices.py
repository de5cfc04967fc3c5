"""Meshes, shardings and matrices that the tests of `lockstep.linalg` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lanes import sample

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]
TWO_DTYPES = [
    np.float64,
    np.complex64,
    *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in (np.float32, np.complex128)),
]
"""For tests that take long: the other two are for the slow lane."""
each_dtype = sample("dtype", DTYPES, 1, 2)
"""A precision each, one of them complex; `make full` has the other two."""
each_sharding = sample(
    ("shape", "spec", "b_spec", "n"),
    [
        ((1,), P("x"), P(), 5),
        ((4,), P("x"), P(), 40),
        ((4,), P(None, "x"), P("x"), 24),
        ((3,), P(), P(), 37),
        ((2, 2), P("x", "y"), P(None, "y"), 18),
        ((2, 4), P(("y", "x")), P("x"), 48),
        ((2, 2, 2), P("z", "x"), P("y"), 14),
    ],
    4,
)
"""Of a matrix and of right-hand sides."""
with_and_without_kernels = sample("kernels", [True, False], 0, indirect=True)


def mesh(shape: tuple[int, ...], kind: AxisType = AxisType.Auto) -> Mesh:
    names = ("x", "y", "z")[: len(shape)]
    count = int(np.prod(shape))
    return jax.make_mesh(shape, names, (kind,) * len(shape), devices=jax.devices()[:count])


def put(a: Any, over: Mesh, spec: P) -> jax.Array:
    return jax.device_put(a, NamedSharding(over, spec))


def full(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        a = a + 1j * rng.standard_normal(shape)
    return a.astype(dtype)


def hermitian(n: int, dtype: Any, seed: int = 0) -> np.ndarray:
    a = full((n, n), dtype, seed)
    return (a + a.conj().T) / 2


def with_spectrum(values: np.ndarray, dtype: Any, seed: int = 0) -> np.ndarray:
    """A Hermitian matrix with these eigenvalues and random eigenvectors."""
    q, _ = np.linalg.qr(full((len(values),) * 2, np.result_type(dtype, np.float64), seed))
    a = (q * values) @ q.conj().T
    return ((a + a.conj().T) / 2).astype(dtype)


def positive(n: int, dtype: Any, seed: int = 0) -> np.ndarray:
    return with_spectrum(np.linspace(1, 10, n), dtype, seed)


def general(n: int, dtype: Any, seed: int = 0) -> np.ndarray:
    """A random matrix whose condition number is some tens of n at most."""
    return full((n, n), dtype, seed) + 2 * n**0.5 * np.eye(n, dtype=dtype)[::-1]


def eps(dtype: Any) -> float:
    return float(np.finfo(dtype).eps)


def assert_close(got: Any, wanted: Any, factor: float = 100) -> None:
    """Equal up to ``factor`` n rounding errors of the larger values."""
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape
    limit = factor * max(len(wanted.ravel()) ** 0.5, 1) * eps(got.dtype)
    scale = max(np.abs(wanted).max(initial=0), 1e-30)
    assert np.abs(np.asarray(got) - wanted).max(initial=0) <= limit * scale


def assert_gradient(
    ours: Callable[..., Any],
    alone: Callable[..., Any],
    sharded: tuple[jax.Array, ...],
    tangents: tuple[np.ndarray, ...],
    factor: float = 1e4,
) -> None:
    """The gradient of ``ours`` is that of ``alone``, JAX's own, and that of central differences.

    One program of each is compiled. It uses both the forward rules and their transposes.
    """
    alone = jax.jit(alone)
    places = tuple(range(len(sharded)))
    whole = tuple(jnp.asarray(np.asarray(x)) for x in sharded)
    got = jax.jit(jax.grad(ours, places))(*sharded)
    for x, wanted in zip(got, jax.jit(jax.grad(alone, places))(*whole), strict=True):
        assert_close(x, wanted, factor)
    step = 1e-6
    ends = [
        alone(*(x + sign * step * dx for x, dx in zip(whole, tangents, strict=True)))
        for sign in (1, -1)
    ]
    slope = sum(np.sum(np.asarray(x) * dx).real for x, dx in zip(got, tangents, strict=True))
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-6)
