"""Data-parallel training that ends at the same loss on every process: ``training.py STEPS``.

Creates ``$TMPDIR/training_N`` when process N is in its loop, after ``pid_N`` with its pid. A
survivor of a fault ends with status 20 + its index, after a line of JSON with the error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()
ME = jax.process_index()
MESH = Mesh(np.array(jax.devices()), ("data",))
LOOK_EVERY = 10
ROWS = 8 * len(jax.devices())


def spread(width: int) -> jax.Array:
    whole = np.linspace(0, 1, ROWS * width, dtype=np.float32).reshape(ROWS, width)
    return jax.make_array_from_callback(
        (ROWS, width), NamedSharding(MESH, P("data")), lambda index: whole[index]
    )


@jax.jit
def step(weights, x, y):
    def loss(weights):
        return jnp.mean((jnp.tanh(x @ weights) - y) ** 2)

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


def main(steps: str) -> None:
    x, y = spread(16), spread(4)
    weights = jax.device_put(jnp.zeros((16, 4)), NamedSharding(MESH, P()))
    value = jnp.inf
    try:
        for number in range(int(steps)):
            weights, value = step(weights, x, y)
            # JAX raises what a step has met where its result is used, and no sooner.
            if number % LOOK_EVERY == 2:
                value.block_until_ready()
            if number == 2:
                beside = Path(os.environ["TMPDIR"])
                (beside / f"pid_{ME}").write_text(str(os.getpid()))
                (beside / f"training_{ME}").touch()
        print(json.dumps({"loss": float(value)}))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        print(json.dumps({"raised": str(error), "saved": float(jnp.ones(10).sum())}))
        sys.exit(20 + ME)


if __name__ == "__main__":
    main(*sys.argv[1:])
