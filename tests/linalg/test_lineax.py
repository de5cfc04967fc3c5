"""lockstep.linalg.lineax: the solutions and gradients of lineax's own solvers, sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from lanes import full as in_full
from linalg.matrices import assert_close, full, mesh, positive, put
from processes import python

lx = pytest.importorskip("lineax")
la: Any = pytest.importorskip("lockstep.linalg.lineax")

N = 12
POSITIVE, NEGATIVE = lx.positive_semidefinite_tag, lx.negative_semidefinite_tag
UNIT_UPPER = (lx.upper_triangular_tag, lx.unit_diagonal_tag)


def operators(dtype: Any) -> dict[str, tuple[Any, Any, np.ndarray]]:
    """Name -> the solver, lineax's tags, and a matrix."""
    square = full((N, N), dtype) + 7 * np.eye(N, dtype=dtype)[::-1]
    auto, singular = la.AutoLinearSolver(None), la.AutoLinearSolver(False)
    lower = np.tril(full((N, N), dtype) + 4 * np.eye(N, dtype=dtype))
    upper = np.triu(full((N, N), dtype), 1) / 4 + np.eye(N, dtype=dtype)
    return {
        "positive": (auto, POSITIVE, positive(N, dtype)),
        "negative": (auto, NEGATIVE, -positive(N, dtype)),
        "square": (auto, (), square),
        "lower": (auto, lx.lower_triangular_tag, lower),
        "unit upper": (auto, UNIT_UPPER, upper),
        "tall": (auto, (), full((16, 6), dtype)),
        "wide": (auto, (), full((6, 16), dtype)),
        "rank 3": (singular, (), full((N, 3), dtype) @ full((3, 8), dtype, 1)),
    }


TAKEN = {
    "positive": "Cholesky",
    "negative": "Cholesky",
    "square": "LU",
    "lower": "Triangular",
    "unit upper": "Triangular",
    "tall": "QR",
    "wide": "QR",
    "rank 3": "SVD",
}
IN_MAKE_TEST = [
    ("negative", np.complex128),
    ("square", np.complex64),
    ("unit upper", np.complex128),
    ("tall", np.complex128),
    ("rank 3", np.float64),
]
CASES = [
    (name, dtype) if (name, dtype) in IN_MAKE_TEST else in_full(name, dtype)
    for name in TAKEN
    for dtype in (np.float64, np.complex64, np.complex128)
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_every_form_of_an_operator(name: str, dtype: Any) -> None:
    """Solutions with one factor, of the matrix, its transpose, its conjugate and its adjoint."""
    solver, tags, a = operators(dtype)[name]
    over = mesh((2, 2)) if a.shape[0] == a.shape[1] else mesh((2,))
    spec = P("y", "x") if a.shape[0] == a.shape[1] else P("x")
    assert type(solver.select_solver(lx.MatrixLinearOperator(a, tags))).__name__ == TAKEN[name]
    b, c = full(a.shape[:1], dtype, 2), full(a.shape[1:], dtype, 3)

    @jax.jit
    def solve(a: jax.Array, b: jax.Array, c: jax.Array) -> Any:
        there = type(solver)(solver.well_posed, mesh=over, in_specs=(spec, P("x")))
        state = there.init(lx.MatrixLinearOperator(a, tags), {})
        turned, conjugated = there.transpose(state, {})[0], there.conj(state, {})[0]
        both = there.transpose(conjugated, {})[0]
        pairs = ((state, b), (turned, c), (conjugated, b), (both, c))
        return [there.compute(state, vector, {})[0] for state, vector in pairs]

    inverse = np.linalg.pinv(a, 1e-4)
    wanted = [inverse @ b, inverse.T @ c, inverse.conj() @ b, inverse.conj().T @ c]
    for got, x in zip(solve(put(a, over, spec), b, c), wanted, strict=True):
        assert_close(got, x, 1000)
        assert got.dtype == dtype


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("square", np.float64),
        ("tall", np.complex128),
        *(in_full(name, np.complex128) for name in ("positive", "lower", "wide", "rank 3")),
    ],
)
def test_gradients_are_those_of_lineax(name: str, dtype: Any) -> None:
    solver, tags, a = operators(dtype)[name]
    over, b = mesh((2,)), full(a.shape[:1], dtype, 2)

    def loss(solver: Any) -> Any:
        def run(a: Any, b: Any) -> Any:
            found = lx.linear_solve(lx.MatrixLinearOperator(a, tags), b, solver, throw=False)
            return jnp.sum(jnp.abs(found.value + 1j) ** 3)

        return jax.jit(jax.grad(run, (0, 1)))

    with jax.set_mesh(over):
        got = loss(solver)(put(a, over, P("x")), b)
    wanted = loss(lx.AutoLinearSolver(solver.well_posed))(jnp.asarray(a), jnp.asarray(b))
    jax.tree.map(lambda x, y: assert_close(x, y, 1e4), got, wanted)


def test_a_state_a_batch_and_pytrees() -> None:
    over = mesh((2,))
    a, b = positive(N, np.float64), full((3, N), np.float64)
    operator = lx.MatrixLinearOperator(put(a, over, P("x")), POSITIVE)
    solver = la.Cholesky(mesh=over, in_specs=P("x"))
    state = solver.init(operator, {})

    def solve(b: jax.Array) -> jax.Array:
        return lx.linear_solve(operator, b, solver, state=state, throw=False).value

    assert_close(jax.vmap(solve)(jnp.asarray(b)), np.linalg.solve(a, b.T).T)
    parts = {"first": b[0, :4], "rest": b[0, 4:].reshape(2, 4)}
    blocks: Any = jax.tree.map(jnp.asarray, {"first": a[:, :4], "rest": a[:, 4:].reshape(N, 2, 4)})
    rows = {
        "first": jax.tree.map(lambda x: x[:4], blocks),
        "rest": jax.tree.map(lambda x: x[4:].reshape(2, 4, *x.shape[1:]), blocks),
    }
    shape = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, parts))
    tree = lx.PyTreeLinearOperator(rows, shape, POSITIVE)
    x = lx.linear_solve(tree, parts, solver, throw=False).value
    assert_close(np.r_[x["first"], x["rest"].ravel()], np.linalg.solve(a, b[0]))


def test_a_singular_operator_is_found() -> None:
    over, b = mesh((2,)), jnp.ones(N)
    a = positive(N, np.float64)
    for tags, given in ((POSITIVE, a - 3 * np.eye(N)), ((), np.diag(np.arange(N) * 1.0))):
        operator = lx.MatrixLinearOperator(put(given, over, P("x")), tags)
        found = lx.linear_solve(operator, b, la.AutoLinearSolver(True, over), throw=False)
        assert found.result == lx.RESULTS.singular
        assert np.isnan(found.value).all()


def test_a_diagonal_operator_is_for_lineax() -> None:
    solver = la.AutoLinearSolver(None)
    operator = lx.DiagonalLinearOperator(jnp.arange(1.0, 5))
    assert isinstance(solver.select_solver(operator), lx.Diagonal)
    np.testing.assert_allclose(lx.linear_solve(operator, jnp.ones(4), solver).value[3], 0.25)


def test_errors() -> None:
    over = mesh((2,))
    square, tall = (lx.MatrixLinearOperator(jnp.ones(shape)) for shape in ((4, 4), (4, 2)))
    for solver in (la.Cholesky, la.Triangular):
        with pytest.raises(ValueError, match=f"lineax.{solver.__name__}: the operator has no tag"):
            solver(mesh=over).init(square, {})
    with pytest.raises(ValueError, match="LU: the operator is 4 x 2; expected a square"):
        la.LU(mesh=over).init(tall, {})
    with pytest.raises(ValueError, match=r"shape \(0, 4\): no elements"):
        la.QR(mesh=over).init(lx.MatrixLinearOperator(jnp.ones((0, 4))), {})
    with pytest.raises(ValueError, match=r"Give mesh= and in_specs=, or call .* jax\.set_mesh"):
        lx.linear_solve(square, jnp.ones(4), la.LU())


@pytest.mark.full
def test_without_lineax_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "lineax.py").write_text("raise ImportError('not here')\n")
    program = "import lockstep\nfrom lockstep.linalg import lineax\n"
    result = python(program, env={"PYTHONPATH": str(tmp_path)})
    assert "pip install 'lockstep-jax[lineax]'" in result.stderr
