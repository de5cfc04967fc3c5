"""lockstep.linalg.netket: what NetKet's solvers of the same names compute."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from lanes import sample
from linalg.matrices import assert_close, full, mesh, positive, put, with_spectrum
from lockstep.linalg.netket import cholesky_distributed, pinv_smooth_distributed


class Dense:
    """A linear operator, as far as NetKet's solvers know one."""

    def __init__(self, a: Any) -> None:
        self.a = a

    def to_dense(self) -> Any:
        return self.a


def damped(a: np.ndarray, b: np.ndarray, rtol: float, rtol_smooth: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(a)
    relative = np.abs(values / values[-1])
    inverses = np.where(relative > rtol, 1 / values, 0) / (1 + (rtol_smooth / relative) ** 6)
    return vectors @ (inverses * (vectors.conj().T @ b))


@sample(
    ("shape", "spec", "n", "dtype"),
    [
        ((4,), P("x"), 24, np.float64),
        ((4,), P(), 21, np.complex128),
        ((2, 2), P("x", "y"), 18, np.complex128),
    ],
    2,
)
def test_outside_of_jit(shape: tuple[int, ...], spec: P, n: int, dtype: Any) -> None:
    a, b, over = positive(n, dtype), full((n,), dtype), mesh(shape)
    tree = {"first": jnp.asarray(b[:4].reshape(2, 2)), "rest": jnp.asarray(b[4:])}
    x, info = cholesky_distributed(Dense(put(a, over, spec)), tree, local_tile_size=4)
    wanted = np.linalg.solve(a, b)
    assert_close(x["first"], wanted[:4].reshape(2, 2))
    assert_close(x["rest"], wanted[4:])
    assert info is None
    low = with_spectrum(np.r_[np.zeros(5), np.logspace(-4, 0, n - 5)], dtype)
    x, info = pinv_smooth_distributed(put(low, over, spec), b, rtol=1e-9, rtol_smooth=1e-3)
    assert_close(x, damped(low, b, 1e-9, 1e-3), 1e5)
    assert info is None


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@sample("n", [24, 21], 1)
def test_in_jit_under_a_mesh(kind: AxisType, n: int) -> None:
    """As in NetKet's SR: a solver that was given its options is a static argument."""
    a, b = positive(n, np.float64), full((n,), np.float64)

    @jax.jit
    def alone(a: jax.Array, b: jax.Array) -> Any:
        return cholesky_distributed(a, b, local_tile_size=5)[0], pinv_smooth_distributed(a, b)[0]

    with jax.set_mesh(mesh((4,), kind)):
        for x in alone(jnp.asarray(a), jnp.asarray(b)):
            assert_close(x, np.linalg.solve(a, b), 1000)


def test_without_a_mesh_on_one_device() -> None:
    a, b = positive(6, np.float64), full((6,), np.float64)
    for solver in (cholesky_distributed(x0=None), pinv_smooth_distributed(rtol=1e-12)):
        x, _ = jax.jit(solver)(jnp.asarray(a), jnp.asarray(b))
        assert_close(x, np.linalg.solve(a, b), 1000)


def test_a_solver_with_options_is_equal_to_one_with_the_same() -> None:
    assert cholesky_distributed() == cholesky_distributed(process_grid=(2, 2))
    assert hash(pinv_smooth_distributed(rtol=1e-3)) == hash(pinv_smooth_distributed(rtol=1e-3))
    assert pinv_smooth_distributed(rtol=1e-3) != pinv_smooth_distributed(rtol=1e-4)


def test_an_indefinite_matrix_is_nan_and_errors_name_the_function() -> None:
    over = mesh((4,))
    x, _ = cholesky_distributed(put(-np.eye(8), over, P("x")), np.ones(8))
    assert np.isnan(np.asarray(x)).all()
    with pytest.raises(ValueError, match=r"pinv_smooth_distributed: A has shape \(3, 4\)"):
        pinv_smooth_distributed(np.ones((3, 4)), np.ones(3))
    with pytest.raises(ValueError, match=r"cholesky_distributed: b has shape \(5,\)"):
        cholesky_distributed(np.eye(8), np.ones(5))
