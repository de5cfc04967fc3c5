"""A square matrix to real bidiagonal form by Householder reflections from both sides.

Blocked as LAPACK's ``gebrd`` (Dongarra, Sorensen and Hammarling, "Block reduction of matrices to
condensed forms", 1989), over the slots of `_layout`: a panel is one superstep, whose columns and
rows are gathered once, so that every device computes the reflectors from the same numbers. The
adjoint ``m`` of the given matrix is reduced, of which a device has whole columns. So one pass over
them and one collective do for both products of a column (Howell, Demmel, Fulton, Hammarling and
Marmol, "Cache efficient bidiagonalization using BLAS 2.5 operators", ACM TOMS 34, 2008). All
supersteps share one compiled body.

For singular values alone, on CPUs: the polar decomposition makes twenty times as many products. It
needs the kernels of `_cpu_kernels`, because the trailing matrix shrinks at run time. Everything
runs inside `jax.shard_map`. A vector over the slots has shape (P, R).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lockstep.linalg import _cpu_kernels
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._layout import Axes
from lockstep.linalg._tridiagonalize import inner, reflector, with_row

WIDTH = 16
"""Columns of a panel, about: every device corrects the vectors of all columns by those before."""


class Panel(NamedTuple):
    """The vectors of one superstep, (2 width, P R): ``m`` becomes ``m - left^T right^*``.

    The first half of ``left`` are reflectors from the left, and of ``right`` what they take away;
    the other half of ``right`` are reflectors from the right, and so on.
    """

    left: jax.Array
    right: jax.Array


def singular_values(a: jax.Array, axes: Axes) -> jax.Array:
    """Returns the singular values of the square matrix of slots ``a`` (R, P, R), descending.

    They are the same on all devices. Padding, rows and columns of zeros, adds values of zero.
    """
    devices = a.shape[1]
    tile = min(max(1, WIDTH // devices), len(a))
    spare = -len(a) % tile
    a = jnp.pad(a, ((0, spare), (0, 0), (0, spare)))
    rows = len(a)
    place = np.arange(rows)
    order = (place // tile * devices + np.arange(devices)[:, None]) * tile + place % tile

    def step(a: jax.Array, s: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        panel, diagonal, right = _panel(a, s, jnp.asarray(order), tile, axes)
        return _update(a, panel, (s + 1) * tile, axes), (diagonal, right)

    _, (diagonal, right) = lax.scan(step, a, jnp.arange(rows // tile))
    found = _cpu_kernels.bidiagonal_values(diagonal.ravel(), right.ravel())
    # Hosts with other processors may round in another way.
    return lax.psum(jnp.where(lax.axis_index(axes) == 0, found, 0), axes)


def _panel(
    a: jax.Array, s: jax.Array, order: jax.Array, tile: int, axes: Axes
) -> tuple[Panel, jax.Array, jax.Array]:
    """The vectors of superstep ``s``, and its part of the bidiagonal matrix: (width,) each."""
    rows, devices, _ = a.shape
    top, width, me = s * tile, devices * tile, lax.axis_index(axes)
    columns, lines = _gathered(a, top, tile, axes)

    def column(c: jax.Array, state: tuple) -> tuple:
        # An array is read before a row of it is written, or after, but not beside: XLA would copy
        # it. A row that is not written yet is zero, and so is its share of a sum.
        (left, right), found = state
        k, at = s * width + c, c // tile * rows + top + c % tile
        after = order > k

        def combined(of: jax.Array, vectors: jax.Array) -> jax.Array:
            weights = lax.dynamic_index_in_dim(of, at, 1, keepdims=False).conj()
            return (weights @ vectors).reshape(devices, rows)

        v, tau, beta = reflector(columns[c] - combined(right, left), order, k - 1)
        left = with_row(left, v.ravel(), c)
        r = jnp.where(after, lines[c] - combined(left, right), 0)
        own = lax.dynamic_slice_in_dim(right, me * rows, rows, axis=1)
        less = inner(left, v) @ own
        taus = jnp.where(after[me], tau, 0)
        y, w = _cpu_kernels.bidiagonal_pass(a, v, taus, less, r[me], top)
        w, y = lax.psum(jnp.stack([w, jnp.zeros_like(w).at[me].set(y)]), axes)
        right, r = with_row(right, y.ravel(), c), r - y
        u, tau, off = reflector(r, order, k)
        right = with_row(right, u.ravel(), width + c)
        # u is r without `off` at its first place, by what makes that place 1.
        first = jnp.where(order == k + 1, r, 0).sum() - off
        x = jnp.where(tau == 0, 0, (w - off * columns[c + 1]) / jnp.where(tau == 0, 1, first))
        x = x - (inner(right, u) @ left).reshape(devices, rows)
        left = with_row(left, jnp.where(after, tau * x, 0).ravel(), width + c)
        return Panel(left, right), with_row(found, jnp.stack([beta, off]), c)

    none = jnp.zeros((2 * width, devices * rows), a.dtype)
    start = Panel(none, none), jnp.zeros((width, 2), a.real.dtype)
    panel, found = lax.fori_loop(0, width, column, start)
    return panel, *found.T


def _gathered(a: jax.Array, top: jax.Array, tile: int, axes: Axes) -> tuple[jax.Array, jax.Array]:
    """The columns of ``m`` of a superstep and the next one, (width + 1, P, R), and the adjoints of
    its rows."""
    rows = a.shape[0]
    own = lax.dynamic_slice_in_dim(a, top, tile, axis=2).reshape(rows, -1)
    lines = lax.all_gather(own.T, axes).swapaxes(0, 1)
    columns = lax.all_gather(lax.dynamic_slice_in_dim(a, top, tile), axes, tiled=True)
    # The last superstep has no next one, and does not use it.
    following = lax.dynamic_index_in_dim(a, jnp.minimum(top + tile, rows - 1))
    is_first = lax.axis_index(axes) == 0
    following = lax.psum(jnp.where(is_first, following, 0), axes)
    return jnp.concatenate([columns, following]).conj(), lines


def _update(a: jax.Array, panel: Panel, top: jax.Array, axes: Axes) -> jax.Array:
    """``a``, the adjoint of ``m``, after the reflections, from the local row and column ``top``."""
    rows, devices, _ = a.shape
    own = lax.dynamic_slice_in_dim(panel.right, lax.axis_index(axes) * rows, rows, axis=1).T
    return _cpu_kernels.subtract_products(
        Blocks(a, (top, 0, top), step_l=(0, 1, 0)),
        Blocks(own[:, None], (top, 0, 0)),
        Blocks(panel.left.conj().reshape(-1, devices, rows), (0, 0, top), step_l=(0, 1, 0)),
        Sizes(rows - top, rows - top, own.shape[1], count_l=devices),
    )
