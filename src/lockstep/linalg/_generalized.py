"""The generalized Hermitian eigenproblem, reduced to a standard one: LAPACK's sygst and sygvd."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from lockstep.linalg import _dealt_columns, _posdef, _products
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
    of ``b`` are read; rounding may leave ``c`` Hermitian only nearly.
    """
    low = cholesky(b, True, mesh=placed.mesh, in_specs=placed.spec, check=False)
    n, plan = a.shape[0], Plan.of(a.shape[0], placed, None, False)

    def product(x: jax.Array, y: jax.Array, on: Placed, adjoint: bool = False) -> jax.Array:
        return _products.product(x, y, plan, on, adjoint)

    if kind == 3:
        c = product(low, product(a, low, placed), placed, True)
        return c, functools.partial(product, low)
    plan = Plan.of(n, placed, None, True)
    if kind == 2:
        c = product(low, product(a, low, placed), placed, True)
    else:
        c = (_congruence if plan.layout.devices > 1 else _by_two_solutions)(low, a, plan)
    return c, functools.partial(lower_solver(low, plan), adjoint=True)


def _by_two_solutions(low: jax.Array, a: jax.Array, plan: Plan) -> jax.Array:
    """``l^-1 a l^-H``."""
    solve, placed = lower_solver(low, plan), plan.placed
    half = solve(a, placed, adjoint=False)
    return solve(_posdef.adjoint(half, placed), placed, adjoint=False)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _congruence(low: jax.Array, a: jax.Array, plan: Plan) -> jax.Array:
    """`_by_two_solutions` with two thirds of its work."""
    return _in_slots(low, a, plan)


@functools.partial(jax.jit, static_argnames="plan")
def _in_slots(low: jax.Array, a: jax.Array, plan: Plan) -> jax.Array:
    def body(low: jax.Array, a: jax.Array) -> jax.Array:
        slots = plan.take_matrix(low), plan.take_matrix(a, padding=0)
        how = plan.layout, plan.axes, plan.kernels
        return plan.give_matrix(_dealt_columns.congruence(*slots, *how))

    spec = plan.placed.spec
    return plan.map(body, (spec, spec), spec)(low, a)


@_congruence.defjvp
def _congruence_jvp(plan: Plan, primals: Any, tangents: Any) -> Any:
    return jax.jvp(functools.partial(_by_two_solutions, plan=plan), primals, tangents)
