"""A program on one device of each process, while one on several devices is in flight.

JAX orders programs of the one kind, and of the other, but not the two kinds: on process 0, where
the first program takes long, the second one's collective comes first. On the other it does not.
Prints what came out, or what was raised, as JSON.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()
ME = jax.process_index()
DEVICES = np.array(sorted(jax.devices(), key=lambda device: device.id)).reshape(2, 2)
ALL = Mesh(DEVICES, ("process", "local"))
PAIR = Mesh(DEVICES[:, 0], ("process",))


def full(mesh: Mesh, shape: tuple[int, ...], value: float, dtype: str = "float32") -> jax.Array:
    sharding = NamedSharding(mesh, P(*mesh.axis_names))
    return jax.make_array_from_callback(shape, sharding, lambda i: np.full(shape, value, dtype)[i])


@jax.jit
@jax.shard_map(mesh=ALL, in_specs=P("process", "local"), out_specs=P("process", "local"))
def after_work(x):
    rounds = jnp.where(lax.axis_index("process") == 0, 400, 1)
    start = jnp.eye(200) * x[0, 0]
    worked = lax.fori_loop(0, rounds, lambda _, y: jnp.tanh(y @ y), start)
    return lax.psum(x + 0 * worked[0, 0], "process") + 0 * x


@jax.jit
@jax.shard_map(mesh=PAIR, in_specs=P("process"), out_specs=P("process"))
def at_once(x):
    return lax.psum(x, "process") + 0 * x


def main() -> None:
    one, ten = full(ALL, (2, 2), 1), full(PAIR, (2,), 10)
    try:
        for _ in range(10):
            both = after_work(one), at_once(ten)
            numbers = [[float(s.data.ravel()[0]) for s in a.addressable_shards] for a in both]
            print(json.dumps(numbers), flush=True)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        print(json.dumps(str(error)), flush=True)


if __name__ == "__main__":
    main()
