"""Process argv[1] dispatches collectives, drops their result and ends.

The other one comes "later" (argv[2]), or the one that ends computes "longer" than it first.
"""

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


def steps(values, times):
    block = jnp.full((500, 500), values.mean() * 1e-3)
    block = jax.lax.fori_loop(0, times, lambda _, b: jnp.tanh(b @ b), block)
    values = values + block.mean()
    for _ in range(5):  # with something to compute between one collective and the next
        values = jax.lax.psum(values, "x") * 0.5 + jnp.sort(values @ jnp.ones((64, 64)))
    return values


step = jax.jit(
    jax.shard_map(steps, mesh=mesh, in_specs=(rows, None), out_specs=rows, check_vma=False)
)
ones = np.ones((jax.device_count(), 64), np.float32)
mine = jax.make_array_from_callback(
    ones.shape, NamedSharding(mesh, rows), lambda index: ones[index]
)
later = sys.argv[2] == "later"
step(mine, np.int32(1)).block_until_ready()
if drops:
    start = time.monotonic()
    step(mine, np.int32(1 if later else 500))
    print("dropped", time.monotonic() - start, flush=True)
else:
    time.sleep(2 if later else 0)
    step(mine, np.int32(1)).block_until_ready()
    print("has it", flush=True)
