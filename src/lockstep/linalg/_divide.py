"""Eigenvalues and eigenvectors of a real symmetric tridiagonal matrix, rows of the vectors spread.

Cuppen's divide and conquer ("A divide and conquer method for the symmetric tridiagonal
eigenproblem", 1981), with the eigenvectors of each rank-one update rebuilt from recomputed weights
(Gu and Eisenstat, "A stable and efficient algorithm for the rank-one modification of the symmetric
eigenproblem", 1994), which keeps them orthogonal however close the eigenvalues are.

Shapes are static, so nothing is deflated. Instead equal poles are told apart by offsets far below
rounding, kept beside them as a second word, and weights and couplings get a floor far below
rounding: then every root lies strictly between two poles, and is found as an offset from the nearer
one, to all its bits.

Each device holds rows of the eigenvectors: row (p, i) as in `_layout`, leaf ``s`` of the recursion
being superstep ``s``. A merge multiplies them by the eigenvectors of the update, which every device
forms by itself, columns by columns; what is communicated is the roots, O(n) a level.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg._layout import Axes, Layout
from lockstep.linalg._tiles import gemm


class Update(NamedTuple):
    """Rank-one updates ``diag(pole) + rho z z^T`` of ``B`` blocks of size ``m``, in given order."""

    pole: jax.Array
    """(B, m)."""
    small: jax.Array
    """(B, m): the second word of the poles."""
    z: jax.Array
    """(B, m)."""
    rho: jax.Array
    """(B,), positive."""
    ranks: jax.Array
    """(B, m): the place of each pole in ascending order."""
    ascending: jax.Array
    """(B, m): which pole is at each place."""

    def at(self, index: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Both words of the poles of these indices, (B, k)."""
        take = functools.partial(jnp.take_along_axis, indices=index, axis=1)
        return take(self.pole), take(self.small)


class Roots(NamedTuple):
    """Eigenvalues in ascending order, (B, m): an offset from both words of the nearer pole."""

    offset: jax.Array
    pole: jax.Array
    small: jax.Array


def eigh_tridiagonal(
    diagonal: jax.Array,
    off_diagonal: jax.Array,
    layout: Layout,
    axes: Axes,
    columns: tuple[int, int] | None,
) -> tuple[jax.Array, jax.Array | None]:
    """Eigenvalues (n,), ascending, and the local rows (R, k) of the eigenvectors ``columns``.

    ``layout.steps`` is a power of two, and padding is at the end. ``off_diagonal[k]`` couples k and
    k + 1. ``columns`` is a range of eigenvectors, or None for none.
    """
    n, leaf = layout.n, layout.devices * layout.tile
    diagonal, off_diagonal = _same((diagonal, off_diagonal), axes)
    bound = jnp.maximum(jnp.abs(diagonal[:n]).max(), jnp.abs(off_diagonal[:n]).max())
    scale = jnp.where(bound > 0, bound, 1)
    diagonal, off = diagonal / scale, off_diagonal / scale
    diagonal = jnp.where(jnp.arange(layout.padded) < n, diagonal, 4)  # beyond Gershgorin's 3
    cuts = jnp.arange(leaf, layout.padded, leaf)
    coupling = off[cuts - 1]
    diagonal = diagonal.at[cuts - 1].add(-jnp.abs(coupling)).at[cuts].add(-jnp.abs(coupling))
    values, vectors = _same(_leaves(diagonal, off, layout.steps, leaf), axes)
    first, last = vectors[:, 0], vectors[:, -1]
    rows = None
    if columns is not None:
        mine = lax.axis_index(axes) * layout.tile
        rows = lax.dynamic_slice_in_dim(vectors, mine, layout.tile, axis=1)
    size = leaf
    while size < layout.padded:
        here = coupling[size // leaf - 1 :: 2 * size // leaf]
        whole = 2 * size == layout.padded
        wanted = columns if whole and columns is not None else (0, 2 * size)
        values, first, last, rows = _merge(values, first, last, rows, here, layout, axes, wanted)
        size *= 2
    if rows is not None and columns is not None:
        rows = rows.reshape(layout.rows, -1)
        rows = rows if layout.steps > 1 else rows[:, columns[0] : columns[1]]
    return values.ravel()[:n] * bound, rows


Pair = tuple[jax.Array, jax.Array]


def _same(pair: Pair, axes: Axes) -> Pair:
    """What the first device has, on every device.

    Offsets from poles are far smaller than rounding, so all devices must have the same bits of the
    poles; LAPACK and products do not promise that, for bits can depend on where memory lies.
    """
    is_first = lax.axis_index(axes) == 0
    one, other = (jnp.where(is_first, x, 0) for x in pair)
    shape = one.shape
    both = lax.psum(jnp.concatenate([one.ravel(), other.ravel()]), axes)
    return both[: one.size].reshape(shape), both[one.size :].reshape(other.shape)


def _leaves(
    diagonal: jax.Array, off: jax.Array, count: int, leaf: int
) -> tuple[jax.Array, jax.Array]:
    diagonal, off = diagonal.reshape(count, leaf), off.reshape(count, leaf)[:, :-1]
    place = jnp.arange(leaf)
    dense = jnp.zeros((count, leaf, leaf), diagonal.dtype)
    dense = dense.at[:, place, place].set(diagonal)
    dense = dense.at[:, place[1:], place[:-1]].set(off).at[:, place[:-1], place[1:]].set(off)
    vectors, values = lax.linalg.eigh(dense, symmetrize_input=False)
    return values, vectors


def _merge(
    values: jax.Array,
    first: jax.Array,
    last: jax.Array,
    rows: jax.Array | None,
    coupling: jax.Array,
    layout: Layout,
    axes: Axes,
    columns: tuple[int, int],
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Pairs of neighbouring blocks become one block each.

    ``values`` (2 B, h); ``first`` and ``last`` (2 B, h) are the first and last rows of the
    eigenvectors; ``rows`` (2 B, local rows, h).
    """
    blocks, half = values.shape[0] // 2, values.shape[1]
    sign = jnp.where(coupling < 0, -1, 1).astype(values.dtype)
    update = _update(
        values.reshape(blocks, 2 * half),
        jnp.concatenate([last[::2], sign[:, None] * first[1::2]], axis=1),
        jnp.abs(coupling),
    )
    roots = _solve(update, layout.devices, axes)
    weights = _weights(update, roots, layout.devices, axes)
    merged = roots.pole + (roots.small + roots.offset)

    pair = None if rows is None else rows.reshape(blocks, 2, -1, half)
    edges = jnp.stack([first[::2], last[1::2]], axis=1)[:, :, None, :]
    left = edges if pair is None else jnp.concatenate([pair, edges], axis=2)
    done = _times_vectors(left, update, roots, weights, layout, columns)
    if 2 * half == layout.padded:
        edges = jnp.zeros((1, 2, 2 * half), values.dtype)  # nobody looks at them
    else:
        edges = done[:, :, -1]
    new_rows = None if pair is None else done[:, :, :-1].reshape(blocks, -1, done.shape[-1])
    return merged, edges[:, 0], edges[:, 1], new_rows


def _update(pole: jax.Array, z: jax.Array, rho: jax.Array) -> Update:
    m = pole.shape[1]
    # Far below rounding; yet an offset, a floor cubed times a spacing, is a normal number.
    floor = jnp.finfo(pole.dtype).eps * (1e-3 if pole.dtype == jnp.float64 else 0.1)
    ascending = jnp.argsort(pole, axis=1)
    ranks = jnp.argsort(ascending, axis=1)
    z = jnp.where(jnp.abs(z) < floor, jnp.where(z < 0, -floor, floor), z)
    small = (ranks * (floor / m)).astype(pole.dtype)
    return Update(pole, small, z, jnp.maximum(rho, floor), ranks, ascending)


def _share(array: jax.Array, devices: int, axes: Axes) -> jax.Array:
    """This device's part of the last dimension."""
    count = array.shape[1] // devices
    return lax.dynamic_slice_in_dim(array, lax.axis_index(axes) * count, count, axis=1)


def _join(part: jax.Array, axes: Axes) -> jax.Array:
    return lax.all_gather(part, axes, axis=1, tiled=True)


def _solve(update: Update, devices: int, axes: Axes) -> Roots:
    """All roots of ``1 + rho sum z^2 / (pole - x)``, each device its share of them."""
    m = update.pole.shape[1]
    place = _share(jnp.broadcast_to(jnp.arange(m), update.pole.shape), devices, axes)
    low = _share(update.ascending, devices, axes)
    high = jnp.take_along_axis(update.ascending, jnp.minimum(place + 1, m - 1), axis=1)
    (low_pole, low_small), (high_pole, high_small) = update.at(low), update.at(high)
    is_last = place == m - 1
    reach = update.rho[:, None] * (update.z**2).sum(1, keepdims=True) * 1.0001
    gap = jnp.where(is_last, reach, (high_pole - low_pole) + (high_small - low_small))
    half = jnp.where(is_last, gap, gap / 2)
    from_low = (_secular(update, low_pole, low_small, half) >= 0) | is_last
    anchor = jnp.where(from_low, low, high)
    pole, small = update.at(anchor)
    side = jnp.where(from_low, 1, -1).astype(pole.dtype)

    def beyond(distance: jax.Array) -> jax.Array:
        """Whether the root is nearer to its anchor than ``distance``."""
        return (_secular(update, pole, small, side * distance) >= 0) == from_low

    # One gather: the sign of an offset tells on which side its anchor is.
    offset = _join(side * _bisect(beyond, half), axes)
    after = jnp.minimum(jnp.arange(m) + 1, m - 1)
    anchor = jnp.where(offset > 0, update.ascending, update.ascending[:, after])
    return Roots(offset, *update.at(anchor))


def _bisect(beyond: object, upper: jax.Array) -> jax.Array:
    """The largest number in (0, upper] for which ``beyond`` does not hold, bit by bit.

    Positive floating-point numbers are in the order of their bit patterns, so halving the patterns
    finds a number of any magnitude to its last bit.
    """
    as_int = {4: jnp.int32, 8: jnp.int64}[upper.dtype.itemsize]
    low = jnp.full(upper.shape, jnp.finfo(upper.dtype).tiny, upper.dtype).view(as_int)
    bounds = low, upper.view(as_int)

    def halve(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        down = beyond(middle.view(upper.dtype))  # type: ignore[operator]
        return jnp.where(down, low, middle), jnp.where(down, middle, high)

    low, _ = lax.fori_loop(0, 8 * upper.dtype.itemsize - 1, halve, bounds)
    return low.view(upper.dtype)


def _secular(update: Update, pole: jax.Array, small: jax.Array, offset: jax.Array) -> jax.Array:
    """The secular function at ``pole + small + offset``, (B, k)."""
    squares = update.rho[:, None] * update.z**2

    def add(total: jax.Array, term: tuple) -> tuple[jax.Array, None]:
        pole_j, small_j, square = (x[:, None] for x in term)
        return total + square / ((pole_j - pole) + (small_j - small) - offset), None

    terms = tuple(x.T for x in (update.pole, update.small, squares))
    return lax.scan(add, jnp.ones_like(offset), terms)[0]


def _weights(update: Update, roots: Roots, devices: int, axes: Axes) -> jax.Array:
    """The ``z`` of which the computed roots are the exact ones (Gu and Eisenstat, 1994), (B, m)."""
    pole, small, rank, z = (
        _share(x, devices, axes) for x in (update.pole, update.small, update.ranks, update.z)
    )
    m = update.pole.shape[1]
    before = update.at(update.ascending)
    after = update.at(jnp.roll(update.ascending, -1, axis=1))

    def times(product: jax.Array, term: tuple) -> tuple[jax.Array, None]:
        i, *columns = term
        root, root_small, offset, low, low_small, high, high_small = (x[:, None] for x in columns)
        near = (root - pole) + (root_small - small) + offset
        # Each root is paired with the pole on its far side, so that every quotient is below one.
        below, above = (low - pole) + (low_small - small), (high - pole) + (high_small - small)
        far = jnp.where(i < rank, below, jnp.where(i == m - 1, 1, above))
        return product * (near / far), None

    columns = (roots.pole, roots.small, roots.offset, *before, *after)
    terms = (jnp.arange(m), *(x.T for x in columns))
    product, _ = lax.scan(times, jnp.ones_like(pole), terms)
    size = jnp.sqrt(jnp.maximum(product, 0) / update.rho[:, None])
    return _join(jnp.where(z < 0, -size, size), axes)


def _times_vectors(
    left: jax.Array,
    update: Update,
    roots: Roots,
    weights: jax.Array,
    layout: Layout,
    columns: tuple[int, int],
) -> jax.Array:
    """``left`` (B, 2, r, h) times the normalized eigenvectors (B, 2 h, columns) of the updates.

    The eigenvectors exist in chunks of columns only, of a quarter of a device's share at most.
    """
    blocks, _, count, half = left.shape
    start, wanted = columns[0], columns[1] - columns[0]
    chunk = max(1, min(wanted, layout.rows // 4))
    chunks = -(-wanted // chunk)
    pole, small = update.pole[:, :, None], update.small[:, :, None]

    def one(c: jax.Array) -> jax.Array:
        index = jnp.minimum(start + c * chunk + jnp.arange(chunk), columns[1] - 1)
        at = functools.partial(jnp.take, indices=index, axis=1)
        root_pole, root_small, offset = (
            at(x)[:, None] for x in (roots.pole, roots.small, roots.offset)
        )
        vectors = weights[:, :, None] / ((pole - root_pole) + (small - root_small) - offset)
        norms = jnp.sqrt((vectors**2).sum(1))
        vectors = vectors.reshape(blocks, 2, half, chunk)
        return gemm(left, vectors) / norms[:, None, None]

    if chunks == 1:
        return one(jnp.int32(0))
    done = lax.map(one, jnp.arange(chunks))
    return jnp.moveaxis(done, 0, 3).reshape(blocks, 2, count, -1)[..., :wanted]
