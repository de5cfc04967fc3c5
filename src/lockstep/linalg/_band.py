"""A square matrix to a band by block reflections, for its singular values or eigenvalues.

The first of two stages: to an upper band (Grosser and Lang, "Efficient parallel reduction to
bidiagonal form", Parallel Computing 25, 1999), or to a Hermitian one (Bischof, Lang and Sun, "A
framework for symmetric band reduction", ACM TOMS 26, 2000). It is products of matrices, and two or
three collectives for a panel, which is one superstep of `_layout`. The second one, from the band,
is LAPACK's, on every process, and for values only: vectors would have to be taken back through
both.

The rows or columns of a panel are gathered, and every device finds their reflectors from the same
numbers. What is left of the matrix changes once a panel. All supersteps share one compiled body.
Everything runs inside `jax.shard_map`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _bidiagonalize, _cpu_kernels
from lockstep.linalg._bidiagonalize import subtract
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._layout import Axes
from lockstep.linalg._tiles import adjoint, gemm

WIDTH = 32
"""Columns of a panel, about. LAPACK's time grows with it; products with fewer are slower."""


def singular_values(a: jax.Array, axes: Axes) -> jax.Array:
    """Returns the singular values of the square matrix of slots ``a`` (R, P, R), descending.

    They are the same on all devices. Padding, rows and columns of zeros, adds values of zero. With
    more devices than `WIDTH` the matrix is reduced to bidiagonal form directly, column by column.
    """
    a, tile = _padded(a)
    if a.shape[1] <= WIDTH:
        diagonal, right = _cpu_kernels.band_to_bidiagonal(reduce(a, tile, axes))
    else:
        diagonal, right = _bidiagonalize.diagonals(a, tile, axes)
    return _of_first_device(_cpu_kernels.bidiagonal_values(diagonal, right), axes)


def eigenvalues(a: jax.Array, n: int, axes: Axes) -> jax.Array:
    """Returns the eigenvalues (n,), ascending, of the Hermitian matrix of slots ``a`` (R, P, R).

    They are the same on all devices, of which there are at most `WIDTH`. Padding is zero.
    """
    a, tile = _padded(a)
    found = _cpu_kernels.band_eigenvalues(reduce_hermitian(a, tile, axes))
    found = _of_first_device(found, axes)
    spare = len(found) - n
    if spare == 0:
        return found
    # Padding has added `spare` eigenvalues that are zero up to rounding. Left out are those `spare`
    # neighbours whose largest size is least.
    sizes = jnp.maximum(jnp.abs(found[: n + 1]), jnp.abs(found[spare - 1 :]))
    return jnp.where(jnp.arange(n) < jnp.argmin(sizes), found[:n], found[spare:])


def _padded(a: jax.Array) -> tuple[jax.Array, int]:
    """``a`` with zeros to a whole number of panels, and the rows a device has in one."""
    tile = min(max(1, WIDTH // a.shape[1]), len(a))
    spare = -len(a) % tile
    return jnp.pad(a, ((0, spare), (0, 0), (0, spare))), tile


def _of_first_device(found: jax.Array, axes: Axes) -> jax.Array:
    """What the first device has found: hosts with other processors may round in another way."""
    return lax.psum(jnp.where(lax.axis_index(axes) == 0, found, 0), axes)


def reduce(a: jax.Array, tile: int, axes: Axes) -> jax.Array:
    """The upper band to which the adjoint of the matrix of slots ``a`` (R, P, R) is reduced.

    It has ``W = P tile`` diagonals above the main one. A superstep replaces ``a`` by ``(I - u t_u
    u^H)^H a (I - v t v^H) = a - x v^H - u z``, where ``x = a v t`` and ``z = t_u^H (u^H a - u^H x
    v^H)``.

    Returns (steps, 2, W, W): [s, 0] is the upper triangle at (s, s), and [s, 1] is upper as well,
    the adjoint of the block at (s, s + 1).
    """
    rows, devices, _ = a.shape
    width, me = devices * tile, lax.axis_index(axes)

    def step(a: jax.Array, s: jax.Array) -> tuple[jax.Array, jax.Array]:
        top, below = s * tile, (s + 1) * tile
        lines = lax.all_gather(lax.dynamic_slice_in_dim(a, top, tile), axes, tiled=True)
        v, t, r = _cpu_kernels.block_reflector(lines.conj(), s, tile)
        vh = v.conj()
        x = gemm(_times(a, vh, top, below), t)
        vh_of_panel = lax.dynamic_slice_in_dim(vh, top, tile, axis=2).reshape(width, width)
        columns = lax.dynamic_slice_in_dim(a, top, tile, axis=2).reshape(rows, width)
        columns = lax.all_gather((columns - gemm(x, vh_of_panel)).T, axes).swapaxes(0, 1)
        u, t_of_u, r_of_u = _cpu_kernels.block_reflector(columns, s + 1, tile)
        own = u[:, me]
        own_products = jnp.concatenate(
            [_adjoint_times(own, a, below).reshape(width, -1), gemm(own.conj(), x)], axis=1
        )
        products = lax.psum(own_products, axes)
        z = gemm(
            adjoint(t_of_u),
            products[:, :-width] - gemm(products[:, -width:], vh.reshape(width, -1)),
        )
        left = jnp.concatenate([x, own.T], axis=1)
        right = jnp.concatenate([vh, z.reshape(vh.shape)])
        return subtract(a, left, right, below), jnp.stack([r, r_of_u])

    return lax.scan(step, a, jnp.arange(rows // tile))[1]


def reduce_hermitian(a: jax.Array, tile: int, axes: Axes) -> jax.Array:
    """The band to which the Hermitian matrix of slots ``a`` (R, P, R) is reduced, as from `reduce`.

    A superstep replaces ``a`` by ``(I - v t v^H)^H a (I - v t v^H) = a - v w^H - w v^H``, where ``x
    = a v t`` and ``w = x - v t^H v^H x / 2``. Both triangles are read.
    """
    rows, devices, _ = a.shape
    width, me = devices * tile, lax.axis_index(axes)

    def step(a: jax.Array, s: jax.Array) -> tuple[jax.Array, jax.Array]:
        top, below = s * tile, (s + 1) * tile
        columns = lax.dynamic_slice_in_dim(a, top, tile, axis=2).reshape(rows, width)
        columns = lax.all_gather(columns.T, axes).swapaxes(0, 1)
        diagonal = lax.dynamic_slice_in_dim(columns, top, tile, axis=2).reshape(width, width).T
        v, t, r = _cpu_kernels.block_reflector(columns, s + 1, tile)
        x = gemm(_times(a, v.conj(), below, below), t)
        x = lax.all_gather(x.T, axes).swapaxes(0, 1)
        v_flat, x_flat = v.reshape(width, -1), x.reshape(width, -1)
        inner = gemm(adjoint(t), gemm(v_flat.conj(), x_flat.T))
        w = x - gemm(inner.T, v_flat).reshape(x.shape) / 2
        left = jnp.concatenate([v[:, me], w[:, me]]).T
        right = jnp.concatenate([w, v]).conj()
        return subtract(a, left, right, below), jnp.stack([diagonal, r])

    return lax.scan(step, a, jnp.arange(rows // tile))[1]


def _times(a: jax.Array, vh: jax.Array, top: jax.Array, below: jax.Array) -> jax.Array:
    """``a v``, (R, W), from the local row ``below`` on, where ``vh`` is zero before ``top``."""
    rows, devices, _ = a.shape
    width = len(vh)
    found = _cpu_kernels.subtract_products(
        Blocks(jnp.zeros((rows, 1, width), a.dtype), (below, 0, 0)),
        Blocks(a, (below, 0, top), step_l=(0, 1, 0)),
        Blocks(vh, (0, 0, top), step_l=(0, 1, 0)),
        Sizes(rows - below, width, rows - top, count_l=devices, adjoint_b=True),
    )
    return -found[:, 0]


def _adjoint_times(u: jax.Array, a: jax.Array, top: jax.Array) -> jax.Array:
    """This device's part of ``u^H a``, (W, P, R), of its elements ``u`` (W, R), from ``top`` on."""
    rows, devices, _ = a.shape
    width = len(u)
    return -_cpu_kernels.subtract_products(
        Blocks(jnp.zeros((width, devices, rows), a.dtype), (0, 0, top), step_i=(0, 1, 0)),
        Blocks(u.conj()[:, None], (0, 0, top)),
        Blocks(a, (top, 0, top), step_i=(0, 1, 0)),
        Sizes(width, rows - top, rows - top, count_i=devices),
    )
