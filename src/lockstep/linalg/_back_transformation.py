"""From the vectors of a reduced matrix, tridiagonal or bidiagonal, to those of the matrix itself.

The reflectors of `_tridiagonalize` or `_bidiagonalize` are applied in blocks, over the slots of
`_layout` or over a grid of devices. Everything runs inside `jax.shard_map`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels, _redistribute
from lockstep.linalg._cpu_kernels import Blocks, Sizes
from lockstep.linalg._layout import Axes, Grid, RowMap
from lockstep.linalg._spread import Spread
from lockstep.linalg._tiles import adjoint, gemm

WIDTH = 256
"""Reflectors of a block of the way back, about."""


class Reflectors(NamedTuple):
    """A product of ``I - tau v v^H``, in the order of elimination."""

    vectors: jax.Array
    """(R, P, R), the local rows of all ``v``; above where one begins there is something else."""
    taus: jax.Array
    """(P R,)."""


def apply(
    reflectors: Reflectors,
    z: jax.Array,
    layout: RowMap,
    axes: Axes,
    grid: Grid | None = None,
    kernels: bool = False,
    first: int = 1,
) -> jax.Array:
    """``q z`` for local rows ``z`` of shape (R, k): blocks of reflectors, the last one first.

    The reflector of column ``k`` begins at row ``k + first``.

    A block is ``I - v t v^H`` with ``t^-1 = diag(1 / tau) + triu(v^H v, 1)`` (Joffrain et al.,
    "Accumulating Householder transformations, revisited", ACM TOMS 32, 2006).

    On the line the sums ``v^H z``, of ``k`` columns, go to all devices. On a grid ``v`` is gathered
    along the rows, and sums of ``k / c`` columns go along the columns (`_spread`).
    """
    mine = jnp.asarray(layout.elimination_order)[lax.axis_index(axes)]
    # A chunk is large, for every one costs a pass over all of `products`.
    chunk = layout.tile * layout.even_steps(layout.steps // 4)
    most = min(WIDTH, layout.rows // 4)  # what belongs to a block is small beside the share
    steps = layout.even_steps(most // (layout.devices * layout.tile))
    width, count = steps * layout.devices * layout.tile, layout.steps // steps
    wanted, spread = z.shape[1], Spread(grid, axes)
    z = spread.take(z)

    def part(x: jax.Array, i: jax.Array) -> jax.Array:
        some = lax.dynamic_slice_in_dim(x, i * chunk, chunk, axis=1)
        return some.reshape(-1, x.shape[2])

    def block(step: jax.Array, z: jax.Array) -> jax.Array:
        b = count - 1 - step
        top = b * steps * layout.tile
        start, end = top // chunk, layout.rows // chunk
        v = lax.dynamic_slice_in_dim(reflectors.vectors, top, steps * layout.tile, axis=2)
        v = _redistribute.in_order(v, layout.tile)
        above = mine[:, None] < b * width + jnp.arange(width) + first
        v = jnp.where(above, 0, v)  # there is what the reduction left
        taus = lax.dynamic_slice_in_dim(reflectors.taus, b * width, width)
        vs = spread.gather(v)

        def inner(i: jax.Array, sums: tuple) -> tuple:
            own, some = part(v[None], i), part(vs, i)
            return sums[0] + gemm(adjoint(own), own), sums[1] + gemm(adjoint(some), part(z, i))

        if kernels:
            gram, products = _cpu_kernels.gram(v), _products_by_kernel(vs, z, top)
        else:
            zero = jnp.zeros((width, width), v.dtype), jnp.zeros((width, z.shape[2]), v.dtype)
            gram, products = lax.fori_loop(start, end, inner, zero)
        gram, products = lax.psum(gram, axes), spread.sum(products)
        inverse = jnp.triu(gram, 1) + jnp.diag(1 / jnp.where(taus == 0, 1, taus))
        t = lax.linalg.triangular_solve(
            inverse, jnp.eye(width, dtype=v.dtype), left_side=True, lower=False
        )

        def outer(i: jax.Array, z: jax.Array) -> jax.Array:
            here = part(z, i) - gemm(gemm(part(vs, i), t), products)
            here = here.reshape(z.shape[0], chunk, -1)
            return lax.dynamic_update_slice_in_dim(z, here, i * chunk, 1)

        if kernels:
            return _subtract_by_kernel(z, vs, t, products, top)
        return lax.fori_loop(start, end, outer, z)

    return spread.give(lax.fori_loop(0, count, block, z), wanted)


def _products_by_kernel(v: jax.Array, z: jax.Array, top: jax.Array) -> jax.Array:
    """``v^H z``, (w, k), for (c, R, w) and (c, R, k), of the rows from ``top`` on."""
    count, rows, width = v.shape
    return _cpu_kernels.sum_of_products(
        Blocks(v, (0, top, 0), row_axis=1, step_l=(1, 0, 0)),
        Blocks(z, (0, top, 0), row_axis=1, step_l=(1, 0, 0)),
        Sizes(width, z.shape[2], rows - top, count_l=count, adjoint_a=True),
    )


def _subtract_by_kernel(
    z: jax.Array, v: jax.Array, t: jax.Array, products: jax.Array, top: jax.Array
) -> jax.Array:
    """``z - v t products``, in place, in the rows from ``top`` on; by the less of both ways."""
    count, rows, width = v.shape
    if count * rows < z.shape[2]:
        v = gemm(v.reshape(-1, width), t).reshape(v.shape)
    else:
        products = gemm(t, products)
    return _cpu_kernels.subtract_products(
        Blocks(z, (0, top, 0), row_axis=1, step_i=(1, 0, 0)),
        Blocks(v, (0, top, 0), row_axis=1, step_i=(1, 0, 0)),
        Blocks(products[:, None]),
        Sizes(rows - top, z.shape[2], width, count_i=count),
    )
