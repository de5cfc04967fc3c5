"""Automatic sharding: say where the inputs lie, and let the compiler place the rest.

    lockstep run -n 2 -d 4 examples/sharding_automatic.py

The function under `jit` holds no collective. The compiler derives the sharding of every value in it
and inserts the communication, here an all-reduce over the mesh axis that is summed away.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


@jax.jit
def scores(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def main() -> None:
    jax.distributed.initialize()
    mesh = jax.make_mesh((2, 4), ("rows", "columns"), axis_types=(AxisType.Auto,) * 2)
    x_host = np.linspace(-1, 1, 8 * 16, dtype=np.float32).reshape(8, 16)
    w_host = np.linspace(1, -1, 16 * 4, dtype=np.float32).reshape(16, 4)

    x = jax.device_put(x_host, NamedSharding(mesh, P("rows", "columns")))
    w = jax.device_put(w_host, NamedSharding(mesh, P("columns", None)))
    y = scores(x, w)

    print(f"x {x.shape}: {x.sharding.spec}, one shard is {x.addressable_shards[0].data.shape}")
    print(f"w {w.shape}: {w.sharding.spec}, one shard is {w.addressable_shards[0].data.shape}")
    print(f"y {y.shape}: {y.sharding.spec}, one shard is {y.addressable_shards[0].data.shape}")

    program = scores.lower(x, w).compile().as_text() or ""
    inserted = sorted(set(re.findall(r"(all-reduce|all-gather|reduce-scatter)\(", program)))
    print(f"inserted by the compiler: {', '.join(inserted)}")
    assert "all-reduce" in inserted

    expected = np.tanh(x_host @ w_host)
    for shard in y.addressable_shards:
        np.testing.assert_allclose(shard.data, expected[shard.index], rtol=1e-5, atol=1e-6)
    print("every local shard equals NumPy's result")


if __name__ == "__main__":
    main()
