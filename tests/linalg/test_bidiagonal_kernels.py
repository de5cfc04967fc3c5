"""The kernels of a column of the reduction to bidiagonal form beside their formulas."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lanes import sample
from linalg.matrices import each_dtype, full
from linalg.test_kernels import SHAPES, assert_near, layout_of, some_of
from lockstep.linalg import _cpu_kernels, _tridiagonalize


class _Panel(NamedTuple):
    """A superstep of a reduction to bidiagonal form, and its column ``c``; reduced slots are 0."""

    order: np.ndarray
    columns: np.ndarray
    lines: np.ndarray
    left: np.ndarray
    right: np.ndarray
    s: int
    c: int

    @property
    def k(self) -> int:
        return self.s * len(self.lines) + self.c

    def vectors(self, count: int) -> tuple[jax.Array, jax.Array]:
        """The first ``count`` of each; a kernel must not look at the others."""
        later = (np.arange(len(self.left)) >= count)[:, None, None]
        return jnp.asarray(np.where(later, np.nan, self.left)), jnp.asarray(
            np.where(later, np.nan, self.right)
        )

    def reflector(self, x: np.ndarray, k: int) -> list[np.ndarray]:
        found = _tridiagonalize._reflector(jnp.asarray(x), jnp.asarray(self.order), jnp.int32(k))
        return [np.asarray(x) for x in found]


def _left_half(at: _Panel, a: np.ndarray, me: int) -> tuple[np.ndarray, ...]:
    """`bidiagonal_left` by its formulas, of the local columns ``a`` of device ``me``."""
    left, right, here = at.left[: 2 * at.c], at.right[: 2 * at.c], at.order == at.k
    column = at.columns[at.c] - np.einsum("i,ipr->pr", right[:, here][:, 0].conj(), left)
    v, tau, beta = at.reflector(column, at.k - 1)
    line = at.lines[at.c] - np.einsum("i,ipr->pr", left[:, here][:, 0].conj(), right)
    r = np.where(at.order > at.k, line, 0)
    less = np.einsum("i,ir->r", np.einsum("ipr,pr->i", left.conj(), v), right[:, me])
    y = np.where(at.order[me] > at.k, tau * (np.einsum("ipr,pr->i", a, v) - less), 0)
    products = np.stack([np.einsum("ipr,i->pr", a.conj(), r[me] - y), np.zeros_like(r)])
    products[1, me] = y
    return v, r, products, np.stack([beta, tau])


def _right_half(at: _Panel, r: np.ndarray, w: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    """`bidiagonal_right` by its formulas."""
    left, right = at.left[: 2 * at.c + 1], at.right[: 2 * at.c + 1]
    u, tau, off = at.reflector(r - y, at.k)
    x = np.zeros_like(r)
    if tau:
        x = (w - off * at.columns[at.c + 1]) / ((r - y)[at.order == at.k + 1][0] - off)
    x -= np.einsum("i,ipr->pr", np.einsum("ipr,pr->i", right.conj(), u), left)
    return u, np.where(at.order > at.k, tau * x, 0), np.stack([off, tau])


@each_dtype
@sample("shape", SHAPES, 3)
def test_a_column_of_a_bidiagonal_panel(shape: tuple[int, int, int], dtype: Any) -> None:
    assert _cpu_kernels.available("cpu")
    layout, order = layout_of(shape)
    width, slots = layout.devices * layout.tile, (layout.devices, layout.rows)
    for s in some_of(layout.steps):
        live, rows_live = order >= s * width, np.arange(layout.rows) >= s * layout.tile
        columns, lines, left, right, a = (
            full((count, *slots), dtype, i) * live
            for i, count in enumerate([width + 1, width, 2 * width, 2 * width, layout.rows])
        )
        a *= rows_live[:, None, None]
        given = jnp.asarray(np.where(live & rows_live[:, None, None], a, np.nan))
        for c in {0, 1, width // 2, width - 1} & set(range(width)):
            at, place = (
                _Panel(order, columns, lines, left, right, s, c),
                (jnp.int32(s), jnp.int32(c)),
            )
            panel = jnp.asarray(columns), jnp.asarray(lines)
            for me in range(layout.devices):
                got = _cpu_kernels.bidiagonal_left(
                    given, *panel, *at.vectors(2 * c), *place, jnp.int32(me)
                )
                for x, wanted in zip(got, _left_half(at, a, me), strict=True):
                    assert_near(x, wanted, dtype)
            r, w, y = (np.where(order > at.k, x, 0) for x in (lines[0], lines[-1], columns[0]))
            got = _cpu_kernels.bidiagonal_right(
                jnp.asarray(r), jnp.asarray([w, y]), panel[0], *at.vectors(2 * c + 1), *place
            )
            for x, wanted in zip(got, _right_half(at, r, w, y), strict=True):
                assert_near(x, wanted, dtype)
