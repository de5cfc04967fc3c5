"""The generalized Hermitian eigenproblem, reduced to a standard one: LAPACK's sygst and sygvd."""

from __future__ import annotations

from collections.abc import Callable

import jax

from lockstep.linalg import _posdef, _products
from lockstep.linalg._posdef import Plan
from lockstep.linalg._triangular import cholesky, solve_triangular
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
    where = {"mesh": placed.mesh, "in_specs": (placed.spec, placed.spec)}
    low = cholesky(b, True, mesh=placed.mesh, in_specs=placed.spec, check=False)
    plan = Plan.of(a.shape[0], placed, None, False)
    if kind == 1:
        half = solve_triangular(low, a, 0, True, **where)
        c = solve_triangular(low, _posdef.adjoint(half, plan.placed), 0, True, **where)
    else:
        c = _products.product(low, _products.product(a, low, plan, placed), plan, placed, True)

    def back(vectors: jax.Array, vectors_placed: Placed) -> jax.Array:
        if kind == 3:
            return _products.product(low, vectors, plan, vectors_placed)
        specs = (placed.spec, vectors_placed.spec)
        return solve_triangular(low, vectors, 2, True, mesh=placed.mesh, in_specs=specs)

    return c, back
