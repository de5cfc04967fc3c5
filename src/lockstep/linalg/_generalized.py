"""The generalized Hermitian eigenproblem, reduced to a standard one: LAPACK's sygst and sygvd."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax

from lockstep.linalg import _posdef, _products
from lockstep.linalg._posdef import Plan
from lockstep.linalg._triangular import cholesky, lower_solver
from lockstep.linalg._validation import Placed

TYPES = {1: "a v = w b v", 2: "a b v = w v", 3: "b a v = w v"}


def reduce(
    a: jax.Array, b: jax.Array, placed: Placed, kind: int
) -> tuple[jax.Array, Callable[[jax.Array, Placed], jax.Array]]:
    """The matrix ``c`` with the same eigenvalues, and the way back for its eigenvectors.

    ``b = l l^H``. Type 1: ``c = l^-1 a l^-H``; types 2 and 3: ``c = l^H a l``. The eigenvectors of
    ``c`` are taken to ``l^-H v``, for type 3 to ``l v``. Both triangles of ``a`` and the lower one
    of ``b`` are read; rounding leaves ``c`` Hermitian only nearly.
    """
    low = cholesky(b, True, mesh=placed.mesh, in_specs=placed.spec, check=False)
    n, plan = a.shape[0], Plan.of(a.shape[0], placed, None, False)

    def product(x: jax.Array, y: jax.Array, on: Placed, adjoint: bool = False) -> jax.Array:
        return _products.product(x, y, plan, on, adjoint)

    if kind == 3:
        c = product(low, product(a, low, placed), placed, True)
        return c, functools.partial(product, low)
    solve = lower_solver(low, Plan.of(n, placed, None, True))
    if kind == 2:
        c = product(low, product(a, low, placed), placed, True)
    else:
        half = solve(a, placed, adjoint=False)
        c = solve(_posdef.adjoint(half, placed), placed, adjoint=False)
    return c, functools.partial(solve, adjoint=True)
