"""Any sharding to rows of slots and back, and what the compiled program moves for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from lanes import sample
from linalg.grids import SENT
from linalg.matrices import full, mesh, put
from lockstep.linalg import _redistribute
from lockstep.linalg._layout import RowMap
from lockstep.linalg._posdef import Plan
from lockstep.linalg._validation import place

CASES = [
    ((4,), P("x"), 12),
    ((4,), P(None, "x"), 12),
    ((4,), P(), 7),
    ((3,), P(), 1),
    ((2, 2), P("x", "y"), 10),
    ((2, 2), P("y", "x"), 10),
    ((2, 2), P(("y", "x")), 12),
    ((2, 2), P(None, ("x", "y")), 12),
    ((2, 3), P("y"), 9),
    ((2, 2, 2), P("z", "x"), 14),
]


def round_trip(plan: Plan) -> Callable[..., Any]:
    def body(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        slots = plan.take_matrix(a)
        flipped = plan.give_matrix(_redistribute.adjoint(slots, plan.axes))
        return plan.give_matrix(slots), flipped, slots

    spec = plan.placed.spec
    return jax.jit(plan.placed.map(body, spec, (spec, spec, plan.slots)))


@sample(("shape", "spec", "n"), CASES, 2, 9)
@pytest.mark.parametrize("natural", [True, False])
def test_there_and_back(shape: tuple[int, ...], spec: P, n: int, natural: bool) -> None:
    a = full((n, n), np.complex64)
    sharded = put(a, mesh(shape), spec)
    placed = place("test", sharded, None, None)
    plan = Plan.of(n, placed, 2, natural)
    back, flipped, slots = round_trip(plan)(sharded)
    np.testing.assert_array_equal(back, a)
    np.testing.assert_array_equal(flipped, a.conj().T)
    rows = plan.layout.row_of_slot.ravel()
    wanted = np.eye(plan.layout.padded, dtype=a.dtype)
    wanted[:n, :n] = a
    got = np.asarray(slots).reshape(plan.layout.padded, -1)
    np.testing.assert_array_equal(got, wanted[rows][:, rows])


def test_nothing_is_gathered_and_the_buffers_are_shares() -> None:
    n, devices = 512, 8
    over = mesh((2, 4))
    a = put(jnp.ones((n, n), jnp.float32), over, P("x", "y"))
    plan = Plan.of(a.shape[0], place("test", a, None, None), 16, True)
    spec = plan.placed.spec
    run = plan.placed.map(lambda a: plan.give_matrix(plan.take_matrix(a)), spec, spec)
    compiled = jax.jit(run).lower(a).compile()
    text = compiled.as_text()
    assert text is not None
    assert not re.search(r"= \S+ all-gather", text)
    assert re.search(r"all-to-all", text)
    memory = compiled.memory_analysis()
    assert memory is not None
    # XLA tells of one device. There and back: two buffers sent, two received, a few tables.
    share = n * n * 4 // devices
    assert memory.temp_size_in_bytes <= 4.5 * share, memory


@sample(
    ("n", "columns", "tile"),
    [(64, 64, 4), (60, 41, 4), (64, 8, 4), (112, 21, 7)],
    *(0, 1),
)
def test_where_few_devices_have_rows_for_each_other_two_shares_are_sent(
    n: int, columns: int, tile: int
) -> None:
    """Tiles of a block go to one device; all pairs in one all-to-all have as many rows."""
    over, a = mesh((8,)), full((n, columns), np.float64)
    sharded = place("test", put(full((n, n), np.complex64), over, P()), None, None).sharded
    blocks, cyclic = RowMap.in_blocks(sharded, n), RowMap.cyclic(n, 8, tile)
    rows = np.zeros((blocks.padded, columns), a.dtype)
    rows[blocks.slot_of_row[:n]] = a

    def there(rows: jax.Array) -> jax.Array:
        return _redistribute.move(rows, blocks, cyclic, sharded)

    def and_back(rows: jax.Array) -> jax.Array:
        return _redistribute.move(rows, cyclic, blocks, sharded)

    for run, given, held in ((there, rows, cyclic), (and_back, None, blocks)):
        given = rows if given is None else given
        move = jax.jit(jax.shard_map(run, mesh=over, in_specs=P("x"), out_specs=P("x")))
        _, size = SENT(move.lower(given).compile().as_text(), 8)
        rows = np.asarray(move(given))
        wanted = np.zeros((held.padded, columns), a.dtype)
        wanted[held.slot_of_row[:n]] = a
        np.testing.assert_array_equal(rows, wanted)
        whole = (columns + -columns % 8) * a.itemsize * (blocks.rows + cyclic.rows)
        assert 0 < size <= whole * 7 / 8


def test_rows_that_fit_are_not_moved() -> None:
    a = put(jnp.ones((64, 64)), mesh((4,)), P("x"))
    plan = Plan.of(a.shape[0], place("test", a, None, None), 4, False)
    assert plan.layout.is_plain
    run = plan.placed.map(
        lambda a: plan.take_matrix(a).reshape(16, -1), plan.placed.spec, plan.slots
    )
    text = jax.jit(run).lower(a).compile().as_text()
    assert text is not None
    assert not re.search(r"all-to-all|all-gather|collective", text)


def test_layouts_of_padding_only_at_the_end() -> None:
    assert RowMap.cyclic(5, 4, 2).row_of_slot.ravel().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
