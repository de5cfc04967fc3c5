"""Two ways to solve with a matrix that is sharded over processes, with the memory of both.

    lockstep run -n 2 -d 4 examples/host_replicated_solve.py

One way: gather the matrix over the processes, so that each holds all of it, and solve inside each
process over its own devices. It repeats all the work in every process, and moves the whole matrix
once. The other: solve over all devices of all processes, no process holding more than its share.
"""

from __future__ import annotations

import lockstep  # isort: skip  # before jax

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep.linalg

N = 512


def bytes_here(array: jax.Array) -> int:
    """The bytes of the array on this process."""
    return sum(shard.data.nbytes for shard in array.addressable_shards)


def main() -> None:
    jax.distributed.initialize()
    mesh = lockstep.process_mesh(("process", "device"), axis_types=(AxisType.Auto,) * 2)
    split = NamedSharding(mesh, P(("process", "device")))
    host_replicated = NamedSharding(mesh, P("device"))
    rng = np.random.default_rng(0)
    half = rng.standard_normal((N, N)).astype(np.float32)
    matrix = half @ half.T / N + np.eye(N, dtype=np.float32)
    b = jax.device_put(np.ones(N, np.float32), NamedSharding(mesh, P()))
    a = jax.device_put(matrix, split)

    replicate = jax.jit(lambda x: x, out_shardings=host_replicated)
    solutions = {}
    for name in ("host-replicated", "distributed"):
        held, x, seconds = a, b, []
        for _ in range(2):  # the first one compiles
            start = time.perf_counter()
            if name == "distributed":
                x = lockstep.linalg.potrs(a, b)
            else:
                held = replicate(a)
                x = solve_inside(held, b)
            jax.block_until_ready(x)
            seconds.append(time.perf_counter() - start)
        share = bytes_here(held) / matrix.nbytes
        print(f"{name}: {share:.0%} of the matrix on this process")
        if jax.process_index() == 0:
            print(f"{name}: {seconds[1] * 1e3:.1f} ms")
        solutions[name] = np.asarray(x.addressable_data(0))
    np.testing.assert_allclose(*solutions.values(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(matrix @ solutions["distributed"], jnp.ones(N), atol=1e-3)
    print("both ways give the same solution")


def solve_inside(held: jax.Array, b: jax.Array) -> jax.Array:
    """Solves over the devices of this process alone, with the copy that it holds."""
    local = jax.sharding.Mesh(np.array(jax.local_devices()), ("device",))
    shards = sorted(held.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    sharding = NamedSharding(local, P("device"))
    own = jax.make_array_from_single_device_arrays(
        held.shape, sharding, [shard.data for shard in shards]
    )
    rhs = jax.device_put(np.asarray(b.addressable_data(0)), NamedSharding(local, P()))
    return lockstep.linalg.potrs(own, rhs)


if __name__ == "__main__":
    main()
