"""Kernels on tiles that one device holds: LAPACK's and GEMMs, under the names of LAPACK's.

Products are asked for at the highest precision: on a GPU or TPU the default would be one of fewer
bits than the type has.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

BLOCK = 128
"""Columns of the blocks into which a tile is cut: LAPACK does the blocks, GEMM the rest."""


def gemm(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)


def adjoint(x: jax.Array) -> jax.Array:
    return x.conj().swapaxes(-1, -2)


def potrf(a: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """The lower Cholesky factor of ``a``, and the inverses of its diagonal blocks.

    Only the lower triangle is read. All of the factor is NaN from the first block on that is not
    positive definite.
    """
    n = a.shape[0]
    blocks, inverses = [], []
    for k in range(0, n, BLOCK):
        end = min(k + BLOCK, n)
        below = a[k:, k:end]
        if blocks:
            left = jnp.concatenate([block[k - at :] for at, block in blocks], axis=1)
            below = below - gemm(left, adjoint(left[: end - k]))
        diagonal = lax.linalg.cholesky(below[: end - k], symmetrize_input=False)
        inverse = trtri(diagonal)
        blocks.append((k, jnp.concatenate([diagonal, gemm(below[end - k :], adjoint(inverse))])))
        inverses.append(inverse)
    parts = [jnp.pad(block, ((at, 0), (0, 0))) for at, block in blocks]
    return jnp.concatenate(parts, axis=1), inverses


def trtri(factor: jax.Array) -> jax.Array:
    """The inverse of a lower triangle."""
    eye = jnp.eye(factor.shape[0], dtype=factor.dtype)
    return lax.linalg.triangular_solve(factor, eye, left_side=True, lower=True)


def inverse(factor: jax.Array) -> jax.Array:
    """The inverse of a lower triangle, by blocks; what is above the triangle is not read."""
    lower = jnp.tril(factor)
    eye = jnp.eye(lower.shape[0], dtype=lower.dtype)
    return jnp.tril(adjoint(solve_right(eye, lower, block_inverses(lower))))


def block_inverses(factor: jax.Array) -> list[jax.Array]:
    n = factor.shape[0]
    ends = [(k, min(k + BLOCK, n)) for k in range(0, n, BLOCK)]
    return [trtri(factor[k:end, k:end]) for k, end in ends]


def solve_right(x: jax.Array, factor: jax.Array, inverses: list[jax.Array]) -> jax.Array:
    """``x factor^-H`` for a lower ``factor``, given the inverses of its diagonal blocks."""
    done: list[jax.Array] = []
    for i, inverse in enumerate(inverses):
        k = i * BLOCK
        end = k + inverse.shape[0]
        part = x[:, k:end]
        if done:
            part = part - gemm(jnp.concatenate(done, axis=1), adjoint(factor[k:end, :k]))
        done.append(gemm(part, adjoint(inverse)))
    return jnp.concatenate(done, axis=1)


def first_bad_pivot(a: jax.Array) -> jax.Array:
    """How many leading columns of ``a`` factor: the index (from 0) of the first pivot <= 0.

    Only the lower triangle is read. Unblocked, for it runs on one tile of a matrix that failed.
    """
    n = a.shape[0]
    row = jnp.arange(n)

    def eliminate(j: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, bad = state
        pivot = a[j, j].real
        bad = jnp.where((bad == n) & ~(pivot > 0), j, bad)
        column = jnp.where(row > j, a[:, j], 0)
        return a - jnp.outer(column, column.conj()) / pivot, bad

    lower = jnp.tril(a)
    return lax.fori_loop(0, n, eliminate, (lower, jnp.int32(n)))[1]
