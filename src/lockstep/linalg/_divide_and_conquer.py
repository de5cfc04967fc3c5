"""Eigenvalues and eigenvectors of a real symmetric tridiagonal matrix, on several devices.

Cuppen's divide and conquer ("A divide and conquer method for the symmetric tridiagonal
eigenproblem", 1981), without deflation; `_secular` has the rank-one updates and the reason.

Each device holds rows of the eigenvectors: row (p, i) as in `_layout`; a leaf of the recursion is
some supersteps. A merge multiplies the rows by the eigenvectors of the update, which every device
computes itself, some columns at a time. Devices exchange only the roots, O(n) in each level.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels, _secular
from lockstep.linalg._layout import Axes, RowMap
from lockstep.linalg._secular import Roots
from lockstep.linalg._tiles import gemm

LEAF = 128
"""Rows of a leaf, about: LAPACK does it whole. Each level above is compiled by itself."""


def eigh_tridiagonal(
    diagonal: jax.Array,
    off_diagonal: jax.Array,
    layout: RowMap,
    axes: Axes,
    columns: tuple[int, int] | None,
    kernels: bool,
) -> tuple[jax.Array, jax.Array | None]:
    """Eigenvalues (n,), ascending, and the local rows (R, k) of the eigenvectors ``columns``.

    ``layout.steps`` is a power of two, and padding is at the end. ``off_diagonal[k]`` couples k and
    k + 1. ``columns`` is a range of eigenvectors, or None for none.
    """
    n, steps = layout.n, steps_of_leaf(layout)
    leaf = steps * layout.devices * layout.tile
    diagonal, off_diagonal = same((diagonal, off_diagonal), axes)
    bound = jnp.maximum(jnp.abs(diagonal[:n]).max(), jnp.abs(off_diagonal[:n]).max())
    scale = jnp.where(bound > 0, bound, 1)
    diagonal, off = diagonal / scale, off_diagonal / scale
    diagonal = jnp.where(jnp.arange(layout.padded) < n, diagonal, 4)  # beyond Gershgorin's 3
    cuts = jnp.arange(leaf, layout.padded, leaf)
    coupling = off[cuts - 1]
    diagonal = diagonal.at[cuts - 1].add(-jnp.abs(coupling)).at[cuts].add(-jnp.abs(coupling))
    values, vectors = _leaves(diagonal, off, leaf, layout.devices, axes)
    first, last = vectors[:, 0], vectors[:, -1]
    rows = None
    if columns is not None:
        by_device = vectors.reshape(len(values), steps, layout.devices, layout.tile, leaf)
        rows = lax.dynamic_index_in_dim(by_device, lax.axis_index(axes), axis=2, keepdims=False)
        rows = rows.reshape(len(values), -1, leaf)
    size = leaf
    while size < layout.padded:
        here = coupling[size // leaf - 1 :: 2 * size // leaf]
        whole = 2 * size == layout.padded
        wanted = columns if whole and columns is not None else (0, 2 * size)
        values, first, last, rows = _merge(
            values, first, last, rows, here, layout, axes, wanted, kernels
        )
        size *= 2
    if rows is not None and columns is not None:
        rows = rows.reshape(layout.rows, -1)
        rows = rows if leaf < layout.padded else rows[:, columns[0] : columns[1]]
    return values.ravel()[:n] * bound, rows


Pair = tuple[jax.Array, jax.Array]


def same(pair: Pair, axes: Axes) -> Pair:
    """The first device's value, on every device.

    Offsets from poles are far smaller than rounding, so all devices must have the same bits of the
    poles; LAPACK and products do not promise that, for bits can depend on where memory lies.
    """
    is_first = lax.axis_index(axes) == 0
    one, other = (jnp.where(is_first, x, 0) for x in pair)
    shape = one.shape
    both = lax.psum(jnp.concatenate([one.ravel(), other.ravel()]), axes)
    return both[: one.size].reshape(shape), both[one.size :].reshape(other.shape)


def steps_of_leaf(layout: RowMap) -> int:
    """Supersteps of a leaf: a power of two, and about `LEAF` rows."""
    steps = max(1, min(LEAF // (layout.devices * layout.tile), layout.steps // 4))
    return 1 << steps.bit_length() - 1


def _leaves(diagonal: jax.Array, off: jax.Array, leaf: int, devices: int, axes: Axes) -> Pair:
    """Eigenvalues (count, leaf) and vectors (count, leaf, leaf), each device some of the leaves."""
    count = diagonal.size // leaf
    each = -(-count // devices)
    mine = jnp.minimum(lax.axis_index(axes) * each + jnp.arange(each), count - 1)
    diagonal, off = diagonal.reshape(count, leaf)[mine], off.reshape(count, leaf)[mine, :-1]
    place = jnp.arange(leaf)
    dense = jnp.zeros((each, leaf, leaf), diagonal.dtype)
    dense = dense.at[:, place, place].set(diagonal)
    dense = dense.at[:, place[1:], place[:-1]].set(off)  # LAPACK reads the lower triangle
    vectors, values = lax.linalg.eigh(dense, symmetrize_input=False)
    vectors, values = lax.all_gather((vectors, values), axes, tiled=True)
    return values[:count], vectors[:count]


def _merge(
    values: jax.Array,
    first: jax.Array,
    last: jax.Array,
    rows: jax.Array | None,
    coupling: jax.Array,
    layout: RowMap,
    axes: Axes,
    columns: tuple[int, int],
    kernels: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Pairs of neighbouring blocks become one block each.

    ``values`` (2 B, h); ``first`` and ``last`` (2 B, h) are the first and last rows of the
    eigenvectors; ``rows`` (2 B, local rows, h).
    """
    blocks, half = values.shape[0] // 2, values.shape[1]
    sign = jnp.where(coupling < 0, -1, 1).astype(values.dtype)
    update = _secular.update_of(
        values.reshape(blocks, 2 * half),
        jnp.concatenate([last[::2], sign[:, None] * first[1::2]], axis=1),
        jnp.abs(coupling),
    )
    roots = _secular.roots(update, layout.devices, axes, kernels)
    weights = _secular.weights(update, roots, layout.devices, axes, kernels)
    merged = roots.pole + (roots.small + roots.offset)

    edges = jnp.stack([first[::2], last[1::2]], axis=1)[:, :, None, :]

    def vectors(some: Roots) -> tuple[jax.Array]:
        return (weights[:, :, None] / update.distances(*some),)

    new_rows = None
    if rows is not None:
        wanted = Roots(*(x[:, slice(*columns)] for x in roots))
        rows = rows.reshape(blocks, 2, -1, half)
        (new_rows,) = times_vectors((rows,), vectors, wanted, layout, kernels)
        new_rows = new_rows.reshape(blocks, -1, new_rows.shape[-1])
    if 2 * half < layout.padded:
        (edges,) = times_vectors((edges,), vectors, roots, layout, kernels)
    else:
        edges = jnp.zeros((1, 2, 1, 2 * half), values.dtype)  # not used
    return merged, edges[:, 0, 0], edges[:, 1, 0], new_rows


def times_vectors(
    left: tuple[jax.Array, ...],
    vectors: Callable[[Roots], tuple[jax.Array, ...]],
    roots: Roots,
    layout: RowMap,
    kernels: bool,
) -> tuple[jax.Array, ...]:
    """Each of ``left`` (B, 2, r, h) times its vectors (B, 2 h, columns), made of length one.

    ``vectors`` gives them, of any length, for some of the ``roots``, which are the columns. So they
    exist in chunks of columns only, of a quarter of a device's share at most.
    """
    wanted = roots.pole.shape[1]
    chunk = max(1, min(wanted, max(16, layout.rows // 4)))

    def part(c: jax.Array, done: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        first = jnp.minimum(c * chunk, wanted - chunk)  # the last chunk may overlap the one before
        some = vectors(Roots(*(lax.dynamic_slice_in_dim(x, first, chunk, axis=1) for x in roots)))
        return tuple(
            lax.dynamic_update_slice_in_dim(have, _normalized(x, v, kernels), first, axis=3)
            for have, x, v in zip(done, left, some, strict=True)
        )

    # Written in place, so that beside the rows of before and after only a chunk exists.
    done = tuple(jnp.zeros((*x.shape[:3], wanted), x.dtype) for x in left)
    return lax.fori_loop(0, -(-wanted // chunk), part, done)


def _normalized(x: jax.Array, vectors: jax.Array, kernels: bool) -> jax.Array:
    """(B, 2, r, h) times the vectors (B, 2 h, k), made of length one: (B, 2, r, k)."""
    norms = jnp.sqrt((vectors**2).sum(1))[:, None, None]
    vectors = vectors.reshape(*x.shape[:2], x.shape[3], -1)
    if not kernels:
        return gemm(x, vectors) / norms
    each = (y.reshape(-1, *y.shape[2:]) for y in (x, vectors))
    return _cpu_kernels.product_of_each(*each).reshape(*x.shape[:3], -1) / norms
