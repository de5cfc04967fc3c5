"""The checks of `lockstep.data` that every implementation of the collectives has to pass.

`test_data` runs them on the processes of a job, which they find when they are imported.
"""

from __future__ import annotations

import collections
import json
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import grain
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep
from lockstep import data

ME, COUNT, DEVICES = jax.process_index(), jax.process_count(), jax.device_count()
MESH = jax.make_mesh((DEVICES,), ("data",), axis_types=(AxisType.Auto,))
ROWS = NamedSharding(MESH, P("data"))
WHOLE = NamedSharding(MESH, P())
SIZE = 2 * DEVICES
LOCAL = SIZE // COUNT


@jax.jit
def total(batch: data.Batch) -> jax.Array:
    """The sum over the real rows: a step with a collective."""
    values = batch.rows["x"].sum(1)
    return (values if batch.mask is None else jnp.where(batch.mask, values, 0)).sum()


def seen(batches: Any) -> list[list[int]]:
    """The numbers of the real rows of each batch, by way of every process."""
    found = []
    for batch in batches:
        total(batch).block_until_ready()
        rows, mask = lockstep.gather((batch.rows["id"], batch.mask), to=None)
        found.append(rows[mask].tolist() if mask is not None else rows.tolist())
    return found


def table(length: int) -> dict[str, np.ndarray]:
    ids = np.arange(length, dtype=np.int32)
    return {"id": ids, "x": np.stack([ids, ids], 1).astype(np.float32)}


def expected(length: int, first: int = 0, size: int = SIZE) -> list[list[int]]:
    return [list(range(i, min(i + size, length))) for i in range(first, length, size)]


def flat(found: list[list[int]]) -> list[int]:
    return [row for batch in found for row in batch]


def raised(call: Any) -> str:
    try:
        call()
    except (lockstep.DataError, TypeError, ValueError) as error:
        return str(error)
    raise AssertionError("no error")


def check_indexed() -> None:
    length = 2 * SIZE + 3  # of the last batch some processes have no row
    assert seen(data.batches(table(length), SIZE, ROWS)) == expected(length)
    assert seen(data.batches(table(length), SIZE, ROWS, "drop")) == expected(length)[:2]
    said = raised(lambda: data.batches(table(length), SIZE, ROWS, "error"))
    assert f"{length} rows make 2 batches of {SIZE}, and 3 are left" in said
    assert seen(data.batches(table(2 * SIZE), SIZE, ROWS, "error")) == expected(2 * SIZE)
    assert seen(data.batches(table(0), SIZE, ROWS)) == []
    [batch] = data.batches(np.arange(SIZE), SIZE, ROWS, "drop")
    assert batch.mask is None
    assert batch.rows.sharding == ROWS
    np.testing.assert_array_equal(batch.rows.addressable_data(0), batch.rows.addressable_data(0))


def check_grain() -> None:
    def row(i: int) -> Any:
        return {"id": np.int32(i), "x": np.full(2, i, np.float32)}

    length = SIZE + 1
    shuffled = grain.MapDataset.range(length).shuffle(seed=1).map(row)
    found = seen(data.batches(shuffled, SIZE, ROWS))
    order = [int(one["id"]) for i in range(length) if (one := shuffled[i]) is not None]
    assert found == [order[:SIZE], order[SIZE:]]
    repeated = data.batches(shuffled.repeat(), SIZE, ROWS)
    assert len(seen(next(repeated) for _ in range(3))) == 3
    repeated.close()
    mine = grain.sharding.ShardByJaxProcess()
    even = 3 * COUNT  # of other numbers Grain's samplers leave rows out
    loader = grain.DataLoader(
        data_source=grain.MapDataset.range(even).map(row),
        sampler=grain.samplers.SequentialSampler(even, mine),
    )
    found = seen(data.batches(loader, SIZE, ROWS))
    assert sorted(flat(found)) == list(range(even))
    kept = grain.MapDataset.range(length).map(row)[ME::COUNT].filter(lambda r: r["id"] != 0)
    found = seen(data.batches(kept.to_iter_dataset(), SIZE, ROWS))
    assert sorted(flat(found)) == list(range(1, length))
    holes = grain.MapDataset.range(SIZE).map(row).filter(lambda r: r["id"] != 0)
    if ME == 0:
        from lockstep.data import _sources

        source = _sources.recognize(holes, None, None)
        assert isinstance(source, _sources.Indexed)
        assert "has no row 0" in raised(lambda: source.read(np.arange(2)))


def local_rows(count: int) -> Iterator[dict[str, Any]]:
    for i in range(count):
        yield {"id": np.int32(100 * ME + i), "x": np.full(2, i, np.float32)}


def check_streams() -> None:
    # Process 0 has a batch and a row; the others have three batches more each, the last short.
    mine = LOCAL + 1 if ME == 0 else LOCAL * (1 + 3 * ME) - 1
    counts = [LOCAL + 1] + [LOCAL * (1 + 3 * p) - 1 for p in range(1, COUNT)]
    rows = sorted(100 * p + i for p in range(COUNT) for i in range(counts[p]))
    found = seen(data.batches(local_rows(mine), SIZE, ROWS))
    assert sorted(flat(found)) == rows
    assert len(found) == max(-(-n // LOCAL) for n in counts)
    assert len(seen(data.batches(local_rows(mine), SIZE, ROWS, "drop"))) == 1
    assert seen(data.batches(local_rows(mine), SIZE, ROWS, every=3)) == found
    empty = seen(data.batches(local_rows(0 if ME == 0 else LOCAL), SIZE, ROWS))
    assert len(empty) == (COUNT > 1)
    assert seen(data.batches(local_rows(LOCAL), SIZE, ROWS, "error"))[0][0] == 0
    # An array of rows of this process alone, and batches of odd sizes in one memory.
    own = table(mine)
    own["id"] += 100 * ME
    assert sorted(flat(seen(data.batches(own, SIZE, ROWS, local=True)))) == rows

    def blocks() -> Iterator[dict[str, np.ndarray]]:
        buffer = {name: np.empty((3, *x.shape[1:]), x.dtype) for name, x in own.items()}
        for at in range(0, mine, 3):
            part = {name: x[at : at + 3] for name, x in own.items()}
            for name, x in part.items():
                buffer[name][: len(x)] = x
            yield {name: buffer[name][: len(x)] for name, x in part.items()}

    assert sorted(flat(seen(data.batches(blocks(), SIZE, ROWS, batched=True)))) == rows


def check_stream_errors() -> None:
    if COUNT == 1:
        return
    uneven = LOCAL * (2 if ME else 1)
    said = raised(lambda: seen(data.batches(local_rows(uneven), SIZE, ROWS, "error")))
    rest = "process 1" if COUNT == 2 else f"processes 1-{COUNT - 1}"
    assert f"process 0 has no rows left after 1 batches, and {rest} has" in said

    def failing() -> Iterator[Any]:
        yield from local_rows(2 * LOCAL)
        if ME == 1:
            raise ValueError("a broken file")

    steps = 0

    def run() -> None:
        nonlocal steps
        for batch in data.batches(failing(), SIZE, ROWS):
            total(batch).block_until_ready()
            steps += 1

    said = raised(run)
    assert "a broken file" in said
    assert (steps, said.startswith("a broken")) == (2, ME == 1)
    assert ME == 1 or "the source of process 1 raised an error" in said
    odd = [{"id": np.int32(0), "x": np.zeros(2 + (ME == 1), np.float32)}] * LOCAL
    said = raised(lambda: seen(data.batches(iter(odd), SIZE, ROWS)))
    assert "differ in structure, shape or dtype" in said
    assert "{'id': int32[], 'x': float32[3]}" in said
    said = raised(lambda: data.batches(table(SIZE + ME), SIZE, ROWS))
    assert "the processes differ in what they cut into batches" in said
    same = NamedSharding(MESH, P())
    said = raised(lambda: data.batches(local_rows(1), SIZE, same))
    assert "hold the same rows of a batch" in said
    part = jax.sharding.Mesh(np.array(jax.local_devices(process_index=0)), ("data",))
    said = raised(lambda: data.batches(table(1), SIZE, NamedSharding(part, P("data"))))
    assert "has no device in the sharding's mesh" in said


def check_meshes() -> None:
    """Rows over one of several axes, over several, over none, and columns too."""
    rows = table(3 * SIZE // 2)
    grid = jax.make_mesh((DEVICES // 2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    swapped = jax.sharding.Mesh(grid.devices.T, ("b", "a"))
    mixed = jax.sharding.Mesh(grid.devices.reshape(-1)[::-1].reshape(2, -1), ("b", "a"))
    for mesh in (grid, swapped, mixed):
        for spec in (P("a"), P("b"), P(("a", "b")), P(("b", "a")), P(), P(None, "b"), P("a", "b")):
            sharding = NamedSharding(mesh, spec)
            pair = {"id": NamedSharding(mesh, P(*spec[:1])), "x": sharding}
            for batch, want in zip(data.batches(rows, SIZE, pair), expected(12), strict=False):
                for shard in batch.rows["x"].addressable_shards:
                    whole = np.zeros((SIZE, 2), np.float32)
                    whole[: len(want)] = np.array(want)[:, None]
                    np.testing.assert_array_equal(shard.data, whole[shard.index])
    explicit = jax.make_mesh((DEVICES,), ("data",), axis_types=(AxisType.Explicit,))
    [batch] = data.batches(np.ones(SIZE), SIZE, NamedSharding(explicit, P("data", None)))
    assert float(lockstep.gather(jax.jit(jnp.sum)(batch.rows), to=None)) == SIZE


def check_equalize() -> None:
    assert list(data.equalize(range(3 + ME))) == [0, 1, 2]
    assert list(data.equalize(range(5 + ME), every=2)) == [0, 1, 2, 3, 4]
    assert list(data.equalize(range(4 + 4 * ME), every=4)) == [0, 1, 2, 3]
    mine = [{"x": np.full((2, 1), i, np.int8)} for i in range(2 * ME + (COUNT == 1))]
    found = list(data.equalize(mine, "last", every=1 + COUNT % 2))
    assert len(found) == (2 * (COUNT - 1) or 1)
    for i, (item, mask) in enumerate(found):
        real = i < len(mine)
        assert mask.tolist() == [real, real]
        assert item["x"].dtype == np.int8
        assert item["x"].tolist() == [[i * real]] * 2
    # With collectives of the program in the loop, on fewer devices too.
    for _, mask in data.equalize(mine, "last"):
        assert int(total_of(mask)) <= DEVICES


class Pair(NamedTuple):
    """A batch of a type of the program."""

    id: Any
    x: Any


def check_named_tuples() -> None:
    length = SIZE + 3
    [*found] = data.batches(Pair(**table(length)), SIZE, ROWS)
    assert all(type(batch.rows) is Pair for batch in found)
    ids = [lockstep.gather((batch.rows.id, batch.mask), to=None) for batch in found]
    assert [rows[mask].tolist() for rows, mask in ids] == expected(length)
    # Uneven streams, where every process has a batch: the others' empty ones are pairs too.
    mine = [Pair(np.int32(100 * ME + i), np.zeros(2, np.float32)) for i in range(LOCAL * (1 + ME))]
    found = list(data.batches(iter(mine), SIZE, ROWS))
    assert len(found) == COUNT
    assert all(type(batch.rows) is Pair for batch in found)
    blocks = [Pair(np.ones(2), np.ones((2, 3)))] * (1 + ME)
    pairs = list(data.equalize(blocks, "last"))
    assert [(type(item), item.x.shape, mask[0]) for item, mask in pairs] == [
        (Pair, (2, 3), step <= ME) for step in range(COUNT)
    ]
    if COUNT == 1:
        return
    odd = [Pair(np.ones(2), np.ones((2, 3 + ME)))]
    said = raised(lambda: list(data.equalize(odd, "last")))
    assert "differ in structure, shape or dtype" in said
    assert "Pair(float64[2], float64[2,4])" in said
    said = raised(lambda: list(data.equalize(blocks if ME else [], "last")))
    assert "process 0 has no batch" in said
    assert "(a Pair) that is no dict, list or tuple" in said


def total_of(mask: np.ndarray) -> jax.Array:
    own = np.full(len(jax.local_devices()), mask[0], np.int32)
    return jax.jit(jnp.sum)(jax.make_array_from_process_local_data(ROWS, own))


def check_concatenate() -> None:
    local = {"a": np.full((2 * ME, 3), ME, np.int16), "b": np.arange(2 * ME, dtype=np.float32)}
    rows = data.concatenate_rows(local)
    assert rows.counts == tuple(2 * p for p in range(COUNT))
    assert rows.length == sum(rows.counts)
    values, mask = lockstep.gather((rows.data, rows.mask), to=None)
    assert values["a"][mask].tolist() == [[p] * 3 for p in range(COUNT) for _ in range(2 * p)]
    assert not values["a"][~mask].any()
    doubled = jax.jit(lambda x: 2 * x, out_shardings=rows.data["b"].sharding)(rows.data["b"])
    np.testing.assert_array_equal(rows.local(doubled), 2 * local["b"])
    np.testing.assert_array_equal(rows.local()["a"], local["a"])
    if COUNT > 1:
        said = raised(lambda: data.concatenate_rows(np.zeros((1, 2 + ME))))
        assert "the rows of process" in said
        assert "float64[2]" in said
        said = raised(lambda: data.concatenate_rows(np.zeros(()) if ME else np.zeros(1)))
        assert "expected arrays with one number of rows" in said
        said = raised(lambda: data.concatenate_rows(np.zeros(1), WHOLE))
        assert "hold the same rows" in said


def check_prefetch() -> None:
    """Batches are read while the program computes, by a thread that starts no collective."""
    readers: collections.Counter[str] = collections.Counter()

    class Source:
        def __len__(self) -> int:
            return 4 * SIZE

        def __getitem__(self, i: int) -> dict[str, Any]:
            readers[threading.current_thread().name] += 1
            return {"id": np.int32(i), "x": np.zeros(2, np.float32)}

    batches = data.batches(Source(), SIZE, ROWS)
    first = next(batches)
    deadline = time.monotonic() + 30
    while sum(readers.values()) < 2 * LOCAL and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sum(readers.values()) >= 2 * LOCAL  # the next batch is read, and was not asked for
    assert threading.main_thread().name not in readers
    total(first).block_until_ready()
    assert seen(batches) == expected(4 * SIZE, SIZE)


def check_state() -> None:
    rows = table(5 * SIZE + 1)
    batches = data.batches(rows, SIZE, ROWS)
    seen(next(batches) for _ in range(2))
    state = json.loads(json.dumps(batches.get_state()))
    assert seen(batches) == expected(5 * SIZE + 1, 2 * SIZE)
    other = data.batches(rows, 2 * SIZE, ROWS)
    other.set_state(state)
    assert seen(other) == expected(5 * SIZE + 1, 2 * SIZE, 2 * SIZE)
    said = raised(lambda: data.batches(table(SIZE), SIZE, ROWS).set_state(state))
    assert "Rows would be lost or come twice" in said

    # Streams, with fewer and more batches than others: a generator, and a Grain dataset.
    mine = 3 * LOCAL + 1 + LOCAL * ME

    def of_grain() -> Any:
        ids = grain.MapDataset.range(mine)
        row = ids.map(lambda i: {"id": np.int32(100 * ME + i), "x": np.zeros(2, np.float32)})
        return row.to_iter_dataset()

    for make in (lambda: local_rows(mine), of_grain):
        whole = seen(data.batches(make(), SIZE, ROWS))
        for done in (0, 2, 4):
            batches = data.batches(make(), SIZE, ROWS)
            assert seen(next(batches) for _ in range(done)) == whole[:done]
            state = json.loads(json.dumps(batches.get_state()))
            batches.close()
            resumed = data.batches(make(), SIZE, ROWS)
            resumed.set_state(state)
            assert seen(resumed) == whole[done:]
    said = raised(lambda: data.batches(rows, SIZE, ROWS).set_state(state))
    assert "of kind 'stream'" in said
    state["processes"] += 1
    said = raised(lambda: data.batches(local_rows(1), SIZE, ROWS).set_state(state))
    assert f"of {COUNT + 1}, and this is process {ME} of {COUNT}" in said
