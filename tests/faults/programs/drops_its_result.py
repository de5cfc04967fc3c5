"""Process argv[1] dispatches collectives, drops their result and ends; the other comes later."""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

jax.distributed.initialize()
drops = jax.process_index() == int(sys.argv[1])
mesh = jax.make_mesh((jax.device_count(),), ("x",))
rows = PartitionSpec("x")


def steps(values):
    for _ in range(5):  # with something to compute between one collective and the next
        values = jax.lax.psum(values, "x") * 0.5 + jnp.sort(values @ jnp.ones((64, 64)))
    return values


step = jax.jit(jax.shard_map(steps, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
ones = np.ones((jax.device_count(), 64), np.float32)
mine = jax.make_array_from_callback(
    ones.shape, NamedSharding(mesh, rows), lambda index: ones[index]
)
step(mine).block_until_ready()
if drops:
    step(mine)
    print("dropped", flush=True)
else:
    time.sleep(2)
    step(mine).block_until_ready()
    print("has it", flush=True)
