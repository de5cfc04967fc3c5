"""QR of one panel of columns whose rows are spread over the devices, and its Householder form.

Two ways to an orthonormal ``q`` and a triangular ``r``; both end with the same numbers on all
devices:

*TSQR* (Demmel, Grigori, Hoemmen and Langou, "Communication-optimal parallel and sequential QR and
LU factorizations", SIAM J. Sci. Comput. 34, 2012): each device factors its rows, one all-gather
collects the small triangles, and every device factors their stack. It is as stable as Householder's
QR, whatever the condition.

*Cholesky QR, twice* (Yamamoto, Nakatsukasa, Yanagisawa and Fukaya, ETNA 44, 2015): two Gram
matrices, each summed by an all-reduce, and products only. It needs a condition below about
1e8 in f64, and it tells: the second Gram matrix is that of the computed ``q``. Where it is not
close to the identity, the panel is factored again by TSQR.

The reflectors are rebuilt from ``q`` (Ballard, Demmel, Grigori, Jacquelin, Knight and Nguyen,
"Reconstructing Householder vectors from tall-skinny QR", JPDC 85, 2015): the LU factorization,
without pivots, of ``q`` minus a diagonal matrix of signs.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels, _sweeps
from lockstep.linalg._layout import Axes
from lockstep.linalg._tiles import adjoint, gemm, packed, potrf, unpacked

INNER = 32
"""Columns of a block of the small LU factorization: within one, row by row."""

CLOSE = 0.1
"""The largest deviation of a Gram matrix from the identity (its Frobenius norm) with which one more
Cholesky QR gives columns that are orthonormal to rounding."""


def _gram(x: jax.Array) -> jax.Array:
    return gemm(adjoint(x), x)


_gram_by_kernel = _cpu_kernels.with_derivatives_of(_gram)(_cpu_kernels.gram)


class Basis(NamedTuple):
    """``q = x low^-H``, the orthonormal columns of a panel, as the product that they are."""

    x: jax.Array
    """The local rows (r, w)."""
    low: jax.Array
    """(w, w), on every device, as ``r``: lower triangular, close to the identity."""
    r: jax.Array
    """Upper triangular; its diagonal is not negative."""


def factor(
    rows: jax.Array, axes: Axes, devices: int, tile: int, kernels: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The local rows (r, w) of ``q``, and ``r`` (w, w) on every device; see `basis`."""
    found = basis(rows, axes, devices, tile, kernels=kernels)
    return _sweeps.right_solver(kernels)(found.x, found.low), found.r


def basis(
    rows: jax.Array, axes: Axes, devices: int, tile: int, spare: int = 0, kernels: bool = False
) -> Basis:
    """The factorization of the panel ``rows``. If it has full rank, ``q`` and ``r`` are unique.

    Together the devices have at least w rows, the first w of which, in the order of elimination,
    are no padding. The padding, rows of zeros, is at the end of that order. Of a device's rows the
    last ``spare`` may be padding beside the fewer than ``tile`` that any layout has.
    """
    found, fine = _by_cholesky(rows, axes, kernels)

    def again() -> Basis:
        return _tsqr(rows, axes, devices, tile, spare)

    return lax.cond(fine, lambda: found, again)


def _by_cholesky(rows: jax.Array, axes: Axes, kernels: bool) -> tuple[Basis, jax.Array]:
    """The basis by two Cholesky factorizations, and whether it is good to rounding."""
    gram_of = _gram_by_kernel if kernels else _gram
    first = potrf(_sum_hermitian(gram_of(rows), axes))
    x = _sweeps.right_solver(kernels)(rows, first)
    gram = _sum_hermitian(gram_of(x), axes)
    deviation = jnp.linalg.norm(gram - jnp.eye(len(gram), dtype=gram.dtype))
    low = potrf(gram)
    # All devices must take the same way, and a NaN is a failure.
    bad = lax.psum(jnp.where(deviation <= CLOSE, 0, 1), axes)
    return Basis(x, low, jnp.triu(adjoint(gemm(first, low)))), bad == 0


def _sum_hermitian(part: jax.Array, axes: Axes) -> jax.Array:
    """The sum of all devices' Hermitian matrices, of which half is sent."""
    n = len(part)
    half = -(-n // 2)
    part = jnp.pad(part, ((0, 2 * half - n), (0, 2 * half - n)))
    first, second = part[:half, :half], part[half:, half:]
    summed = lax.psum(jnp.concatenate([packed(first, second), part[half:, :half]]), axes)
    low, up = unpacked(summed[: half + 1])
    left = jnp.concatenate([low, summed[half + 1 :]])
    right = jnp.concatenate([jnp.zeros_like(up), adjoint(up)])
    lower = jnp.concatenate([left, right], axis=1)[:n, :n]
    return lower + adjoint(jnp.tril(lower, -1))


def _tsqr(rows: jax.Array, axes: Axes, devices: int, tile: int, spare: int) -> Basis:
    count, width = rows.shape
    # A device with few rows sends them as they are. Otherwise its first `width` rows must be real,
    # and fewer than `tile` of all can be padding.
    reduces = count >= width + tile + spare
    own, mine = jnp.linalg.qr(rows) if reduces else (None, rows)
    stack = lax.all_gather(mine, axes)
    height, in_tiles = mine.shape[0], not reduces and count % tile == 0
    if in_tiles:  # in the order of elimination, so that padding comes last
        stack = stack.reshape(devices, -1, tile, width).swapaxes(0, 1)
    q, r = jnp.linalg.qr(stack.reshape(-1, width))
    if in_tiles:
        q = q.reshape(-1, devices, tile, width).swapaxes(0, 1)
    q = q.reshape(devices, height, width)[lax.axis_index(axes)]
    q = q if own is None else gemm(own, q)
    flip = jnp.where(jnp.diagonal(r).real < 0, -1, 1).astype(r.dtype)
    return Basis(q * flip, jnp.eye(width, dtype=q.dtype), r * flip[:, None])


def reflectors(
    top: jax.Array, kernels: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """``y1, u, t, signs``: ``I - y t y^H`` is unitary, and its first columns times signs are ``q``.

    ``top``, (w, w), holds the rows of ``q`` where the triangle of the panel goes. There ``y`` is
    ``y1``, unit lower triangular; elsewhere it is ``q u^-1``. ``u`` and ``t``, (w, w), are upper
    triangular. The rows of the panel's triangle are multiplied by ``signs``, (w,).
    """
    factors, signs = (_lu_of_difference_by_kernel if kernels else _lu_of_difference)(top)
    low, u = jnp.tril(factors, -1) + jnp.eye(len(top), dtype=top.dtype), jnp.triu(factors)
    # q = (e - y t y1^H) signs, so that u = -t y1^H signs.
    t = lax.linalg.triangular_solve(
        low,
        -u * signs.conj(),
        left_side=False,
        lower=True,
        transpose_a=True,
        conjugate_a=True,
        unit_diagonal=True,
    )
    return low, u, t, signs


def _lu_of_difference(top: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The factors of ``top - diag(signs)`` in one matrix, and the signs, of modulus 1.

    A sign is chosen when its pivot is known, so that no pivot is less than 1 in modulus.
    """
    n = len(top)
    padded = -(-n // INNER) * INNER
    a = jnp.pad(top, ((0, padded - n), (0, padded - n)))
    row = jnp.arange(padded)

    def block(k: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, signs = state
        first = k * INNER
        panel = lax.dynamic_slice_in_dim(a, first, INNER, axis=1)
        panel, some = _lu_of_columns(panel, first)
        a = lax.dynamic_update_slice_in_dim(a, panel, first, axis=1)
        signs = lax.dynamic_update_slice_in_dim(signs, some, first, axis=0)
        here = lax.dynamic_slice_in_dim(a, first, INNER)
        factor = lax.dynamic_slice_in_dim(panel, first, INNER)
        solved = lax.linalg.triangular_solve(
            factor, here, left_side=True, lower=True, unit_diagonal=True
        )
        here = jnp.where(row >= first + INNER, solved, here)
        a = lax.dynamic_update_slice_in_dim(a, here, first, axis=0)
        below = jnp.where(row[:, None] >= first + INNER, panel, 0)
        return a - gemm(below, jnp.where(row >= first + INNER, here, 0)), signs

    a, signs = lax.fori_loop(0, padded // INNER, block, (a, jnp.ones(padded, a.dtype)))
    return a[:n, :n], signs[:n]


_lu_of_difference_by_kernel = _cpu_kernels.with_derivatives_of(_lu_of_difference)(
    _cpu_kernels.lu_of_difference
)


def _lu_of_columns(panel: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eliminates the columns, which begin at row ``first``; both factors in place of them."""
    row, column = jnp.arange(panel.shape[0]), jnp.arange(panel.shape[1])

    def eliminate(j: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        panel, signs = state
        k = first + j
        pivot = panel[k, j]
        size = jnp.abs(pivot)
        sign = -jnp.where(size > 0, pivot / jnp.where(size > 0, size, 1), 1).astype(panel.dtype)
        pivot = pivot - sign
        here = jnp.where(row == k, pivot, panel[:, j])
        below = jnp.where(row > k, here / pivot, 0)
        right = jnp.where(column > j, panel[k], 0)
        kept = jnp.where(row > k, below, here)
        panel = jnp.where(column == j, kept[:, None], panel - jnp.outer(below, right))
        return panel, signs.at[j].set(sign)

    return lax.fori_loop(0, panel.shape[1], eliminate, (panel, jnp.ones_like(panel[0])))
