"""least_squares: NumPy's solutions for tall, square and wide matrices, and derivatives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import sample
from linalg.matrices import assert_close, assert_gradient, eps, full, mesh, put
from linalg.test_qr import MATRICES, N


@sample(
    ("shape", "specs", "size", "dtype"),
    [
        ((2,), (P("x"), P("x")), (24, 10), np.float64),
        ((2,), (P("x"), P()), (10, 24), np.complex128),  # the least norm
        ((2, 2), (P("y", "x"), P("x")), (18, 18), np.complex64),
        ((3,), (P(), P()), (37, 5), np.float32),
        ((4,), (P(), P()), (1, 1), np.float64),
        ((4,), (P(), P()), (3, 50), np.float32),
        ((2, 2), (P("y", "x"), P()), (10, 24), np.complex128),
    ],
    *(3, 6),
)
def test_solutions(shape: Any, specs: Any, size: tuple[int, int], dtype: Any) -> None:
    a, over = full(size, dtype), mesh(shape)
    for b in (full((size[0], 3), dtype, 1), full(size[:1], dtype, 2)):
        rhs = put(b, over, P(*specs[1][: b.ndim]))
        x, status = la.least_squares(put(a, over, specs[0]), rhs, 3, return_status=True)
        assert_close(x, np.linalg.lstsq(a, b)[0], 1000)
        assert (x.dtype, int(status)) == (dtype, 0)


@pytest.mark.parametrize("scale", [4e307, 1e-300])
@pytest.mark.parametrize("size", [(24, 10), (10, 24)])
def test_the_largest_and_smallest_numbers(size: tuple[int, int], scale: float) -> None:
    a, b, over = full(size, np.float64), full(size[:1], np.float64, 2) / 100, mesh((2,))
    x = la.least_squares(put(scale * a, over, P("x")), put(scale * b, over, P("x")), 3)
    assert_close(x, np.linalg.lstsq(a, b)[0], 1000)


@pytest.mark.full
@pytest.mark.parametrize("name", ["random", "condition 1e8", "condition 1e15"])
def test_the_residual_is_orthogonal(name: str) -> None:
    """As small, beside norms, as that of LAPACK's: the solution is backward stable."""
    a, over = MATRICES[name], mesh((2,))
    b = full((len(a),), np.float64)
    x = np.asarray(la.least_squares(put(a, over, P("x")), put(b, over, P()), 6))
    r = a @ x - b
    scale = np.linalg.norm(a, 2) * (np.linalg.norm(a, 2) * np.linalg.norm(x) + np.linalg.norm(b))
    assert np.linalg.norm(a.T @ r) <= 10 * N * eps(np.float64) * scale


@pytest.mark.parametrize("size", [(4, 0), (0, 4)])
def test_no_elements(size: tuple[int, int]) -> None:
    over = mesh((2,))
    x = la.least_squares(put(np.zeros(size), over, P()), put(np.ones((size[0], 2)), over, P()))
    np.testing.assert_array_equal(x, np.zeros((size[1], 2)))


@pytest.mark.full
@pytest.mark.parametrize(("size", "dtype"), [((8, 4), np.float64), ((4, 8), np.complex128)])
def test_derivatives(size: tuple[int, int], dtype: Any) -> None:
    over, a, b = mesh((2,)), full(size, dtype), full((size[0], 2), dtype, 1)
    da, db = full(size, dtype, 2), full((size[0], 2), dtype, 3)

    def of(solve: Any) -> Any:
        return lambda a, b: jnp.sum(jnp.abs(solve(a, b) + 1j) ** 3)

    def normal(a: Any, b: Any) -> Any:
        adjoint = a.conj().T
        if size[0] >= size[1]:
            return jnp.linalg.solve(adjoint @ a, adjoint @ b)
        return adjoint @ jnp.linalg.solve(a @ adjoint, b)

    ours = of(lambda a, b: la.least_squares(a, b, 1, mesh=over, in_specs=(P("x"), P())))
    sharded = put(a, over, P("x")), put(b, over, P())
    assert_gradient(ours, of(normal), sharded, (da, db))


@pytest.mark.full
@pytest.mark.parametrize(
    ("grid", "size", "count"), [((2, 1), (192, 128), 3), ((1, 2), (192, 96), 65)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_jaxmg_cases(grid: Any, size: Any, count: int, dtype: Any) -> None:
    """Its documented cases: tiles of 64, a matrix and a vector, and their tolerances."""
    over = jax.make_mesh(grid, ("pr", "pc"), devices=jax.devices()[:2])
    a, b = full(size, dtype), full((size[0], count), dtype, 1)
    sharded, rhs = put(a, over, P("pr", "pc")), put(b, over, P("pr", None))
    specs, limit = P("pr", "pc"), 2e-3 if eps(dtype) > 1e-10 else 1e-9
    x, status = la.least_squares(
        sharded, rhs, 64, mesh=over, matrix_specs=specs, return_status=True, pad=True, donate=False
    )
    wanted = np.linalg.lstsq(a, b)[0]
    np.testing.assert_allclose(x, wanted, rtol=limit, atol=limit)
    assert int(status) == 0
    x = la.least_squares(sharded, rhs[:, 0], T_A=64, mesh=over, matrix_specs=specs)
    np.testing.assert_allclose(x, wanted[:, 0], rtol=limit, atol=limit)


def test_errors() -> None:
    a = np.eye(4)
    with pytest.raises(ValueError, match=r"b has shape \(3,\); expected .* matrix is 4 x 4"):
        la.least_squares(a, a[0, :3])
    with pytest.raises(TypeError, match="least_squares: unknown argument tiles"):
        la.least_squares(a, a, tiles=3)
