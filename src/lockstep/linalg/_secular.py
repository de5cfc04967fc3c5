"""Rank-one updates of diagonal matrices: the roots of their secular equations, and their weights.

Shapes are static, so there is no deflation. Instead equal poles are distinguished by offsets far
below rounding, stored as a second word, and weights get a lower bound far below rounding. Then
every root lies strictly between two poles, and is computed to full precision as an offset from the
nearer one. The weights are then recomputed from the roots (Gu and Eisenstat, "A stable and
efficient algorithm for the rank-one modification of the symmetric eigenproblem", 1994), which keeps
the eigenvectors orthogonal however close the eigenvalues are.

Each device finds its share of the roots and of the weights. With ``kernels`` (see `_cpu_kernels`)
it takes a rational iteration, a few steps a root; in plain JAX bisection takes as many as a number
has bits, on all roots at once.

Singular values are roots of the same equation between the squares of the poles (Gu and Eisenstat,
"A divide-and-conquer algorithm for the bidiagonal SVD", 1995). Offsets are of squares then, and a
distance is a difference times a sum, so that it is as precise. This takes the kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels
from lockstep.linalg._layout import Axes


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
    squares: bool = False
    """Whether the update is of ``diag(pole^2)``."""

    def at(self, index: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Both words of the poles of these indices, (B, k)."""
        take = functools.partial(jnp.take_along_axis, indices=index, axis=1)
        return take(self.pole), take(self.small)

    def distances(self, offset: jax.Array, pole: jax.Array, small: jax.Array) -> jax.Array:
        """(B, m, k): of all poles from these roots, (B, k)."""
        pole, small = pole[:, None], small[:, None]
        own, own_small = self.pole[:, :, None], self.small[:, :, None]
        found = (own - pole) + (own_small - small)
        if self.squares:
            found = found * ((own + pole) + (own_small + small))
        return found - offset[:, None]


class Roots(NamedTuple):
    """Eigenvalues in ascending order, (B, m): an offset from both words of the nearer pole."""

    offset: jax.Array
    pole: jax.Array
    small: jax.Array

    @classmethod
    def of(cls, offset: jax.Array, update: Update) -> Roots:
        """The sign of an offset tells on which side its pole is."""
        m = offset.shape[1]
        after = jnp.minimum(jnp.arange(m) + 1, m - 1)
        anchor = jnp.where(offset > 0, update.ascending, update.ascending[:, after])
        return cls(offset, *update.at(anchor))


def update_of(pole: jax.Array, z: jax.Array, rho: jax.Array) -> Update:
    """``diag(pole) + rho z z^T``, with distinct poles and lower bounds for the weights."""
    return _distinct(pole, pole, z, jnp.maximum(rho, _floor(pole.dtype)), 1, False)


def update_of_squares(pole: jax.Array, zero: int, z: jax.Array, unit: float) -> Update:
    """``diag(pole^2) + z z^T`` with ``pole[:, zero] = 0``, the others positive.

    ``unit`` is the size of the largest numbers: both words of a pole and its weight are products of
    it, as they are of 1 in `update_of`.
    """
    pole = pole.at[:, zero].set(0)
    return _distinct(pole, pole.at[:, zero].set(-1), z, jnp.ones_like(z[:, 0]), unit, True)


def _floor(dtype: Any) -> float:
    # Far below rounding; yet an offset, a floor cubed times a spacing, is a normal number.
    return float(jnp.finfo(dtype).eps) * (1e-3 if dtype == jnp.float64 else 0.1)


def _distinct(
    pole: jax.Array, key: jax.Array, z: jax.Array, rho: jax.Array, unit: float, squares: bool
) -> Update:
    """An update of poles in the order of ``key``; the first of them has no second word."""
    floor = _floor(pole.dtype) * unit
    ascending = jnp.argsort(key, axis=1)
    ranks = jnp.argsort(ascending, axis=1)
    z = jnp.where(jnp.abs(z) < floor, jnp.where(z < 0, -floor, floor), z)
    small = (ranks * (floor / pole.shape[1])).astype(pole.dtype)
    return Update(pole, small, z, rho, ranks, ascending, squares)


def _share(array: jax.Array, devices: int, axes: Axes) -> jax.Array:
    """This device's part of the last dimension."""
    count = array.shape[1] // devices
    return lax.dynamic_slice_in_dim(array, lax.axis_index(axes) * count, count, axis=1)


def _join(part: jax.Array, axes: Axes) -> jax.Array:
    return lax.all_gather(part, axes, axis=1, tiled=True)


def roots(update: Update, devices: int, axes: Axes, kernels: bool) -> Roots:
    """The eigenvalues of all updates, on every device."""
    return Roots.of((_roots_by_kernel if kernels else _roots)(update, devices, axes), update)


def weights(update: Update, found: Roots, devices: int, axes: Axes, kernels: bool) -> jax.Array:
    """The ``z`` of which the computed roots are the exact ones, (B, m), on every device."""
    return (_weights_by_kernel if kernels else _weights)(update, found, devices, axes)


def _roots_by_kernel(update: Update, devices: int, axes: Axes) -> jax.Array:
    """As `_roots`, by a rational iteration instead of bisection."""
    count = update.pole.shape[1] // devices
    poles = update.pole, update.small, update.z, update.rho
    first = lax.axis_index(axes) * count
    found = _cpu_kernels.secular_roots(poles, update.ascending, first, count, update.squares)
    return _join(found, axes)


def _weights_by_kernel(update: Update, roots: Roots, devices: int, axes: Axes) -> jax.Array:
    """As `_weights`."""
    count = update.pole.shape[1] // devices
    poles = update.pole, update.small, update.z, update.rho
    order = update.ascending, update.ranks
    where = lax.axis_index(axes) * count, count, update.squares
    return _join(_cpu_kernels.secular_weights(poles, *order, roots.offset, *where), axes)


def _roots(update: Update, devices: int, axes: Axes) -> jax.Array:
    """The roots of ``1 + rho sum z^2 / (pole - x)``, each device its share of them: offsets."""
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

    return _join(side * _bisect(beyond, half), axes)


def _bisect(beyond: Callable[[jax.Array], jax.Array], upper: jax.Array) -> jax.Array:
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
        down = beyond(middle.view(upper.dtype))
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
