"""The generalized Hermitian eigenproblem, reduced to a standard one: LAPACK's sygst and sygvd."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cholesky, _dealt_columns, _posdef, _products
from lockstep.linalg._posdef import Plan
from lockstep.linalg._triangular import cholesky, lower_solver
from lockstep.linalg._validation import Placed

TYPES = {1: "a v = w b v", 2: "a b v = w v", 3: "b a v = w v"}


def reduce(
    a: jax.Array, b: jax.Array, placed: Placed, kind: int
) -> tuple[jax.Array, Callable[[jax.Array, Placed], jax.Array]]:
    """The matrix ``c`` with the same eigenvalues, and the way back for its eigenvectors.

    ``b = l l^H``. Type 1: ``c = l^-1 a l^-H``; types 2 and 3: ``c = l^H a l``. The eigenvectors of
    ``c`` are taken to ``l^-H v``, for type 3 to ``l v``. Both triangles of ``a`` may be read,
    and the lower one of ``b``; rounding may leave ``c`` Hermitian only nearly.
    """
    low = cholesky(b, True, mesh=placed.mesh, in_specs=placed.spec, check=False)
    n, plan = a.shape[0], Plan.of(a.shape[0], placed, None, False)

    def product(x: jax.Array, y: jax.Array, on: Placed, adjoint: bool = False) -> jax.Array:
        return _products.product(x, y, plan, on, adjoint)

    if kind == 3:
        c = product(low, product(a, low, placed), placed, True)
        return c, functools.partial(product, low)
    solving = Plan.of(n, placed, None, True)
    if kind == 2:
        c = product(low, product(a, low, placed), placed, True)
    else:
        c = (_congruence if solving.layout.devices > 1 else _by_two_solutions)(low, a, solving)
    return c, functools.partial(lower_solver(low, solving), adjoint=True)


def _by_two_solutions(low: jax.Array, a: jax.Array, plan: Plan) -> jax.Array:
    """``l^-1 a l^-H``."""
    solve, placed = lower_solver(low, plan), plan.placed
    half = solve(a, placed, adjoint=False)
    return solve(_posdef.adjoint(half, placed), placed, adjoint=False)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
@functools.partial(jax.jit, static_argnames="plan")
def _congruence(low: jax.Array, a: jax.Array, plan: Plan) -> jax.Array:
    """`_by_two_solutions` with two thirds of its work; of ``a`` the lower triangle is read."""
    how = plan.layout, plan.axes, plan.kernels

    def body(low: jax.Array, a: jax.Array) -> jax.Array:
        half = _half(plan.take_matrix(a, padding=0), plan)
        return plan.give_matrix(_dealt_columns.congruence(plan.take_matrix(low), half, *how))

    spec = plan.placed.spec
    return plan.placed.map(body, (spec, spec), spec)(low, a)


def _half(a: jax.Array, plan: Plan) -> jax.Array:
    """Slots of the lower ``t`` with ``a = t + t^H``: half of the diagonal, which is real."""
    me, local = lax.axis_index(plan.axes), jnp.arange(len(a))
    diagonal = a[local, me, local].real / 2
    lower = _cholesky.lower_part(a, plan.layout, plan.axes)
    return lower.at[local, me, local].set(diagonal.astype(a.dtype))


@_congruence.defjvp
def _congruence_jvp(plan: Plan, primals: Any, tangents: Any) -> Any:
    return jax.jvp(functools.partial(_by_two_solutions, plan=plan), primals, tangents)
