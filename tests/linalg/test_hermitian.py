"""A matrix that is not Hermitian is refused, where a solver would read one half of it."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import sample
from linalg.matrices import DTYPES, assert_close, eps, full, mesh, positive, put
from lockstep.linalg import _hermitian

inv = functools.partial(la.inv, assume_a="pos")
N = 40
SOLVERS: dict[str, Callable[..., Any]] = {
    "potrs": lambda a, **options: la.potrs(a, jnp.ones(N, a.dtype), **options),
    "inv": inv,
    "potri": la.potri,
    "cholesky": la.cholesky,
    "cho_factor": la.cho_factor,
    "eigh": la.eigh,
    "syevd": la.syevd,
}


def disturbed(dtype: Any, by: float) -> np.ndarray:
    """Positive definite, but for one element, which is off by a fraction of the largest one."""
    a = positive(N, dtype)
    a[31, 7] += by * np.abs(a).max()
    return a


@pytest.mark.parametrize("name", SOLVERS)
def test_each_solver_names_the_elements_that_differ(name: str) -> None:
    a = disturbed(np.float64, 0.5)
    function = "cholesky" if name == "cho_factor" else name
    with pytest.raises(ValueError, match=f"^{function}: a is not symmetric") as raised:
        SOLVERS[name](put(a, mesh((4,)), P("x")))
    text = str(raised.value)
    assert f"a[31, 7] is {a[31, 7]:.6g}, and a[7, 31] is {a[7, 31]:.6g}" in text
    assert "(a + a.T) / 2" in text
    ignore = "check=False" if name.startswith("cho") else "lower=True or lower=False"
    assert ignore in text


def functions_with_lower() -> list[Any]:
    found = [getattr(la, name) for name in dir(la) if not name.startswith("_")]
    found = [each for each in found if callable(each) and not inspect.isclass(each)]
    return [each for each in found if "lower" in inspect.signature(each).parameters]


@pytest.mark.parametrize("function", functions_with_lower(), ids=lambda each: each.__name__)
def test_its_docstring_says_which_triangle_is_read(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    said = re.search(r"^  lower: (.*?)(?=^  \*{0,2}\w+: |^\w|\Z)", text, re.MULTILINE | re.DOTALL)
    assert said, text
    assert "triang" in said[1], said[1]


@sample("dtype", DTYPES, 0, 2)
@sample(
    ("shape", "spec"),
    [
        ((1,), P("x")),
        ((4,), P("x")),
        ((3,), P()),
        ((4,), P(None, "x")),
        ((2, 2), P("y", "x")),
        ((2, 4), P("x", None)),
    ],
    4,
)
def test_shardings_and_dtypes(dtype: Any, shape: tuple[int, ...], spec: P) -> None:
    over, limit = mesh(shape), eps(dtype) ** 0.5
    la.eigh(put(disturbed(dtype, limit / 2), over, spec))  # like a product that was rounded
    with pytest.raises(ValueError, match=r"a\[31, 7\] is .* a\[7, 31\] is") as raised:
        la.eigh(put(disturbed(dtype, limit * 2), over, spec))
    is_complex = np.issubdtype(dtype, np.complexfloating)
    assert ("(a + a.T.conj()) / 2" in str(raised.value)) == is_complex
    assert ("a is not Hermitian" in str(raised.value)) == is_complex


def test_a_diagonal_that_is_not_real() -> None:
    a = positive(N, np.complex128)
    a[5, 5] += 3j
    with pytest.raises(ValueError, match=r"a\[5, 5\] is .*\+3j, and the conjugate of a\[5, 5\]"):
        la.eigh(put(a, mesh((4,)), P("x")))


def test_a_whole_matrix_without_symmetry() -> None:
    """Of a matrix of noise the largest difference is named, wherever it is."""
    a = full((N, N), np.float64) + 100 * np.eye(N)
    i, j = np.unravel_index(np.argmax(np.abs(a - a.T)), a.shape)
    with pytest.raises(ValueError) as raised:
        inv(put(a, mesh((8,)), P("x")))
    assert f"a[{max(i, j)}, {min(i, j)}] is {a[max(i, j), min(i, j)]:.6g}" in str(raised.value)


def test_a_named_triangle_is_read_alone() -> None:
    a = positive(N, np.float64)
    half = put(np.where(np.tri(N, dtype=bool), a, 1e6), mesh((4,)), P("x"))
    assert_close(inv(half, lower=True), np.linalg.inv(a))
    assert_close(la.eigh(half, lower=True)[0], np.linalg.eigvalsh(a))
    assert_close(la.cholesky(half, lower=True, check=False), np.linalg.cholesky(a))
    for call in (inv, la.eigh, lambda a: la.cholesky(a, lower=True)):
        with pytest.raises(ValueError, match="is not symmetric"):
            call(half)


@pytest.mark.parametrize("where", [(3, 3), slice(None)], ids=["one", "all"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_no_asymmetry(value: float, where: Any) -> None:
    a = disturbed(np.float64, 0.5)
    a[where] = value
    values = la.eigh(put(a, mesh((4,)), P("x")), eigvals_only=True)
    assert not np.isfinite(np.asarray(values)).all()


@pytest.mark.parametrize("scale", [1e-30, 1e36])
def test_the_largest_and_smallest_numbers(scale: float) -> None:
    scaled = np.float32(scale)
    inv(put(positive(N, np.float32) * scaled, mesh((4,)), P("x")))
    with pytest.raises(ValueError, match="is not symmetric"):
        inv(put(disturbed(np.float32, 0.1) * scaled, mesh((4,)), P("x")))


def test_rounding_is_forgiven() -> None:
    """A product whose two triangles were added up in different orders."""
    wide = full((N, 5000), np.float32)
    a = wide @ wide.T
    a[np.tri(N, dtype=bool)] = (wide[:, ::-1] @ wide[:, ::-1].T)[np.tri(N, dtype=bool)]
    assert np.abs(a - a.T).max() > 0
    SOLVERS["potrs"](put(a, mesh((4,)), P("x")))


@pytest.mark.full
def test_transformations_trace_as_before() -> None:
    over = mesh((4,))
    where = {"mesh": over, "in_specs": P("x")}
    wrong, right = (put(a, over, P("x")) for a in (disturbed(np.float64, 1), positive(N, float)))

    def loss(a: jax.Array) -> jax.Array:
        return jnp.sum(inv(a, **where) ** 2)

    assert jax.jit(loss)(wrong).shape == ()
    assert jax.jit(lambda b: la.potrs(wrong, b, **where))(jnp.ones(N)).shape == (N,)
    assert np.isfinite(jax.grad(loss)(right)).all()
    with pytest.raises(ValueError, match="inv: a is not symmetric"):
        jax.grad(loss)(wrong)
    solved = jax.vmap(lambda b: la.potrs(right, b))(jnp.ones((3, N)))
    assert_close(solved[1], np.linalg.solve(np.asarray(right), np.ones(N)))


def test_explicit_axes() -> None:
    over = mesh((2, 2), AxisType.Explicit)
    with jax.set_mesh(over), pytest.raises(ValueError, match="is not symmetric"):
        inv(put(disturbed(np.float64, 0.1), over, P("x", "y")))


@pytest.mark.full
def test_memory_is_a_fraction_of_a_share() -> None:
    n, over = 1024, mesh((4,))
    a = put(np.eye(n), over, P("x"))
    placed = _hermitian._validation.place("inv", a, None, None)
    for program, most in ((_hermitian._product, 0.1), (_hermitian._largest_difference, 0.7)):
        memory = program.lower(a, placed).compile().memory_analysis()
        assert memory is not None
        assert memory.temp_size_in_bytes < most * n * n * 8 // 4
