"""A square matrix to real bidiagonal form by Householder reflections from both sides.

Blocked as LAPACK's ``gebrd`` (Dongarra, Sorensen and Hammarling, "Block reduction of matrices to
condensed forms", 1989), over the slots of `_layout`: a panel is one superstep, whose columns and
rows are gathered once, so that every device computes the reflectors from the same numbers. The
adjoint ``m`` of the given matrix is reduced, of which a device has whole columns. So one pass over
them and one collective do for both products of a column (Howell, Demmel, Fulton, Hammarling and
Marmol, "Cache efficient bidiagonalization using BLAS 2.5 operators", ACM TOMS 34, 2008). All
supersteps share one compiled body.

It is for CPUs, since it needs the kernels of `_cpu_kernels`: the trailing matrix shrinks at run
time. The polar decomposition makes eight times as many products. Everything runs inside
`jax.shard_map`. A vector over the slots has shape (P, R).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels
from lockstep.linalg._back_transformation import Reflectors
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._tridiagonalize import with_row


class Panel(NamedTuple):
    """The vectors of one superstep, (2 width, P, R): ``m`` becomes ``m - left^T right^*``.

    Column c has two of each, from 2 c on: in ``left`` its reflector from the left, and what its
    reflector from the right takes away; in ``right`` what the one from the left takes away, and the
    reflector from the right.
    """

    left: jax.Array
    right: jax.Array


class Reduced(NamedTuple):
    """``a = p b^H q^H`` with the upper bidiagonal ``b``, in the order of elimination."""

    diagonal: jax.Array
    """(P R,), real."""
    right: jax.Array
    """(P R,), real: what is right of each number of the diagonal; the last is zero."""
    p: Reflectors
    """The one of column k begins below row k."""
    q: Reflectors
    """The one of column k begins at row k."""


def diagonals(a: jax.Array, tile: int, axes: Axes) -> tuple[jax.Array, jax.Array]:
    """`Reduced.diagonal` and `Reduced.right` alone, of slots ``a`` (R, P, R).

    Rows and columns of zeros add values of zero. R is a multiple of ``tile``.
    """

    def step(a: jax.Array, s: jax.Array) -> tuple[jax.Array, jax.Array]:
        panel, scalars = _panel(a, s, tile, axes)
        return _update(a, panel, (s + 1) * tile, axes), scalars[:2].real

    _, found = lax.scan(step, a, jnp.arange(len(a) // tile))
    diagonal, right = found.swapaxes(0, 1).reshape(2, -1)
    return diagonal, right


def reduce(a: jax.Array, layout: RowMap, axes: Axes) -> Reduced:
    """Reduces the square matrix of slots ``a`` (R, P, R); padding is zero, and at the end."""
    tile, me = layout.tile, lax.axis_index(axes)

    def step(state: tuple[jax.Array, jax.Array], s: jax.Array) -> tuple[Any, jax.Array]:
        (a, q), top = state, s * tile
        panel, scalars = _panel(a, s, tile, axes)
        a = _update(a, panel, top + tile, axes)

        def keep(kept: jax.Array, vectors: jax.Array) -> jax.Array:
            own = vectors[:, me].T.reshape(-1, layout.devices, tile)
            return lax.dynamic_update_slice_in_dim(kept, own, top, axis=2)

        # Nothing reads these columns of `a` again.
        return (keep(a, panel.right[1::2]), keep(q, panel.left[::2])), scalars

    (p, q), found = lax.scan(step, (a, jnp.zeros_like(a)), jnp.arange(layout.steps))
    diagonal, right, of_q, of_p = found.swapaxes(0, 1).reshape(4, -1)
    return Reduced(diagonal.real, right.real, Reflectors(p, of_p), Reflectors(q, of_q))


def _panel(a: jax.Array, s: jax.Array, tile: int, axes: Axes) -> tuple[Panel, jax.Array]:
    """The vectors of superstep ``s``; and (4, width): its part of both diagonals of the bidiagonal
    matrix, and the factors of the reflectors from the left and from the right."""
    rows, devices, _ = a.shape
    top, width, me = s * tile, devices * tile, lax.axis_index(axes)
    columns, lines = _gathered(a, top, tile, axes)

    def column(c: jax.Array, state: tuple) -> tuple:
        # An array is read before a row of it is written, or after, but not beside: XLA would copy
        # it.
        (left, right), found = state
        v, r, part, (beta, tau) = _cpu_kernels.bidiagonal_left(
            a, columns, lines, left, right, s, c, me
        )
        products = lax.psum(part, axes)
        left, right = with_row(left, v, 2 * c), with_row(right, products[1], 2 * c)
        u, x, (off, tau_right) = _cpu_kernels.bidiagonal_right(
            r, products, columns, left, right, s, c
        )
        left, right = with_row(left, x, 2 * c + 1), with_row(right, u, 2 * c + 1)
        return Panel(left, right), with_row(found, jnp.stack([beta, off, tau, tau_right]), c)

    none = jnp.zeros((2 * width, devices, rows), a.dtype)
    start = Panel(none, none), jnp.zeros((width, 4), a.dtype)
    panel, found = lax.fori_loop(0, width, column, start)
    return panel, found.T


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
    return subtract(a, panel.right[:, lax.axis_index(axes)].T, panel.left.conj(), top)


def subtract(a: jax.Array, left: jax.Array, right: jax.Array, top: jax.Array) -> jax.Array:
    """``a - left right``, in place, from the local row and column ``top`` on.

    ``left`` is (R, k), ``right`` (k, P, R).
    """
    rows, devices, _ = a.shape
    return _cpu_kernels.subtract_products(
        Blocks(a, (top, 0, top), step_l=(0, 1, 0)),
        Blocks(left[:, None], (top, 0, 0)),
        Blocks(right, (0, 0, top), step_l=(0, 1, 0)),
        Sizes(rows - top, rows - top, left.shape[1], count_l=devices),
    )
