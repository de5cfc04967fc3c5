"""The unitary polar factor of a square matrix of slots, by QDWH.

Nakatsukasa, Bai and Gygi, "Optimizing Halley's iteration for computing the matrix polar
decomposition" (SIAM J. Matrix Anal. Appl. 31, 2010): a rational iteration that takes all singular
values from [l, 1] to 1, in five steps for l = `FLOOR`; smaller values take one more for each four
decades. A step is a QR factorization of the matrix on top of the identity or, once that is safe
(c <= 100), a Cholesky factorization. One compiled body serves all steps.

The QR factorization is Cholesky's, twice (`_stacked_qr`). It is as accurate as Householder's where
the condition is small enough, and here `FLOOR` bounds that: it is the square root of c.
It is the way of GPUs, so it has no kernels. Everything here runs inside `jax.shard_map`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import (
    _cholesky,
    _dealt_columns,
    _products,
    _redistribute,
    _stacked_qr,
    _sweeps,
)
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._sweeps import Triangle

MAX_STEPS = 16
"""Steps at most; a singular matrix needs about nine."""

FLOOR = {4: 1e-3, 8: 1e-6}
"""The least l that the weights are made for, by the bytes of a real number. The rounding errors of
the QR factorization are relative to the norm of a column, which is the square root of c for the
matrix and 1 for the identity below it. With l = 1e-20, the root is 6e12: the identity is then wrong
by 1e-3, and the polar factors of Hilbert's matrix of 48 rows by 900 rounding errors instead of 4
(the analysis is in Nakatsukasa and Higham, "Backward stability of iterations for computing the
polar decomposition", SIAM J. Matrix Anal. Appl. 33, 2012). In 32 bits c is the larger one of the
limits: 1e-3 gives 2e4, a thousandth of what Cholesky's factorization can bear."""

SAFE = 100.0
"""The largest weight c with which a step by Cholesky is as accurate as one by QR."""

POWERS = 3
"""Rounds of the inverse power iteration that estimates the smallest singular value."""


class Polar(NamedTuple):
    """``x = u h`` of a square matrix of slots (R, P, R); ``h`` is Hermitian, not negative."""

    u: jax.Array
    h: jax.Array


def polar(
    rows: jax.Array,
    triangle: jax.Array,
    scale: jax.Array,
    layout: RowMap,
    axes: Axes,
) -> Polar:
    """The polar decomposition of ``scale`` times the square matrix of these local ``rows``, (R, n).

    ``triangle`` holds those of the triangle of its QR factorization, scaled already, which is the
    matrix itself if it is triangular. ``u`` is unitary to rounding, also where singular values are
    zero: then the matrix that is iterated on has a random change, whose norm is about that of
    rounding.
    """
    me = lax.axis_index(axes)
    slots = scale * _redistribute.columns_to_slots(rows, layout)
    largest, norm = _bound(slots, axes)

    def scaled(slots: jax.Array) -> jax.Array:
        x = slots / largest / norm
        return _redistribute.set_padding(x, layout, me, jnp.ones((), x.dtype))

    upper = scaled(_redistribute.columns_to_slots(triangle, layout))
    least = _least_singular_value(upper, layout, axes)
    x = scaled(slots)
    eps = jnp.finfo(x.dtype).eps
    singular = ~(least > 4 * eps)
    start = _with_noise(x, jnp.where(singular, eps / layout.padded**0.5, 0), layout, me)
    # The least singular value of the changed matrix is about the noise over the square root of n.
    smallest = 0.01 * eps / layout.padded
    least = jnp.where(singular, smallest, jnp.minimum(0.5 * least, 0.9))
    u = _rows_of(_iterate(_columns_of(start), least, layout, axes))
    # From the rows as they were given, so that neither they, scaled, nor their slots are held
    # during the iteration.
    h = _products.adjoint_times(u, rows, layout, axes, scale)
    h = _redistribute.columns_to_slots(h, layout)
    h = (h + _redistribute.adjoint(h, axes)) / 2
    return Polar(u, _redistribute.set_padding(h, layout, me, jnp.ones((), h.dtype)))


def _columns_of(slots: jax.Array) -> jax.Array:
    """The adjoint of own rows, (R, P, R): own columns, (P, R, R)."""
    return slots.conj().transpose(1, 2, 0)


def _rows_of(columns: jax.Array) -> jax.Array:
    """The inverse of `_columns_of`."""
    return columns.conj().transpose(2, 0, 1)


def _bound(x: jax.Array, axes: Axes) -> tuple[jax.Array, jax.Array]:
    """Returns two factors of the Frobenius norm, which no singular value exceeds.

    Their product can overflow where no singular value does. For a matrix of zeros they are 1.
    """
    largest = lax.pmax(jnp.abs(x).max(initial=0), axes)
    largest = jnp.where(largest > 0, largest, 1)
    norm = jnp.sqrt(lax.psum((jnp.abs(x / largest) ** 2).sum(), axes))
    return _same(largest, axes), _same(jnp.where(norm > 0, norm, 1), axes)


def _with_noise(x: jax.Array, size: jax.Array, layout: RowMap, me: jax.Array) -> jax.Array:
    """``x`` plus random numbers below ``size``, some rows at a time."""
    key = jax.random.fold_in(jax.random.key(0), me)

    def step(s: jax.Array, x: jax.Array) -> jax.Array:
        some = lax.dynamic_slice_in_dim(x, s * layout.tile, layout.tile)
        noise = jax.random.uniform(jax.random.fold_in(key, s), some.shape, x.real.dtype, -1, 1)
        some += (size * noise).astype(x.dtype)
        return lax.dynamic_update_slice_in_dim(x, some, s * layout.tile, 0)

    return lax.fori_loop(0, layout.steps, step, x)


def _same(value: jax.Array, axes: Axes) -> jax.Array:
    """The first device's value, on every device: all must take the same branches."""
    return lax.psum(jnp.where(lax.axis_index(axes) == 0, value, 0), axes)


def _least_singular_value(x: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """An estimate, from above, for an upper triangular ``x``; 0 or NaN if it is singular."""
    low = Triangle(_redistribute.adjoint(x, axes))
    key = jax.random.fold_in(jax.random.key(1), lax.axis_index(axes))
    v = jax.random.normal(key, (layout.rows, 1), x.real.dtype).astype(x.dtype)

    def norm(v: jax.Array) -> jax.Array:
        return jnp.sqrt(lax.psum((jnp.abs(v) ** 2).sum(), axes))

    def power(_: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        v, _ = state
        v = _sweeps.solve(low, v / norm(v), layout, axes)
        size = norm(v)  # of x^-H v
        return _sweeps.solve(low, v / size, layout, axes, conjugate_transpose=True), size

    _, size = lax.fori_loop(0, POWERS, power, (v, jnp.ones((), x.real.dtype)))
    return _same(1 / size, axes)


def _iterate(x: jax.Array, least: jax.Array, layout: RowMap, axes: Axes) -> jax.Array:
    """The polar factor of ``x``; of both, each device has the adjoint of its rows, (P, R, R)."""
    eps = float(jnp.finfo(x.dtype).eps)
    tolerance = (4 * eps) ** (1 / 3)
    by_qr = functools.partial(_step_by_qr, layout=layout, axes=axes)
    by_cholesky = functools.partial(_step_by_cholesky, layout=layout, axes=axes)
    floor = FLOOR[least.dtype.itemsize]

    def unfinished(state: tuple) -> jax.Array:
        _, least, change, count = state
        # A small change tells that the next one would be its cube only where the weights are those
        # of values near 1. A step that takes 1e-16 to 1e-12 changes little, too.
        return (count < MAX_STEPS) & ((change > tolerance) | (1 - least > 10 * eps))

    def step(state: tuple) -> tuple:
        x, least, _, count = state
        a, b, c = _weights(jnp.maximum(least, floor))
        x, change = lax.cond(c > SAFE, by_qr, by_cholesky, x, a, b, c)
        least = jnp.minimum(least * (a + b * least**2) / (1 + c * least**2), 1)
        return x, least, _same(jnp.sqrt(lax.psum(change, axes)), axes), count + 1

    start = x, least, jnp.asarray(jnp.inf, least.dtype), 0
    return lax.while_loop(unfinished, step, start)[0]


def _weights(least: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The a, b, c of the paper's (3.9) to (3.11), for singular values from ``least`` to 1."""
    square = least**2
    d = jnp.cbrt(4 * (1 - square)) * least ** (-4 / 3)
    root = jnp.sqrt(1 + d)
    a = root + jnp.sqrt(8 - 4 * d + 8 * (2 - square) / (square * root)) / 2
    b = (a - 1) ** 2 / 4
    return a, b, a + b - 1


def _step_by_qr(
    x: jax.Array,
    a: jax.Array,
    b: jax.Array,
    c: jax.Array,
    layout: RowMap,
    axes: Axes,
) -> tuple[jax.Array, jax.Array]:
    """``b/c x + (a - b/c) / sqrt(c) q1 q2^H`` for ``[sqrt(c) x; 1] = [q1; q2] r``.

    Also the sum of the squares of the change, on this device.
    """
    tile, devices = layout.tile, layout.devices
    # The minimum is 1, here where c is large. XLA would hold a constant during all steps.
    q = _stacked_qr.factor(jnp.sqrt(c) * x, jnp.minimum(c, 1), layout, axes)
    factor = (a - b / c) / jnp.sqrt(c)

    def step(
        s: jax.Array, state: tuple[jax.Array, jax.Array], first: int
    ) -> tuple[jax.Array, jax.Array]:
        x, change = state
        top = s * tile
        own = lax.dynamic_slice(q.q2, (0, first, top), (devices, layout.rows - first, tile))
        rows = _sweeps.gather_rows(_rows_of(own), axes)  # of q2
        old = lax.dynamic_slice_in_dim(x, top, tile, 1)
        none = jnp.zeros_like(old)
        product = -_dealt_columns.left_to(none, rows, q.q1, top, False, upper=True)
        new = b / c * old + factor * product
        change += (jnp.abs(new - old) ** 2).sum()
        return lax.dynamic_update_slice_in_dim(x, new, top, 1), change

    state = x, jnp.zeros_like(c)
    for first, end in _sweeps.stages(layout.steps):
        state = lax.fori_loop(first, end, functools.partial(step, first=first * tile), state)
    return state


def _step_by_cholesky(
    x: jax.Array,
    a: jax.Array,
    b: jax.Array,
    c: jax.Array,
    layout: RowMap,
    axes: Axes,
) -> tuple[jax.Array, jax.Array]:
    """``b/c x + (a - b/c) x z^-1`` for ``z = 1 + c x^H x``, and the change as above."""
    local, how = jnp.arange(layout.rows), (layout, axes, False)
    z = c * _stacked_qr.gram(x, layout, axes)
    z = z.at[local, lax.axis_index(axes), local].add(1)
    low, _ = _cholesky.factor(z, layout, axes, False, False)
    solved = _dealt_columns.solve_columns(Triangle(low), x, *how)
    solved = _dealt_columns.solve_columns(Triangle(low), solved, *how, True)
    new = b / c * x + (a - b / c) * solved
    return new, (jnp.abs(new - x) ** 2).sum()
