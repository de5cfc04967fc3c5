"""The five collectives over all processes and over the rows of a grid, against known results."""

from __future__ import annotations

import functools
import importlib.util
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

jax.distributed.initialize()
n = jax.device_count()
mesh = Mesh(np.array(jax.devices()), ("x",))
rows = PartitionSpec("x")


def run(body, x: NDArray) -> NDArray:
    """This process's part of ``body`` over the rows of ``x``, one row for each device."""
    sharding = NamedSharding(mesh, rows)
    spread = jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    mapped = jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    return np.asarray(jax.jit(mapped)(spread).addressable_data(0))


def check(what: str, got: NDArray, wanted: NDArray) -> None:
    np.testing.assert_array_equal(got, wanted, err_msg=what)
    print(f"ok {what}", flush=True)


def five(dtype: str) -> None:
    me = jax.process_index()
    x = np.arange(n * n * 6).reshape(n, n * 6).astype(dtype)
    blocks = x.reshape(n, n, 6)
    psum = functools.partial(jax.lax.psum, axis_name="x")
    check(f"psum {dtype}", run(psum, x)[0], x.sum(0, dtype=dtype))
    gather = functools.partial(jax.lax.all_gather, axis_name="x", tiled=True)
    check(f"all_gather {dtype}", run(gather, x), x)
    scatter = functools.partial(
        jax.lax.psum_scatter, axis_name="x", scatter_dimension=1, tiled=True
    )
    check(f"psum_scatter {dtype}", run(scatter, x)[0], blocks.sum(0, dtype=dtype)[me])
    exchange = functools.partial(
        jax.lax.all_to_all, axis_name="x", split_axis=1, concat_axis=1, tiled=True
    )
    check(f"all_to_all {dtype}", run(exchange, x)[0], blocks[:, me].reshape(-1))
    shift = functools.partial(
        jax.lax.ppermute, axis_name="x", perm=[(i, i + 1) for i in range(n - 1)]
    )
    check(f"ppermute {dtype}", run(shift, x)[0], x[me - 1] if me else np.zeros_like(x[0]))


# All types, or those that are given.
TYPES = sys.argv[1:] or ["float32", "int32", "uint8", "complex64", "bfloat16"]
if not sys.argv[1:] and importlib.util.find_spec("jax.extend.xla"):  # since jax 0.10.2
    TYPES.append("float16")
for dtype in TYPES:
    five(dtype)

if n % 2 == 0:
    pairs = [[i, i + 1] for i in range(0, n, 2)]
    paired = functools.partial(jax.lax.psum, axis_name="x", axis_index_groups=pairs)
    x = np.arange(n * 5.0, dtype="float32").reshape(n, 5)
    first = jax.process_index() // 2 * 2
    check("psum of pairs", run(paired, x)[0], x[first] + x[first + 1])
print("done", flush=True)
