"""Derivatives: against jax.numpy.linalg on one device, and against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import sample
from linalg.matrices import assert_close, assert_gradient, full, mesh, positive, put

N = 12


def functions() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Name -> (ours, on one device); scalars of a matrix and a right-hand side."""
    where = {"mesh": mesh((4,)), "in_specs": P("x")}

    def solve(a: Any, b: Any) -> Any:
        x, logdet = la.potrs(a, b, 2, return_logdet=True, **where)
        return jnp.sum(jnp.abs(x) ** 2) + 0.3 * logdet

    def solve_alone(a: Any, b: Any) -> Any:
        x = jnp.linalg.solve(a, b)
        return jnp.sum(jnp.abs(x) ** 2) + 0.3 * jnp.linalg.slogdet(a)[1]

    def weigh(a: Any) -> Any:
        return jnp.sum(jnp.abs(a[2:7]) ** 3)

    def factor_solve(a: Any, b: Any) -> Any:
        return jnp.sum(jnp.abs(la.cho_solve((la.cholesky(a, **where), False), b, **where)) ** 2)

    def factor_solve_alone(a: Any, b: Any) -> Any:
        return jnp.sum(jnp.abs(jnp.linalg.solve(a, b)) ** 2)

    return {
        "potrs": (solve, solve_alone),
        "inv": (
            lambda a, b: weigh(la.inv(a, assume_a="pos", **where)),
            lambda a, b: weigh(jnp.linalg.inv(a)),
        ),
        "cholesky": (
            lambda a, b: weigh(la.cholesky(a, True, **where)),
            lambda a, b: weigh(jnp.linalg.cholesky(a)),
        ),
        "cho_solve": (factor_solve, factor_solve_alone),
    }


def general_functions() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """The same for matrices that are not Hermitian."""
    where = {"mesh": mesh((4,)), "in_specs": P("x")}

    def weigh(*found: Any) -> Any:
        return sum(jnp.sum(jnp.abs(x[2:7]) ** 3) for x in found)

    def solve(a: Any, b: Any) -> Any:
        x = la.solve(a, b, tile=2, **where) + la.solve(a, b, transposed=True, **where)
        return jnp.sum(jnp.abs(x) ** 2)

    def solve_alone(a: Any, b: Any) -> Any:
        x = jnp.linalg.solve(a, b) + jnp.linalg.solve(a.T, b)
        return jnp.sum(jnp.abs(x) ** 2)

    def determinant(linalg: Any, **where: Any) -> Callable[[Any, Any], Any]:
        def run(a: Any, b: Any) -> Any:
            sign, log = linalg.slogdet(a, **where)
            return jnp.abs(sign * (1 + 0.5j) + b[0, 0]) ** 2 + 0.3 * log

        return run

    def factor_solve(a: Any, b: Any) -> Any:
        pair = la.lu_factor(a, tile=2, **where)
        x = la.lu_solve(pair, b, **where) + la.lu_solve(pair, b, 2, **where)
        return jnp.sum(jnp.abs(x) ** 2)

    def factor_solve_alone(a: Any, b: Any) -> Any:
        x = jnp.linalg.solve(a, b) + jnp.linalg.solve(a.conj().T, b)
        return jnp.sum(jnp.abs(x) ** 2)

    return {
        "solve": (solve, solve_alone),
        "inv": (lambda a, b: weigh(la.inv(a, **where)), lambda a, b: weigh(jnp.linalg.inv(a))),
        "slogdet": (determinant(la, **where), determinant(jnp.linalg)),
        "det": (
            lambda a, b: jnp.abs(la.det(a, **where) / 1e5) ** 2,
            lambda a, b: jnp.abs(jnp.linalg.det(a) / 1e5) ** 2,
        ),
        "lu": (
            lambda a, b: weigh(*la.lu(a, **where)[1:]),
            lambda a, b: weigh(*jax.scipy.linalg.lu(a)[1:]),
        ),
        "lu_solve": (factor_solve, factor_solve_alone),
    }


def of_hermitian(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: function((a + a.conj().T) / 2, b)


@sample(
    ("name", "dtype"),
    [
        ("potrs", np.complex128),
        ("inv", np.float64),
        ("cholesky", np.complex128),
        ("cho_solve", np.float64),
    ],
    0,
)
def test_gradients_and_tangents(name: str, dtype: Any) -> None:
    ours, alone = map(of_hermitian, functions()[name])
    check(ours, alone, positive(N, dtype))


@pytest.mark.full
@pytest.mark.parametrize("name", functions())
def test_tangents_outside_jit(name: str) -> None:
    ours, alone = map(of_hermitian, functions()[name])
    check_tangent(ours, alone, positive(N, np.complex128))


@sample(
    ("name", "dtype"),
    [(name, dtype) for name in general_functions() for dtype in (np.float64, np.complex128)],
    *(1, 5, 8),
)
def test_gradients_and_tangents_of_general_matrices(name: str, dtype: Any) -> None:
    check(*general_functions()[name], general(dtype))


@pytest.mark.full
@pytest.mark.parametrize("name", general_functions())
def test_tangents_of_general_matrices_outside_jit(name: str) -> None:
    check_tangent(*general_functions()[name], general(np.complex128))


def general(dtype: Any) -> np.ndarray:
    return full((N, N), dtype) + 2 * np.eye(N, dtype=dtype)[::-1]


def check(ours: Callable[..., Any], alone: Callable[..., Any], a: np.ndarray) -> None:
    dtype, over, b = a.dtype, mesh((4,)), full((N, 2), a.dtype, 1)
    tangents = full((N, N), dtype, 2), full((N, 2), dtype, 3)
    assert_gradient(ours, alone, (put(a, over, P("x")), put(b, over, P())), tangents)


def check_tangent(ours: Callable[..., Any], alone: Callable[..., Any], a: np.ndarray) -> None:
    dtype, over, b = a.dtype, mesh((4,)), full((N, 2), a.dtype, 1)
    da, db = full((N, N), dtype, 2), full((N, 2), dtype, 3)
    sharded = put(a, over, P("x")), put(b, over, P())
    _, tangent = jax.jvp(ours, sharded, (put(da, over, P("x")), put(db, over, P())))
    step = 1e-6
    ends = [alone(a + sign * step * da, b + sign * step * db) for sign in (1, -1)]
    np.testing.assert_allclose(tangent, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.full
@pytest.mark.parametrize("name", ["potrs", "solve", "slogdet"])
def test_second_derivatives(name: str) -> None:
    a, b = positive(N, np.float64), full((N, 1), np.float64)
    ours, alone = (functions() | general_functions())[name]

    def of(f: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda t: f(jnp.asarray(a) * (1 + t) + t**2 * jnp.eye(N), jnp.asarray(b))

    got = jax.jit(jax.hessian(of(ours)))(0.3)
    np.testing.assert_allclose(got, jax.hessian(of(alone))(0.3), rtol=1e-9)


@pytest.mark.full
def test_gradient_of_a_batch_of_right_hand_sides() -> None:
    a, b = positive(N, np.float64), full((3, N), np.float64)
    over = mesh((4,))

    def ours(a: Any, b: Any) -> Any:
        def solve(b: Any) -> Any:
            return la.potrs(a, b)  # outside jit, the array says where it is

        return jnp.sum(jax.vmap(solve)(b) ** 3)

    def alone(a: Any, b: Any) -> Any:
        return jnp.sum(jnp.linalg.solve(a, b.T) ** 3)

    got = jax.grad(ours, (0, 1))(put(a, over, P("x")), put(b, over, P()))
    jax.tree.map(assert_close, got, jax.grad(alone, (0, 1))(a, b))
