"""The checks of `lockstep.gather`, `scatter` and `broadcast` for every kind of collectives.

`test_data` runs them on the processes of a job, which they find when they are imported.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep
from lockstep.data import _pieces

ME, COUNT, DEVICES = jax.process_index(), jax.process_count(), jax.device_count()
GRID = jax.make_mesh((DEVICES // 2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
SPECS = [P(), P("a"), P("b"), P(("b", "a")), P(None, "a"), P("b", "a"), P(None, ("a", "b"))]
DTYPES: list[Any] = [np.float32, np.int8, np.bool_, np.complex64, np.float16]
DTYPES += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu]
DTYPES += [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.float4_e2m1fn]


def values(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    found = np.arange(np.prod(shape)).reshape(shape) % 13 - 6
    return (found > 0) if dtype is np.bool_ else found.astype(dtype)


def same(got: Any, want: np.ndarray) -> None:
    assert type(got) is np.ndarray
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert got.tobytes() == want.tobytes()


def raised(call: Any) -> BaseException:
    try:
        call()
    except (lockstep.LockstepError, TypeError, ValueError, RuntimeError) as error:
        return error
    raise AssertionError("no error")


def check_there_and_back() -> None:
    """With pieces smaller than a shard, too, whose last one is shorter."""
    last = COUNT - 1
    for piece in (64 << 20, 200):
        _pieces.PIECE_BYTES = piece
        for spec in SPECS:
            small = piece == 200  # all types once whole and once in pieces
            for dtype in DTYPES if spec == (P("a") if small else P("b", "a")) else DTYPES[:1]:
                want = values(dtype, (2 * DEVICES, 3 * DEVICES))
                x = lockstep.scatter(want if last == ME else None, NamedSharding(GRID, spec), last)
                assert x.sharding == NamedSharding(GRID, spec)
                for shard in x.addressable_shards:
                    same(np.array(shard.data), want[shard.index])
                got = lockstep.gather(x, to=last)
                same(got, want) if last == ME else None
                assert last == ME or got is None
                same(lockstep.gather(x, to=None), want)
    _pieces.PIECE_BYTES = 64 << 20


def check_trees() -> None:
    tree = {"w": np.ones((2, 3), np.float32), "rest": [np.int32(4), (np.zeros(0),), None]}
    x = lockstep.broadcast(tree if ME == 0 else None)
    assert x["rest"][2] is None
    found = lockstep.gather({"x": x, "step": 7}, to=None)
    assert found["step"] == 7
    assert jax.tree.map(np.shape, found["x"]) == jax.tree.map(np.shape, tree)
    assert found["x"]["rest"][0] == 4
    explicit = jax.make_mesh((DEVICES,), ("d",), axis_types=(AxisType.Explicit,))
    y = lockstep.scatter(np.arange(DEVICES), NamedSharding(explicit, P("d")))
    assert lockstep.gather(jax.jit(lambda y: y + 1)(y), to=None)[-1] == DEVICES
    z = jax.pmap(lambda i: i * jnp.ones(3))(np.arange(jax.local_device_count()))
    got = lockstep.gather(z, to=None)
    assert got.shape == (jax.local_device_count(), 3)  # its own: jax.pmap's results are local


def check_empty_arrays_and_numbers() -> None:
    for dtype in (np.float32, np.bool_, ml_dtypes.int4, ml_dtypes.float8_e4m3fn):
        for spec, shape in ((P("a"), (0, 3)), (P(None, "a"), (DEVICES, 0)), (P(), ()), (P(), (0,))):
            want = np.ones(shape, dtype)
            x = lockstep.scatter(want if ME == 0 else None, NamedSharding(GRID, spec))
            same(lockstep.gather(x, to=None), want)
    found = lockstep.gather(lockstep.broadcast([True, 3, 2.5, 1j] if ME == 0 else None), to=None)
    assert [x.item() for x in found] == [True, 3, 2.5, 1j]


def check_random_keys() -> None:
    """Keys arrive as keys, of their kind, and give the numbers that they give elsewhere."""
    for kind in ("threefry2x32", "rbg"):
        keys = jax.random.split(jax.random.key(7, impl=kind), DEVICES)
        spread = NamedSharding(GRID, P(("a", "b")))
        got = lockstep.scatter({"k": keys} if ME == 0 else None, spread)["k"]
        assert (got.shape, got.dtype) == (keys.shape, keys.dtype)
        data = lockstep.gather(jax.random.key_data(got), to=None)
        same(data, np.asarray(jax.random.key_data(keys)))
        one = lockstep.broadcast(keys[0] if ME == 0 else None)
        numbers = jax.jit(lambda key: jax.random.normal(key, (3,)))
        same(lockstep.gather(numbers(one), to=None), np.asarray(numbers(keys[0])))


def check_errors() -> None:
    assert f"there is no process {COUNT}" in str(raised(lambda: lockstep.gather(1, to=COUNT)))
    assert "key_data" in str(raised(lambda: lockstep.gather(jax.random.key(0))))
    said = str(raised(lambda: lockstep.broadcast({"name": "x"} if ME == 0 else None)))
    assert "process 0: ['name'] has dtype <U1" in said
    pairs = np.zeros(2, [("a", np.int32), ("b", np.int32)])
    said = str(raised(lambda: lockstep.broadcast(pairs if ME == 0 else None)))
    assert "which no device holds" in said
    odd = NamedSharding(GRID, P(("a", "b")))
    said = str(raised(lambda: lockstep.scatter(np.ones(DEVICES + 1), odd)))
    assert f"an array of shape ({DEVICES + 1},) cannot be divided by NamedSharding" in said
    if COUNT == 1:
        return
    first = Mesh(np.array(jax.local_devices(process_index=0)), ("d",))
    on_first = NamedSharding(first, P())
    x = jax.make_array_from_callback((2,), on_first, lambda i: np.ones(2), np.float32)
    if ME == 1:
        said = str(raised(lambda: lockstep.gather(x, to=1)))
        assert "process 1 has no device of the array" in said
    got = lockstep.gather(x, to=0)
    assert got.tolist() == [1, 1] if ME == 0 else got is None


def check_errors_of_jax_name_gather() -> None:
    if COUNT == 1:
        return
    x = lockstep.scatter(np.ones((DEVICES, 2)), NamedSharding(GRID, P(("a", "b"))))
    for read in (np.asarray, jax.device_get, lambda x: x.tolist()):
        error = raised(lambda read=read: read(x))
        assert isinstance(error, RuntimeError)
        assert "non-addressable" in str(error)
        [note] = error.__notes__
        assert "lockstep.gather(x) gives the values to process 0" in note


def check_memory() -> None:
    """Beside the result, only pieces: the arrays of NumPy are counted, those of XLA are not."""
    _pieces.PIECE_BYTES = 1 << 20
    shape = (64 * DEVICES, 1 << 12)
    x = jax.jit(lambda: jnp.ones(shape), out_shardings=NamedSharding(GRID, P(("a", "b"))))()
    tracemalloc.start()
    got = lockstep.gather(x)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = x.nbytes if ME == 0 else 0
    assert most < size + (4 << 20), (most, size)
    assert got is None or float(got.sum()) == got.size
