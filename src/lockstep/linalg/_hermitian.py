"""Refuses a matrix that is not Hermitian, outside of transformations such as `jax.jit`.

The solvers read one of two mirrored elements. For a matrix that is not Hermitian their result is a
plausible wrong number, so the matrix is checked first, in two steps:

1. ``(a - a^H) r`` for a random vector ``r`` (after Freivalds, 1977) and the largest element: one
   pass over a device's share, or three without kernels, and all-reduces of n numbers. Nothing of
   the size of a share is copied or sent.
2. Only if that product is larger than rounding allows, the elements themselves are compared, a few
   rows at a time. The second step decides, and names the elements that differ most.

A small product in spite of a large difference needs a row of differences that is orthogonal to
``r``. Each element of ``r`` has a modulus of 1 or more, so a single difference never is.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import PartitionSpec as P

from lockstep import _jax_compat
from lockstep.linalg import _cpu_kernels, _redistribute, _validation
from lockstep.linalg._layout import RowMap
from lockstep.linalg._posdef import Plan
from lockstep.linalg._tiles import adjoint, gemm
from lockstep.linalg._validation import Placed

CHUNKS = 16
"""In so many parts the rows are compared: a device holds that fraction of its share twice."""

READ_ONE_TRIANGLE = "lower=True or lower=False"


def check(
    function: str, a: jax.Array, placed: Placed, ignore: str = READ_ONE_TRIANGLE, name: str = "a"
) -> None:
    """Raises a ValueError for an ``a`` whose triangles differ by more than rounding.

    Values that are traced, and values that are not finite, are not judged. ``ignore`` is the
    argument with which ``function`` reads one triangle alone, ``name`` that of the matrix.
    """
    a = _jax_compat.under_derivatives(a)
    if isinstance(a, Tracer):
        return
    a = _validation.put(a, placed)
    found = _product(a, placed)
    if isinstance(found, Tracer):  # ``a`` is a constant of a function that is being traced
        return
    product, largest = np.asarray(found)
    limit = tolerance(a.dtype) * float(largest)
    if product <= limit / (2 * a.shape[0]):
        return
    sizes, places, values = map(np.asarray, _largest_difference(a, placed))
    worst = int(np.argmax(sizes))
    if sizes[worst] > limit:
        found = places[worst], values[worst], float(jnp.abs(a).max())
        raise ValueError(_message(function, name, *found, ignore))


def tolerance(dtype: Any) -> float:
    """The largest difference of two mirrored elements, as a fraction of the largest element.

    Half of the digits: products whose two triangles were added up in different orders pass.
    """
    return float(np.finfo(dtype).eps) ** 0.5


@functools.partial(jax.jit, static_argnames="placed")
def _product(a: jax.Array, placed: Placed) -> jax.Array:
    """The largest elements of ``(a - a^H) r / 2 n`` and of ``a``, replicated.

    Both are 0 if a value is not finite. The factor keeps sums of the largest numbers of a
    type finite. Of complex numbers the largest real or imaginary part counts.
    """
    n, (rows, columns) = a.shape[0], placed.dimensions
    kernels = _cpu_kernels.available(_validation.platform(placed))
    products = _cpu_kernels.two_products if kernels else _two_products

    def body(shard: jax.Array) -> jax.Array:
        r = jax.random.uniform(jax.random.key(0), (n,), shard.real.dtype, -1, 1)
        r = (jnp.where(r < 0, r - 1, r + 1) / (2 * n)).astype(shard.dtype)
        starts = [
            lax.axis_index(axes) * count if axes else 0
            for axes, count in zip((rows, columns), shard.shape, strict=True)
        ]
        down, across = (
            lax.dynamic_slice_in_dim(r, start, count)
            for start, count in zip(starts, shard.shape, strict=True)
        )
        straight, turned, largest = products(shard, across, down)
        zeros = jnp.zeros(n, shard.dtype)
        straight = lax.dynamic_update_slice(zeros, straight, (starts[0],))
        product = straight - lax.dynamic_update_slice(zeros, turned, (starts[1],))
        if axes := (*rows, *columns):
            product, largest = lax.psum(product, axes), lax.pmax(largest, axes)
        product = jnp.abs(product)
        found = jnp.stack([product.max(), largest])
        # A maximum over devices may drop a NaN, so the values themselves are asked.
        return jnp.where(jnp.isfinite(product).all(), found, 0)

    return jax.shard_map(
        body, mesh=placed.mesh, in_specs=placed.spec, out_specs=P(), check_vma=False
    )(a)


def _two_products(
    a: jax.Array, v: jax.Array, w: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``a v``, ``a^H w``, and the largest real or imaginary part of ``a`` in modulus."""
    parts = (a.real, a.imag) if jnp.iscomplexobj(a) else (a,)
    largest = functools.reduce(jnp.maximum, [jnp.abs(part).max() for part in parts])
    return gemm(a, v), gemm(adjoint(a), w), largest


@functools.partial(jax.jit, static_argnames="placed")
def _largest_difference(a: jax.Array, placed: Placed) -> Any:
    """The size, the place and both elements of the largest ``a - a^H`` of each device's rows.

    Shapes: (P,), (P, 2), (P, 2), replicated.
    """
    layout = RowMap.in_blocks(placed.sharded, a.shape[0])
    plan = Plan(placed, layout, kernels=False)
    count = -(-layout.rows // CHUNKS)
    row_of_slot = jnp.asarray(layout.row_of_slot)

    def body(shard: jax.Array) -> Any:
        slots = plan.take_matrix(shard)
        me = _redistribute.device_index(placed.sharded)

        def compare(chunk: jax.Array, best: Any) -> Any:
            top = jnp.minimum(chunk * count, layout.rows - count)
            rows = lax.dynamic_slice_in_dim(slots, top, count, axis=0)
            columns = lax.dynamic_slice_in_dim(slots, top, count, axis=2)
            rows = lax.all_to_all(rows, plan.axes, 1, 1, tiled=True).transpose(2, 1, 0).conj()
            size = jnp.abs(columns - rows)
            i, q, j = jnp.unravel_index(jnp.argmax(size), size.shape)
            place = jnp.stack([row_of_slot[me, i], row_of_slot[q, top + j]])
            found = (size[i, q, j], place, jnp.stack([columns[i, q, j], rows[i, q, j]]))
            return jax.tree.map(functools.partial(jnp.where, found[0] > best[0]), found, best)

        none = jnp.zeros((), shard.real.dtype)
        nowhere = (none, jnp.zeros(2, row_of_slot.dtype), jnp.zeros(2, shard.dtype))
        best = lax.fori_loop(0, CHUNKS, compare, nowhere)
        return jax.tree.map(lambda x: lax.all_gather(x, plan.axes), best)

    return plan.placed.map(body, placed.spec, (P(), P(), P()))(a)


def _message(function: str, name: str, place: Any, values: Any, largest: float, ignore: str) -> str:
    (i, j), (here, mirrored) = place, values
    size = abs(here - mirrored)
    if i < j:
        i, j, here, mirrored = j, i, mirrored.conj(), here.conj()
    is_complex = np.iscomplexobj(values)
    kind, of, adjoint = (
        ("Hermitian", "the conjugate of ", ".T.conj()") if is_complex else ("symmetric", "", ".T")
    )
    return (
        f"{function}: {name} is not {kind}: {name}[{i}, {j}] is {here:.6g}, and "
        f"{of}{name}[{j}, {i}] is {mirrored:.6g}. They differ most, by {size:.3g}, where "
        f"the largest element is {largest:.3g}; {function} reads one of the two, so its result "
        "would be wrong. Give "
        f"({name} + {name}{adjoint}) / 2 if {name} should be {kind}; or {ignore} if only one "
        "triangle is meant. "
        "Other matrices are for lockstep.linalg.solve and lockstep.linalg.inv."
    )
