"""The five collectives as compiled programs: one to time, one to call, one to fill, one to check.

The timed program runs the collective ``k`` times in a loop on the device side, so that dispatch
from Python is paid once in ``k``. What keeps the compiler from hoisting or merging the iterations,
without adding a pass over the data, is one element: the next input's first element is
``clip(first element of the result, v, v)`` with ``v`` known only at run time, so it depends on the
result and never changes. Both loop buffers are donated, so nothing is allocated or copied either;
`collectives_in_loop` and `copies_in_loop` read the compiled text to make sure of it.

Values are small whole numbers, a function of rank and index, so every sum is exact in every type
and the result can be checked element by element without moving any data.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from lockstep.bench.cases import Case

AXIS = "ranks"
_COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\("
)
_COPY = re.compile(r"= \w+\[\d[^=(]* copy(-start)?\(")


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled programs of one case.

    ``x`` is ``[ranks, elements]`` and ``y`` ``[ranks, result elements]``, a row on each device.
    """

    fill: Callable[[], tuple[jax.Array, jax.Array]]
    """``() -> (x, y)``: the input and a buffer for the result."""
    loop: Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
    """``(k, x, y) -> (x, y)``: ``k`` turns of ``inner`` collectives; takes over both buffers."""
    call: Callable[[jax.Array], jax.Array]
    """``x -> y``: the collective once, as a program would call it."""
    wrong: Callable[[jax.Array], jax.Array]
    """``y -> [ranks]``: how many elements of each row are not what they must be."""
    loop_text: str
    """The optimised HLO of ``loop``."""


def _collective(op: str, ranks: int) -> Callable[[jax.Array], jax.Array]:
    if op == "all_reduce":
        return lambda x: lax.psum(x, AXIS)
    if op == "all_gather":
        return lambda x: lax.all_gather(x, AXIS, tiled=True)
    if op == "reduce_scatter":
        return lambda x: lax.psum_scatter(x, AXIS, tiled=True)
    if op == "all_to_all":
        return lambda x: lax.all_to_all(x, AXIS, 0, 0, tiled=True)
    if op == "permute":
        ring = [(i, (i + 1) % ranks) for i in range(ranks)]
        return lambda x: lax.ppermute(x, AXIS, ring)
    raise ValueError(f"{op!r} is not one of the collectives")


def _moduli(case: Case) -> tuple[int, int]:
    """How far values vary by index and by rank: small where a type counts exactly only to 256."""
    return (5, 3) if case.dtype == "bf16" else (61, 251)


def _value(case: Case, rank: Any, index: Any) -> Any:
    by_index, by_rank = _moduli(case)
    return index % by_index + rank % by_rank


def _expected(case: Case, me: jax.Array) -> jax.Array:
    """The correct result of rank ``me``, ``[result elements]``, as int32."""
    n, ranks = case.elements, case.ranks
    by_index, by_rank = _moduli(case)
    of_all_ranks = sum(r % by_rank for r in range(ranks))
    i = lax.iota(jnp.int32, case.result_elements)
    part = n // ranks
    if case.op == "all_reduce":
        return i % by_index * ranks + of_all_ranks
    if case.op == "all_gather":
        return _value(case, i // n, i % n)
    if case.op == "reduce_scatter":
        return (i + me * part) % by_index * ranks + of_all_ranks
    if case.op == "all_to_all":
        return _value(case, i // part, i % part + me * part)
    return _value(case, (me - 1) % ranks, i)


def build(case: Case, mesh: Mesh, inner: int = 1) -> Programs:
    """Compiles the programs of ``case`` for all devices of the one-dimensional ``mesh``.

    ``inner``: how many collectives one turn of the timed loop has. XLA's loop on a GPU asks the
    device at each turn whether it is the last, unless the number of turns is known.
    """
    rows = PartitionSpec(AXIS)
    dtype = np.dtype(case.numpy_dtype)
    collective = _collective(case.op, case.ranks)

    def spread(body: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        return jax.shard_map(
            body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )

    def fill() -> tuple[jax.Array, jax.Array]:
        index = lax.iota(jnp.int32, case.elements)
        x = _value(case, lax.axis_index(AXIS), index).astype(dtype)
        return x[None], jnp.zeros((1, case.result_elements), dtype)

    def call(x: jax.Array) -> jax.Array:
        return collective(x[0])[None]

    def loop(k: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        first = x[0, 0]

        def step(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            data, _old = carry
            result = collective(data)
            return data.at[0].set(jnp.clip(result[0], first, first)), result

        def turn(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return lax.fori_loop(0, inner, step, carry)

        data, result = lax.fori_loop(0, k, turn if inner > 1 else step, (x[0], y[0]))
        return data[None], result[None]

    def wrong(y: jax.Array) -> jax.Array:
        expected = _expected(case, lax.axis_index(AXIS)).astype(dtype)
        return jnp.sum(y[0] != expected, dtype=jnp.int32)[None]

    row = jax.NamedSharding(mesh, rows)
    x_shape = jax.ShapeDtypeStruct((case.ranks, case.elements), dtype, sharding=row)
    y_shape = jax.ShapeDtypeStruct((case.ranks, case.result_elements), dtype, sharding=row)
    k_shape = jax.ShapeDtypeStruct((), np.int32)
    loop_specs = (PartitionSpec(), rows, rows)
    looped = (
        jax.jit(spread(loop, loop_specs, (rows, rows)), donate_argnums=(1, 2))
        .lower(k_shape, x_shape, y_shape)
        .compile()
    )
    return Programs(
        fill=jax.jit(spread(fill, (), (rows, rows))).lower().compile(),
        loop=looped,
        call=jax.jit(spread(call, rows, rows)).lower(x_shape).compile(),
        wrong=jax.jit(spread(wrong, rows, rows)).lower(y_shape).compile(),
        loop_text=looped.as_text() or "",
    )


def collectives_in_loop(text: str) -> int:
    """How many collectives the optimised HLO ``text`` holds."""
    return len(_COLLECTIVE.findall(text))


def copies_in_loop(text: str) -> int:
    """How many copies of arrays (scalars aside) the optimised HLO ``text`` holds."""
    return len(_COPY.findall(text))
