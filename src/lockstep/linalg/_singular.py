"""The singular value decomposition and the polar decomposition of a sharded matrix.

A tall matrix is factored first (Chan, "An improved algorithm for computing the singular value
decomposition", 1982), a wide one as its adjoint. The triangle ``r``, or a square matrix itself, is
reduced to bidiagonal form where there are kernels (`_bidiagonalize`, `_bidiagonal_svd`), or to a
band where only the values are wanted (`_band`). Elsewhere QDWH and `eigh` decompose it (Nakatsukasa
and Higham, "Stable and efficient spectral divide and conquer algorithms", SIAM J. Sci. Comput. 35,
2013): ``r = u h`` and ``h = v s v^H``, so that ``r = (u v) s v^H``. If it is small, every device
decomposes it with LAPACK.

Between the steps, matrices are global arrays of the devices' local rows.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from lockstep.linalg import (
    _back_transformation,
    _band,
    _bidiagonal_svd,
    _bidiagonalize,
    _eigh,
    _grid_model,
    _householder,
    _products,
    _qdwh,
    _qr,
    _redistribute,
    _scaling,
    _validation,
)
from lockstep.linalg._back_transformation import Reflectors
from lockstep.linalg._householder import Factored
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._qr import adjoint_rows
from lockstep.linalg._singular_plan import Plan
from lockstep.linalg._tiles import adjoint, gemm

WIDTH = 16
"""Minimal number of columns of a panel of the reduction, except for small matrices."""


class OfTriangle(NamedTuple):
    """``r = u s v^H``: local rows of ``u`` and ``v`` (R, n), and ``s`` (n,)."""

    u: jax.Array
    s: jax.Array
    v: jax.Array


def _triangle_specs(axes: Axes) -> OfTriangle:
    rows, everywhere = cast(Any, P(axes)), cast(Any, P())
    return OfTriangle(rows, everywhere, rows)


def decompose(a: jax.Array, plan: Plan) -> tuple[jax.Array, ...]:
    """(u, s, vh), without what ``plan`` does not want."""
    (m, n), k = plan.shape, min(plan.shape)
    u_shape, vh_shape = ((m, m), (n, n)) if plan.is_full else ((m, k), (k, n))
    if not k:
        u, vh = (_qr.unit(plan.result(x), x, a.dtype) for x in (u_shape, vh_shape))
        return (u,) * plan.u + (jnp.zeros(0, a.real.dtype),) + (vh,) * plan.vh
    if not plan.u and not plan.vh:
        return (values(a, plan),)
    scale = _scale(a, plan)
    factored, found = _decomposed(a, scale, plan)
    return _finish(factored, found._replace(s=found.s / scale), plan)


def polar(a: jax.Array, plan: Plan) -> tuple[jax.Array, jax.Array]:
    (m, n), square = plan.shape, plan.square
    if not n:
        u = _qr.unit(plan.result((m, n)), (m, n), a.dtype)
        return u, _qr.unit(square, (n, n), a.dtype)
    scale = _scale(a, plan)
    if plan.is_reduced:
        factored, found = _decomposed(a, scale, plan)
        u, h = _polar_of(found, plan)
    else:
        factored, triangle = _factor(a, scale, plan, not plan.is_direct)
        u, h = _polar_factors(a, triangle, scale, plan)
    return _unitary_factor(factored, u, plan), _square_matrix(h, plan, 1 / scale)


@functools.partial(jax.jit, static_argnames="plan")
def _scale(a: jax.Array, plan: Plan) -> jax.Array:
    body = functools.partial(_scaling.factor, axes=plan.tall.axes)
    return plan.tall.placed.map(body, plan.placed.spec, P())(a)


@functools.partial(jax.jit, static_argnames=("plan", "reflectors"))
def _factor(
    a: jax.Array, scale: jax.Array, plan: Plan, reflectors: bool = True
) -> tuple[Factored | None, jax.Array]:
    """The QR factorization of ``scale`` times the tall matrix: itself, if wanted, and the local
    rows of its triangle."""
    tall = plan.tall

    def body(shard: jax.Array, scale: jax.Array) -> tuple[Factored | None, jax.Array]:
        rows = tall.take_adjoint(shard, plan.placed) if plan.is_wide else tall.take(shard)
        rows = scale * rows
        if not reflectors:
            return None, _householder.triangle(rows, tall.panels, tall.axes)
        factored = _householder.factor(rows, tall.panels, tall.axes)
        return factored, factored.triangle

    specs = tall.factored_specs() if reflectors else None
    return tall.placed.map(body, (plan.placed.spec, P()), (specs, P(tall.axes)))(a, scale)


@functools.partial(jax.jit, static_argnames="plan")
def _polar_factors(
    a: jax.Array, triangle: jax.Array, scale: jax.Array, plan: Plan
) -> tuple[jax.Array, jax.Array]:
    """Local rows (R, n) of the factors ``u`` and ``h`` of the triangle or, if it is square, of
    ``scale a``."""
    tall, layout = plan.tall, plan.tall.panels.triangle

    def body(shard: jax.Array, triangle: jax.Array, scale: jax.Array) -> Any:
        if plan.replicated:
            u, s, vh = _by_lapack(triangle, plan)
            return _local(gemm(u, vh), plan), _local(gemm(adjoint(vh) * s, vh), plan)
        rows, scale = triangle, scale if plan.is_direct else jnp.ones_like(scale)
        if plan.is_direct:
            rows = tall.take(shard)
            # The h is the same for any order of the rows.
            if plan.u or layout.padded > layout.n or rows.shape != triangle.shape:
                rows = _redistribute.rows_from_shard(shard, plan.placed.sharded, layout.n, layout)
        u, h = _qdwh.polar(rows, triangle, scale, layout, tall.axes)
        return tuple(_redistribute.columns_from_slots(x, layout) for x in (u, h))

    rows = P(tall.axes)
    return tall.placed.map(body, (plan.placed.spec, rows, P()), (rows, rows))(a, triangle, scale)


def _decomposed(a: jax.Array, scale: jax.Array, plan: Plan) -> tuple[Factored | None, OfTriangle]:
    """The decomposition of the triangle of ``scale a`` after its QR, or of itself if square."""
    if plan.is_direct and plan.is_reduced:
        return None, _by_reflections(scale * a, plan)
    # QDWH needs the triangle of a square matrix for its least singular value alone.
    factored, triangle = _factor(a, scale, plan, not plan.is_direct)
    if plan.replicated:
        return factored, _of_small_triangle(triangle, plan)
    if plan.is_reduced:
        return factored, _by_reflections(_square_matrix(triangle, plan), plan)
    u, h = _polar_factors(a, triangle, scale, plan)
    values, vectors = _eigh.compute(_square_matrix(h, plan), _problem(plan))
    return factored, _turned(u, values, vectors, plan)


@functools.partial(jax.jit, static_argnames="plan")
def _polar_of(found: OfTriangle, plan: Plan) -> tuple[jax.Array, jax.Array]:
    """Local rows (R, n) of ``u v^H`` and ``v s v^H``."""
    layout, axes = plan.tall.panels.triangle, plan.tall.axes

    def body(found: OfTriangle) -> tuple[jax.Array, ...]:
        slots = (
            _products.times_adjoint(x, found.v, layout, axes) for x in (found.u, found.v * found.s)
        )
        return tuple(_redistribute.columns_from_slots(x, layout) for x in slots)

    rows = P(axes)
    return plan.tall.placed.map(body, (_triangle_specs(axes),), (rows, rows))(found)


def _problem(plan: Plan) -> _eigh.Problem:
    n = plan.tall.columns
    return _eigh.Problem(plan.square, True, plan.u or plan.vh, 0, n, False, plan.kernels, n)


@functools.partial(jax.jit, static_argnames="plan")
def values(a: jax.Array, plan: Plan) -> jax.Array:
    """The singular values, by one program: results of several would be held beside the buffers."""
    scale = _scale(a, plan)
    if plan.is_reduced:
        return _values_by_reflections(a, scale, plan) / scale
    _, triangle = _factor(a, scale, plan, False)
    if plan.replicated:
        return _of_small_triangle(triangle, plan).s / scale
    h = _square_matrix(_polar_factors(a, triangle, scale, plan)[1], plan)
    return jnp.sort(jnp.abs(_eigh.compute(h, _problem(plan))))[::-1] / scale


def _values_by_reflections(a: jax.Array, scale: jax.Array, plan: Plan) -> jax.Array:
    """The singular values of ``scale a``: of itself if it is square, else of its triangle."""
    tall, (m, n) = plan.tall, plan.shape

    def body(shard: jax.Array, scale: jax.Array) -> jax.Array:
        rows, layout = tall.take(shard), tall.panels.layout
        slots = scale * _redistribute.columns_to_slots(rows, layout)
        return _band.singular_values(slots, tall.axes)

    def of_triangle(rows: jax.Array) -> jax.Array:
        slots = _redistribute.columns_to_slots(rows, tall.panels.triangle)
        return _band.singular_values(slots, tall.axes)

    if m == n:
        found = tall.placed.map(body, (plan.placed.spec, P()), P())(a, scale)
    else:
        _, triangle = _factor(a, scale, plan, False)
        found = tall.placed.map(of_triangle, P(tall.axes), P())(triangle)
    return found[: min(m, n)]


@functools.partial(jax.jit, static_argnames="plan")
def _by_reflections(square: jax.Array, plan: Plan) -> OfTriangle:
    """The decomposition of a matrix of the smaller dimension, sharded as ``plan.square``."""
    placed, n, axes = plan.square, plan.tall.columns, plan.tall.axes
    sharded, short = placed.sharded, plan.tall.panels.triangle
    layout = RowMap.halving(sharded, n, WIDTH)
    platform = _validation.platform(placed)
    grid = _grid_model.back_transformation_grid(n, n, sharded.devices, platform)

    def body(shard: jax.Array) -> OfTriangle:
        rows = _redistribute.rows_from_shard(shard, sharded, n, layout)
        slots = _redistribute.columns_to_slots(rows, layout)
        reduced = _bidiagonalize.reduce(slots, layout, axes)
        s, u, v = _bidiagonal_svd.decompose(reduced.diagonal, reduced.right, layout, axes)

        def back(reflectors: Reflectors, rows: jax.Array, first: int) -> jax.Array:
            rows = rows.astype(shard.dtype)
            rows = _back_transformation.apply(reflectors, rows, layout, axes, grid, True, first)
            return _redistribute.move(rows, layout, short, sharded)

        return OfTriangle(back(reduced.p, v, 1), s, back(reduced.q, u, 0))

    return plan.tall.placed.map(body, placed.spec, _triangle_specs(axes))(square)


@functools.partial(jax.jit, static_argnames="plan")
def _of_small_triangle(triangle: jax.Array, plan: Plan) -> OfTriangle:
    def body(rows: jax.Array) -> OfTriangle:
        u, s, vh = _by_lapack(rows, plan)
        return OfTriangle(_local(u, plan), s, _local(adjoint(vh), plan))

    axes = plan.tall.axes
    return plan.tall.placed.map(body, P(axes), _triangle_specs(axes))(triangle)


def _by_lapack(rows: jax.Array, plan: Plan) -> tuple[jax.Array, jax.Array, jax.Array]:
    layout = plan.tall.panels.triangle
    whole = lax.all_gather(rows, plan.tall.axes, tiled=True)
    u, s, vh = jnp.linalg.svd(
        whole[jnp.asarray(layout.slot_of_row[: layout.n])], full_matrices=False, compute_uv=True
    )
    return u, s, vh


def _local(whole: jax.Array, plan: Plan) -> jax.Array:
    """The local rows of a matrix that every device has, zero where padded."""
    layout = plan.tall.panels.triangle
    mine = jnp.asarray(layout.row_of_slot)[lax.axis_index(plan.tall.axes)]
    return jnp.take(whole, mine, axis=0, mode="fill", fill_value=0)


@functools.partial(jax.jit, static_argnames="plan")
def _square_matrix(rows: jax.Array, plan: Plan, factor: float | jax.Array = 1) -> jax.Array:
    layout, placed = plan.tall.panels.triangle, plan.square
    found = plan.tall.placed.map(
        lambda rows: _qr.give(rows, layout, placed), P(plan.tall.axes), placed.spec
    )(rows)
    return found * factor


@functools.partial(jax.jit, static_argnames="plan")
def _turned(u: jax.Array, values: jax.Array, vectors: jax.Array, plan: Plan) -> OfTriangle:
    """From ``r = u h`` and the eigenvalues and eigenvectors of ``h``.

    Rounding can make an eigenvalue negative; its sign goes to the left vector.
    """
    axes, layout, square = plan.tall.axes, plan.tall.panels.triangle, plan.square

    def body(u: jax.Array, values: jax.Array, shard: jax.Array) -> OfTriangle:
        order = jnp.argsort(-jnp.abs(values))
        values = values[order]
        v = _redistribute.rows_from_shard(shard, square.sharded, layout.n, layout)[:, order]
        sign = jnp.where(values < 0, -1, 1).astype(v.dtype)
        slots = _redistribute.columns_to_slots(u, layout)
        return OfTriangle(_products.times(slots, v * sign, layout, axes), jnp.abs(values), v)

    specs, out = (P(axes), P(), square.spec), _triangle_specs(axes)
    return plan.tall.placed.map(body, specs, out)(u, values, vectors)


@functools.partial(jax.jit, static_argnames="plan")
def _finish(factored: Factored | None, found: OfTriangle, plan: Plan) -> tuple[jax.Array, ...]:
    """The matrices that are wanted, as shards of the caller's sharding."""
    (m, n), k, axes = plan.shape, min(plan.shape), plan.tall.axes
    tall, panels, short = plan.tall, plan.tall.panels, plan.tall.panels.triangle
    height = max(m, n) if plan.is_full else k
    wants_long = plan.vh if plan.is_wide else plan.u
    u_placed, vh_placed = (
        plan.result((m, m if plan.is_full else k)),
        plan.result((n if plan.is_full else k, n)),
    )

    def body(factored: Factored | None, found: OfTriangle) -> tuple[jax.Array, ...]:
        short_rows = (found.v, short)
        long = (found.u, short)
        if factored is not None and wants_long:
            long = (_expanded(factored, found.u, plan, height), panels.layout)
        left, right = (short_rows, long) if plan.is_wide else (long, short_rows)
        results = [_qr.give(*left, u_placed)] if plan.u else []
        results.append(found.s)
        if plan.vh:
            rows, held = right
            wanted = RowMap.cyclic(rows.shape[1], short.devices, short.tile)
            results.append(_qr.give(adjoint_rows(rows, held, wanted, axes), wanted, vh_placed))
        return tuple(results)

    specs = (factored and tall.factored_specs(), _triangle_specs(axes))
    out = (u_placed.spec,) * plan.u + (P(),) + (vh_placed.spec,) * plan.vh
    return tall.placed.map(body, specs, out)(factored, found)


def _expanded(factored: Factored, u: jax.Array, plan: Plan, width: int) -> jax.Array:
    """``q [u; 0]``, or with more columns ``q [u 0; 0 1]``: local rows of the tall matrix."""
    panels, axes = plan.tall.panels, plan.tall.axes
    mine, count = panels.mine(axes), panels.count
    spare = panels.layout.rows - u.shape[0]
    u = jnp.pad(u, ((0, max(spare, 0)), (0, 0)))[: panels.layout.rows]
    head = jnp.where(mine[:, None] < count, u, 0)
    rest = (mine[:, None] == jnp.arange(count, width)).astype(u.dtype)
    return _householder.apply(factored, jnp.concatenate([head, rest], axis=1), panels, axes)


@functools.partial(jax.jit, static_argnames="plan")
def _unitary_factor(factored: Factored | None, u: jax.Array, plan: Plan) -> jax.Array:
    tall, rows, out = plan.tall, P(plan.tall.axes), plan.result(plan.shape)

    def body(factored: Factored | None, u: jax.Array) -> jax.Array:
        if factored is None:
            return _qr.give(u, tall.panels.triangle, out)
        return _qr.give(_expanded(factored, u, plan, plan.shape[1]), tall.panels.layout, out)

    specs = factored and tall.factored_specs(), rows
    return tall.placed.map(body, specs, out.spec)(factored, u)
