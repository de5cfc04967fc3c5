"""lstsq, pinv, matrix_rank, orth, null_space: as NumPy's and SciPy's, for any rank."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import sample
from linalg.matrices import assert_close, full, mesh, put


def of_rank(rank: int, m: int, n: int, dtype: Any = np.float64) -> np.ndarray:
    return full((m, rank), dtype) @ full((rank, n), dtype, 1)


@sample(
    ("rank", "size", "dtype", "shape", "spec"),
    [
        (3, (12, 8), np.complex128, (2,), P("x")),
        (4, (6, 10), np.float64, (2,), P("x")),
        (8, (12, 8), np.float32, (2,), P("x")),
        (3, (10, 7), np.complex128, (2, 2), P("x")),
    ],
    1,
)
def test_any_rank(
    rank: int, size: tuple[int, int], dtype: Any, shape: tuple[int, ...], spec: P
) -> None:
    a, over = of_rank(rank, *size, dtype), mesh(shape)
    sharded = put(a, over, spec)
    b = full((size[0], 2), dtype, 2)
    x, residual, found, s = la.lstsq(sharded, put(b, over, P()))
    wanted = np.linalg.lstsq(a, b)[0]
    assert_close(x, wanted, 1000)
    np.testing.assert_allclose(residual, (np.abs(b - a @ wanted) ** 2).sum(0), atol=1e-4)
    assert int(found) == int(la.matrix_rank(sharded)) == rank
    assert_close(s, np.linalg.svd(a, compute_uv=False))
    assert_close(la.pinv(sharded), np.linalg.pinv(a), 1000)
    basis, zero = np.asarray(la.orth(sharded)), np.asarray(la.null_space(sharded))
    assert (basis.shape, zero.shape) == ((size[0], rank), (size[1], size[1] - rank))
    assert_close(basis @ basis.conj().T @ a, a)
    assert np.abs(a @ zero).max(initial=0) <= 1e-4
    assert_close(zero.conj().T @ zero, np.eye(size[1] - rank))


@pytest.mark.full
def test_a_cutoff_and_a_vector() -> None:
    a, b, over = np.diag([1.0, 1e-3, 1e-6, 0]), np.ones(4), mesh((2,))
    sharded = put(a, over, P("x"))
    x, residual, rank, _ = la.lstsq(sharded, b, 1e-4)
    np.testing.assert_allclose(x, [1, 1e3, 0, 0], atol=1e-9)
    np.testing.assert_allclose(residual, 2)
    assert int(rank) == int(la.matrix_rank(sharded, 1e-4)) == 2
    np.testing.assert_allclose(la.pinv(sharded, 1e-2), np.diag([1, 0, 0, 0]), atol=1e-12)
    assert la.orth(sharded, 1e-2).shape == (4, 1)


@pytest.mark.full
@pytest.mark.parametrize(("rank", "size"), [(2, (6, 4)), (4, (4, 6))])
def test_derivatives(rank: int, size: tuple[int, int]) -> None:
    """Along a matrix that keeps the rank; singular values may be equal."""
    over, right = mesh((2,)), full((rank, size[1]), np.float64, 1)
    left, change = full((size[0], rank), np.float64), full((size[0], rank), np.float64, 2)
    b = full(size[:1], np.float64, 3)

    def of(pinv: Any, lstsq: Any) -> Any:
        return lambda a: jnp.sum(pinv(a) ** 3) + jnp.sum(lstsq(a, b)[0] ** 2)

    where = {"mesh": over, "in_specs": P("x")}
    ours = of(lambda a: la.pinv(a, 1e-10, **where), lambda a, b: la.lstsq(a, b, 1e-10, **where))
    alone = of(
        lambda a: jnp.linalg.pinv(a, 1e-10), lambda a, b: jnp.linalg.lstsq(a, b, rcond=1e-10)
    )
    a, da = left @ right, change @ right
    sharded = put(a, over, P("x"))
    _, tangent = jax.jit(functools.partial(jax.jvp, ours))((sharded,), (put(da, over, P("x")),))
    step = 1e-6
    alone = jax.jit(alone)
    difference = (alone(a + step * da) - alone(a - step * da)) / (2 * step)
    np.testing.assert_allclose(tangent, difference, rtol=1e-5)
    gradient = jax.jit(jax.grad(ours))(sharded)
    np.testing.assert_allclose(np.sum(np.asarray(gradient) * da), tangent, rtol=1e-9)


def test_numbers_that_are_not_finite_have_no_basis() -> None:
    a = put(np.where(np.eye(4), np.nan, 0), mesh((2,)), P("x"))
    for function in (la.orth, la.null_space):
        with pytest.raises(np.linalg.LinAlgError, match="elements that are not finite"):
            function(a)


def test_the_shape_is_not_known_inside_jit() -> None:
    over = mesh((2,))
    for function in (la.orth, la.null_space):
        run = jax.jit(lambda a, f=function: f(a, mesh=over, in_specs=P("x")))
        with pytest.raises(ValueError, match="shape of the result depends on the rank"):
            run(put(np.eye(4), over, P("x")))
