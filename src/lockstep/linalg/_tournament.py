"""Pivots by a tournament of the devices, each of which has some columns of a panel.

Tournament pivoting (Grigori, Demmel and Xiang, "CALU: a communication optimal LU factorization
algorithm", SIAM J. Matrix Anal. Appl. 32, 2011). Everything here runs inside `jax.shard_map`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from lockstep.linalg import _cpu_kernels, _sweeps, _tiles
from lockstep.linalg._layout import Axes
from lockstep.linalg._tiles import gemm

MAX_INNER = 64
"""Rows of a panel, at most, for which one tournament finds the pivots (`factor_columns`)."""


Factored = tuple[jax.Array, jax.Array, jax.Array]
"""What `lockstep.linalg._tiles.getrf` returns."""


def getrf(panel: jax.Array, devices: int, kernels: bool) -> Factored:
    """The factors of a panel that ``devices`` of all processes have."""
    if not kernels:
        return _tiles.getrf(panel)
    return _getrf_by_kernel(panel, shared=devices > jax.process_count())


def _plain_getrf(panel: jax.Array, shared: bool) -> Factored:
    return _tiles.getrf(panel)


@_cpu_kernels.with_derivatives_of(_plain_getrf)
def _getrf_by_kernel(panel: jax.Array, shared: bool) -> Factored:
    return _cpu_kernels.getrf(panel, shared)


def factor_columns(
    own: jax.Array, numbers: jax.Array, rows: int, axes: Axes, devices: int, kernels: bool
) -> tuple[jax.Array, jax.Array]:
    """The numbers of the ``W`` columns that are eliminated, and these factored, (W, W).

    ``own``, (W, c), are this device's columns of a panel; device ``p`` has ``rows`` numbers from
    ``p rows`` on. Some of the panel's rows at a time, each with a tournament: one for all rows
    would cost every device ``W^3`` flops, and send ``W^2`` numbers, in each round.
    """
    size = own.shape[0]
    inner = inner_rows(size)
    if inner == size:
        return play(own, numbers, axes, devices, kernels)
    trsm = _sweeps.trsm_by_kernel if kernels else _tiles.trsm
    row = jnp.arange(size)[:, None]

    def step(t: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        own, is_left, won, block = state
        top = t * inner
        some = lax.dynamic_slice_in_dim(own, top, inner)
        # A column of zeros loses, unless the matrix is singular: then its pivot of zero tells.
        at, packed = play(jnp.where(is_left, some, 0), numbers, axes, devices, kernels)
        where = {"rows": rows, "axes": axes, "devices": devices}
        columns = _gather_in_few_rounds(own, numbers, at, **where)
        below = _tiles.solve_right(columns, _tiles.unit_lower(packed))
        below = jnp.where(row < top + inner, 0, below)
        solved = trsm(divisible(packed), some)
        own = lax.dynamic_update_slice_in_dim(own, solved, top, 0) - gemm(below, solved)
        columns = jnp.where(row < top, columns, below)
        columns = lax.dynamic_update_slice_in_dim(columns, packed, top, 0)
        won = lax.dynamic_update_slice_in_dim(won, at, top, 0)
        block = lax.dynamic_update_slice_in_dim(block, columns, top, 1)
        return own, is_left & ~(at[:, None] == numbers).any(0), won, block

    start = own, numbers >= 0, jnp.zeros(size, numbers.dtype), jnp.zeros((size, size), own.dtype)
    _, _, won, block = lax.fori_loop(0, size // inner, step, start)
    return won, block


def batch_of(count: int, devices: int) -> int:
    """How many columns a device sends at a time of ``count`` that won: its share of those of a
    random matrix, up to some standard deviations."""
    share = count / devices
    return min(count, math.ceil(share + 3 * share**0.5))


def _gather_columns(
    own: jax.Array,
    numbers: jax.Array,
    at: jax.Array,
    rows: int,
    axes: Axes,
    devices: int,
    few: bool = False,
) -> jax.Array:
    """The columns with the numbers ``at``: (W, count).

    First each device gets ``W / P`` rows of all of them, some columns of each device at a time;
    an all-gather of these sends half of what an all-reduce of columns, mostly zero, would.
    ``few``: in as many rounds as are needed, and not in as many as may be.
    """
    size, count = own.shape[0], len(at)
    length, which, owner = batch_of(count, devices), jnp.arange(count), at // rows
    # Comparisons of all with all, because XLA compiles these fast.
    rank = ((owner[:, None] == owner) & (which[:, None] > which)).sum(1)
    place = jnp.argmax(at[:, None] == numbers, axis=1)
    mine = owner == lax.axis_index(axes)

    def step(k: jax.Array, found: jax.Array) -> jax.Array:
        nth = rank - k * length
        is_nth = mine & (nth == jnp.arange(length)[:, None])
        sent = own[:, place[jnp.argmax(is_nth, axis=1)]].reshape(devices, -1, length)
        got = lax.all_to_all(sent, axes, 0, 0, tiled=True)
        got = got[owner, :, jnp.clip(nth, 0, length - 1)].T
        return jnp.where((nth >= 0) & (nth < length), got, found)

    rounds = rounds_of(rank.max() + 1, axes, length) if few else -(-count // length)
    start = jnp.zeros((size // devices, count), own.dtype)
    return lax.all_gather(lax.fori_loop(0, rounds, step, start), axes, tiled=True)


# JAX has no reverse-mode derivative of a loop whose number of rounds is known only at run time.
@_cpu_kernels.with_derivatives_of(_gather_columns)
def _gather_in_few_rounds(
    own: jax.Array, numbers: jax.Array, at: jax.Array, rows: int, axes: Axes, devices: int
) -> jax.Array:
    return _gather_columns(own, numbers, at, rows, axes, devices, few=True)


def rounds_of(count: jax.Array, axes: Axes, length: int) -> jax.Array:
    """In how many rounds ``count`` columns are sent. All devices must agree, even where they found
    different pivots."""
    return lax.pmax(-(-count // length), axes)


def inner_rows(size: int) -> int:
    """The rows of one tournament for a panel of ``size`` rows, which they divide evenly."""
    most = max(k for k in range(1, MAX_INNER + 1) if size % k == 0)
    return most if most >= min(MAX_INNER // 4, size) else size


def divisible(block: jax.Array) -> jax.Array:
    """``block`` with ones for pivots of zero: as in LAPACK, these divide nothing."""
    ones = jnp.where(jnp.diagonal(block) == 0, 1, 0).astype(block.dtype)
    return block + jnp.diag(ones)


def play(
    own: jax.Array, numbers: jax.Array, axes: Axes, devices: int, kernels: bool
) -> tuple[jax.Array, jax.Array]:
    """The ``W`` columns that win of all devices' ``own``, (W, c), and these factored, (W, W).

    Devices that meet in a round hold the same afterwards: after the last one all do. A round for
    each prime factor of their number, so that a device factors few columns at a time.
    """
    chosen, at, block = _choose(own, numbers, 1, kernels)
    stride = 1
    for radix in prime_factors(devices):
        met, met_at = _meet(chosen, at, axes, devices, radix, stride)
        chosen, at, block = _choose(met, met_at, devices, kernels)
        stride *= radix
    return at, block


def prime_factors(number: int) -> list[int]:
    found = []
    for prime in range(2, number + 1):
        while number % prime == 0:
            found.append(prime)
            number //= prime
    return found


def _choose(
    columns: jax.Array, numbers: jax.Array, devices: int, kernels: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The first ``W`` of ``columns``, (W, c), that partial pivoting takes, and their factors."""
    size = min(columns.shape)
    packed, _, permutation = getrf(columns, devices, kernels)
    best = permutation[:size]
    return columns[:, best], numbers[best], packed[:, :size]


def _meet(
    chosen: jax.Array, at: jax.Array, axes: Axes, devices: int, radix: int, stride: int
) -> tuple[jax.Array, jax.Array]:
    """The columns of the ``radix`` devices of this round, side by side, the same on all of them."""
    mine = lax.axis_index(axes) // stride % radix

    def from_next(x: jax.Array, shift: int) -> jax.Array:
        def source(p: int) -> int:
            place = p // stride % radix
            return p + ((place + shift) % radix - place) * stride

        return lax.ppermute(x, axes, [(source(p), p) for p in range(devices)])

    stacks = [
        jnp.stack([x, *(from_next(x, shift) for shift in range(1, radix))]) for x in (chosen, at)
    ]
    columns, numbers = (jnp.roll(stack, mine, axis=0) for stack in stacks)
    return jnp.moveaxis(columns, 0, 1).reshape(chosen.shape[0], -1), numbers.ravel()
