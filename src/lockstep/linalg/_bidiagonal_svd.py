"""The singular value decomposition of a real upper bidiagonal matrix, on several devices.

Divide and conquer (Gu and Eisenstat, "A divide-and-conquer algorithm for the bidiagonal SVD", SIAM
J. Matrix Anal. Appl. 16, 1995), without deflation, as `_divide_and_conquer` has it for eigenvalues.

The last row of a block of ``h`` columns, ``alpha`` on the diagonal and ``beta`` right of it, is set
aside: it couples the block with the next one. What is left has ``h - 1`` singular values and one
null vector, a right one. They are in that order: the last of the ``h`` values of a block stands for
the null vector, and on the left for the row that is set aside. The block at the end of the matrix
sets no row aside, and has ``h`` singular values.

A merge adds the row between two blocks. In terms of their vectors it is a row ``z`` above a
diagonal matrix, whose squared singular values are those of a rank-one update (`_secular`): ``v`` is
``z / (s^2 - d^2)``, and ``u`` is ``d v``, with 1 at the place of the row.

Each device holds rows of the vectors: row (p, i) as in `_layout`; a leaf of the recursion is some
supersteps. Devices exchange only the roots, O(n) in each level.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _secular
from lockstep.linalg._divide_and_conquer import same, steps_of_leaf, times_vectors
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._secular import Roots, Update

_PADDING, _ASIDE = 4, 16
"""Singular values of the padding, beyond 2, and what stands for a null vector, beyond those."""


class Blocks(NamedTuple):
    """The decompositions of all blocks of one level, ascending."""

    values: jax.Array
    """(B, h)."""
    first: jax.Array
    """(B, h): the first rows of the right vectors."""
    last: jax.Array
    """(B, h): their last rows."""
    u: jax.Array
    """(B, local rows, h)."""
    v: jax.Array
    """(B, local rows, h)."""


def decompose(
    diagonal: jax.Array, right: jax.Array, layout: RowMap, axes: Axes
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the values (n,), descending, and local rows (R, n) of the left and right vectors.

    ``layout.steps`` is a power of two, and padding is at the end. ``right[k]`` is right of
    ``diagonal[k]``. The kernels of `_cpu_kernels` are needed.
    """
    n, padded, leaf = layout.n, layout.padded, steps_of_leaf(layout) * layout.devices * layout.tile
    diagonal, right = same((diagonal, right), axes)
    right = jnp.where(jnp.arange(padded) < n - 1, right, 0)
    bound = jnp.maximum(jnp.abs(diagonal[:n]).max(), jnp.abs(right).max())
    # Offsets of squares, and their inverses, are far from the ends of the range of 32 bits.
    unit = 1.0 if diagonal.dtype == jnp.float64 else 2.0**40
    safe = jnp.where(bound > 0, bound, 1)
    diagonal = jnp.where(jnp.arange(padded) < n, diagonal / safe * unit, _PADDING * unit)
    right = right / safe * unit
    found = _leaves(diagonal, right, leaf, layout, axes)
    size = leaf
    while size < padded:
        rows = slice(size - 1, None, 2 * size)
        found = _merge(found, diagonal[rows], right[rows], unit, layout, axes)
        size *= 2
    values, u, v = found.values[0], found.u[0], found.v[0]
    if leaf == padded:
        values, u, v = values[:n][::-1], u[:, :n][:, ::-1], v[:, :n][:, ::-1]
    return values / unit * bound, u, v


def _leaves(diagonal: jax.Array, right: jax.Array, leaf: int, layout: RowMap, axes: Axes) -> Blocks:
    """Decomposes the leaves by LAPACK, each device some of them, and all devices the last one."""
    devices, count, me = layout.devices, diagonal.size // leaf, lax.axis_index(axes)
    place = jnp.arange(leaf)

    def dense(mine: jax.Array) -> jax.Array:
        here = jnp.zeros((len(mine), leaf, leaf), diagonal.dtype)
        here = here.at[:, place, place].set(diagonal.reshape(count, leaf)[mine])
        return here.at[:, place[:-1], place[1:]].set(right.reshape(count, leaf)[mine, :-1])

    u, s, vh = jnp.linalg.svd(dense(jnp.array([count - 1])))
    whole = s[:, ::-1], u[:, :, ::-1], vh[:, ::-1]
    whole = lax.psum(jax.tree.map(lambda x: jnp.where(me == 0, x, 0), whole), axes)
    if count > 1:
        each = -(-(count - 1) // devices)
        mine = jnp.minimum(me * each + jnp.arange(each), count - 2)
        u, s, vh = jnp.linalg.svd(dense(mine)[:, :-1])
        aside = jnp.zeros_like(s, shape=(each, leaf, leaf)).at[:, -1, -1].set(1)
        u = aside.at[:, :-1, :-1].set(u[:, :, ::-1])
        vh = jnp.concatenate([vh[:, -2::-1], vh[:, -1:]], axis=1)
        s = jnp.pad(s[:, ::-1], ((0, 0), (0, 1)))
        parts = lax.all_gather((s, u, vh), axes, tiled=True)
        whole = jax.tree.map(lambda x, y: jnp.concatenate([x[: count - 1], y]), parts, whole)
    values, u, vh = whole
    v = vh.swapaxes(1, 2)

    def own(vectors: jax.Array) -> jax.Array:
        by_device = vectors.reshape(count, -1, devices, layout.tile, leaf)
        return lax.dynamic_index_in_dim(by_device, me, 2, keepdims=False).reshape(count, -1, leaf)

    return Blocks(values, v[:, 0], v[:, -1], own(u), own(v))


def _merge(
    of: Blocks, alpha: jax.Array, beta: jax.Array, unit: float, layout: RowMap, axes: Axes
) -> Blocks:
    """Pairs of neighbouring blocks become one block each, by the rows that couple them."""
    blocks, half = of.values.shape[0] // 2, of.values.shape[1]
    is_last = jnp.arange(blocks) == blocks - 1
    row = jnp.concatenate([alpha[:, None] * of.last[::2], beta[:, None] * of.first[1::2]], axis=1)
    # One combination of the two null vectors has their share of the row, the other one stays.
    one, other = row[:, half - 1], row[:, -1]
    size = jnp.where(is_last, one, jnp.hypot(one, other))
    turns = ~is_last & (size > 0)
    safe = jnp.where(turns, size, 1)
    turn = jnp.where(turns, one / safe, 1), jnp.where(turns, other / safe, 0)
    row = row.at[:, half - 1].set(size).at[:, -1].set(jnp.where(is_last, row[:, -1], 0))
    poles = of.values.reshape(blocks, 2 * half)
    poles = poles.at[:, -1].set(jnp.where(is_last, poles[:, -1], _ASIDE * unit))
    update = _secular.update_of_squares(poles, half - 1, row, unit)
    roots = _secular.roots(update, layout.devices, axes, True)
    weights = _secular.weights(update, roots, layout.devices, axes, True)
    if 2 * half == layout.padded:
        roots = Roots(*(x[:, : layout.n][:, ::-1] for x in roots))
    base = roots.pole + roots.small
    values = base + roots.offset / (base + jnp.sqrt(base**2 + roots.offset))

    def vectors(some: Roots) -> tuple[jax.Array, jax.Array]:
        return _vectors(update, some, weights, turn)

    u, v = times_vectors((_pairs(of.u), _pairs(of.v)), vectors, roots, layout, True)
    edges = jnp.stack([of.first[::2], of.last[1::2]], axis=1)[:, :, None]
    if 2 * half < layout.padded:
        (edges,) = times_vectors((edges,), lambda some: vectors(some)[1:], roots, layout, True)
    else:
        edges = jnp.zeros((1, 2, 1, layout.n), values.dtype)  # not used
    shape = blocks, -1, values.shape[1]
    return Blocks(values, edges[:, 0, 0], edges[:, 1, 0], u.reshape(shape), v.reshape(shape))


def _pairs(rows: jax.Array) -> jax.Array:
    return rows.reshape(-1, 2, *rows.shape[1:])


def _vectors(
    update: Update, roots: Roots, weights: jax.Array, turn: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """The left and right vectors (B, 2 h, k) of these roots, of any length.

    ``turn``: cosine and sine, (B,) each, by which the null vectors of both halves are combined.
    """
    m = update.pole.shape[1]
    place, row = jnp.arange(m)[:, None], m // 2 - 1
    # With these signs a row that stays aside remains the positive unit vector on the left.
    v = weights[:, :, None] / -update.distances(*roots)
    u = jnp.where(place == row, 1, (update.pole + update.small)[:, :, None] * v)
    cosine, sine = (x[:, None, None] for x in turn)
    one, other = v[:, row : row + 1], v[:, -1:]
    turned = jnp.where(place == row, cosine * one - sine * other, v)
    return u, jnp.where(place == m - 1, sine * one + cosine * other, turned)
