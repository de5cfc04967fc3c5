"""Kernels on the tiles of one device: LAPACK's routines and products, with LAPACK's names.

Products use the highest precision, since the default on a GPU or TPU has fewer bits than the type.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

BLOCK = 256
"""Columns of the blocks of a tile: LAPACK handles the blocks, products handle the rest."""


def gemm(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)


def adjoint(x: jax.Array) -> jax.Array:
    return x.conj().swapaxes(-1, -2)


def put(x: jax.Array, part: jax.Array, *starts: int) -> jax.Array:
    """``x`` with ``part`` in place of what begins at ``starts``.

    ``x.at[slices].set(part)`` gives the compiler an index array, which has no entries where the
    slices are whole: an unused input of `jax.shard_map`, with which jaxlib 0.11.2 crashes.
    """
    return lax.dynamic_update_slice(x, part, starts)


def packed(lower: jax.Array, upper: jax.Array) -> jax.Array:
    """The lower triangle of one matrix, (n, n), and the upper one of another, as (n + 1, n): the
    "rectangular full packed" format of Gustavson and others, ACM TOMS 37, 2010."""
    return jnp.pad(jnp.tril(lower), ((1, 0), (0, 0))) + jnp.pad(jnp.triu(upper), ((0, 1), (0, 0)))


def unpacked(both: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The triangles of `packed`, with zeros elsewhere."""
    return jnp.tril(both[1:]), jnp.triu(both[:-1])


def potrf(a: jax.Array) -> jax.Array:
    """The lower Cholesky factor of ``a``, NaN if there is none. Only the lower triangle is read."""
    return lax.linalg.cholesky(a, symmetrize_input=False)


def unit_lower(block: jax.Array) -> jax.Array:
    """The adjoint of the unit upper triangle of ``block``."""
    return adjoint(jnp.triu(block, 1)) + jnp.eye(block.shape[0], dtype=block.dtype)


def trsm(factor: jax.Array, b: jax.Array, conjugate_transpose: bool = False) -> jax.Array:
    """``factor^-1 b`` or ``factor^-H b`` for a lower ``factor``; nothing above it is read."""
    return lax.linalg.triangular_solve(
        factor,
        b,
        left_side=True,
        lower=True,
        transpose_a=conjugate_transpose,
        conjugate_a=conjugate_transpose,
    )


def trsm_upper(
    factor: jax.Array, b: jax.Array, conjugate_transpose: bool = False, unit: bool = False
) -> jax.Array:
    """``u^-1 b`` or ``u^-H b`` for the upper triangle ``u`` of ``factor``.

    ``unit``: its diagonal counts as that of ones.
    """
    return lax.linalg.triangular_solve(
        factor,
        b,
        left_side=True,
        lower=False,
        unit_diagonal=unit,
        transpose_a=conjugate_transpose,
        conjugate_a=conjugate_transpose,
    )


def getrf(panel: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The factors ``l u`` of ``panel``, (W, m), with its columns exchanged, in one array.

    ``u`` has a diagonal of ones. Partial pivoting: LAPACK's getrf of the transpose. Also returns
    the exchanges, (min(W, m),), and the former number of each column, (m,).
    """
    packed, swaps, permutation = lax.linalg.lu(panel.T)
    return packed.T, swaps, permutation


def solve_right(x: jax.Array, factor: jax.Array) -> jax.Array:
    """``x factor^-H`` for a lower ``factor``: products, and a solver for its diagonal blocks.

    With many rows in ``x`` that is faster than a solver for all of it.
    """
    n, done = factor.shape[0], []
    for k in range(0, n, BLOCK):
        end = min(k + BLOCK, n)
        part = x[:, k:end]
        if done:
            part = part - gemm(jnp.concatenate(done, axis=1), adjoint(factor[k:end, :k]))
        done.append(
            lax.linalg.triangular_solve(
                factor[k:end, k:end],
                part,
                left_side=False,
                lower=True,
                transpose_a=True,
                conjugate_a=True,
            )
        )
    return jnp.concatenate(done, axis=1)


def first_bad_pivot(a: jax.Array) -> jax.Array:
    """How many leading columns of ``a`` factor: the index (from 0) of the first pivot that is not
    positive, or infinite.

    Only the lower triangle is read. Unblocked, for it runs on one tile of a matrix that failed.
    """
    n = a.shape[0]
    row = jnp.arange(n)

    def eliminate(j: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, bad = state
        pivot = a[j, j].real
        bad = jnp.where((bad == n) & ~((pivot > 0) & (pivot < jnp.inf)), j, bad)
        column = jnp.where(row > j, a[:, j], 0)
        return a - jnp.outer(column, column.conj()) / pivot, bad

    lower = jnp.tril(a)
    return lax.fori_loop(0, n, eliminate, (lower, jnp.int32(n)))[1]
