"""What cannot work is refused with words about what was given and what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from linalg.matrices import mesh, put

EYE, ONES = np.eye(8), np.ones(8)
NOT_A_SPEC: Any = "x"

ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: la.inv(np.ones((3, 4))), ValueError, r"inv: a has shape \(3, 4\); expected one squ"),
    (lambda: la.inv(np.ones((2, 3, 3))), ValueError, "goes through jax.vmap or jax.lax.map"),
    (lambda: la.cholesky(np.ones(3)), ValueError, r"cholesky: a has shape \(3,\); expected one"),
    (lambda: la.inv(np.eye(3, dtype=int)), TypeError, "a is int64; expected one of float32, f"),
    (lambda: la.potrs(EYE, ONES[:3]), ValueError, r"b has shape \(3,\); expected \(8,\) or"),
    (lambda: la.potrs(EYE, ONES.astype("f")), TypeError, "b is float32, a is float64; expected o"),
    (lambda: la.potrs(EYE, ONES, T_A=0), ValueError, "tile size 0; expected a whole number"),
    (lambda: la.potrs(EYE, ONES, tiles=3), TypeError, "potrs: unknown argument tiles"),
    (
        lambda: la.potrs(EYE, ONES, mesh=mesh((4,)), in_specs=P("rows")),
        ValueError,
        r"names 'rows'; the mesh is \(x: 4\)",
    ),
    (
        lambda: la.potrs(EYE, ONES, mesh=mesh((4,)), in_specs=NOT_A_SPEC),
        TypeError,
        "expected a jax.sharding.PartitionSpec for each of a, b",
    ),
    (
        lambda: la.inv(EYE, mesh=mesh((4,)), in_specs=P("x", None, None)),
        ValueError,
        "has 3 entries, a has 2 dimensions",
    ),
    (
        lambda: la.inv(EYE, mesh=mesh((3,)), in_specs=P("x")),
        ValueError,
        "8 cannot be split evenly over the 3 devices of x",
    ),
    (
        lambda: la.inv(put(EYE, mesh((4,)), P("x")), in_specs=P(None, "x")),
        ValueError,
        r"a is sharded as P.*'x', None\), but in_specs is",
    ),
    (
        lambda: la.inv(put(EYE, mesh((4,)), P("x")), mesh=mesh((2,))),
        ValueError,
        r"sharded over the mesh \(x: 4\), and mesh= is \(x: 2\)",
    ),
    (
        lambda: la.potrs(put(EYE, mesh((4,)), P("x")), put(ONES, mesh((2,)), P())),
        ValueError,
        r"b is sharded over the mesh \(x: 2\)",
    ),
    (
        lambda: jax.jit(lambda a: la.inv(a, mesh=mesh((4,)), check=True))(EYE),
        ValueError,
        "check=True needs the values of the matrix",
    ),
    (
        lambda: la.solve(EYE, ONES, assume_a="spd"),
        ValueError,
        "assume_a is 'spd'; expected one of 'g",
    ),
    (lambda: la.solve(EYE, ONES, lower=True), ValueError, "lower= is for a symmetric matrix"),
    (lambda: la.inv(EYE, assume_a="her"), ValueError, "expected assume_a='gen', or 'pos'"),
    (
        lambda: la.lu_solve((EYE, ONES[:3]), ONES),
        ValueError,
        r"piv has shape \(3,\); expected \(8,",
    ),
    (lambda: la.lu_solve((EYE, ONES), ONES, check=True), TypeError, "are for a matrix; of a pair"),
    (lambda: la.lu_solve(EYE, ONES, trans=3), ValueError, "trans is 3; expected 0, 1 or 2"),
    (lambda: la.lu_solve(EYE, ONES, tiles=3), TypeError, "lu_solve: unknown argument tiles"),
    (lambda: la.cond(EYE, 3), ValueError, "p is 3; expected None, 2, -2, 1 or numpy.inf"),
    (
        lambda: jax.grad(lambda a: la.cond(a, 1))(jnp.eye(4)),
        TypeError,
        "an estimate has no derivative",
    ),
    (
        lambda: jax.jit(lambda a: la.solve(a, a, mesh=mesh((4,)), check=True))(EYE),
        ValueError,
        "check=True needs the values of the matrix",
    ),
    (lambda: la.solve_triangular(EYE, ONES, 3), ValueError, "trans is 3; expected 0, 1 or 2"),
]


@pytest.mark.parametrize(("call", "kind", "words"), ERRORS, ids=range(len(ERRORS)))
def test_error(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
