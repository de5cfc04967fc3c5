import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("rows",))
rows, everywhere = NamedSharding(mesh, P("rows")), NamedSharding(mesh, P())


def init(seed):
    random = np.random.default_rng(seed)
    own = {"w": random.normal(size=(8, 3)), "b": np.zeros(3)}  # of this process
    return {k: jax.make_array_from_process_local_data(everywhere, x) for k, x in own.items()}


@jax.jit
def step(params, x):
    return jax.tree.map(lambda p: p - 0.01 * jnp.tanh(x @ params["w"]).mean(), params)


params = init(seed=jax.process_index())  # the mistake
ones = np.ones((4 * jax.local_device_count(), 8))
x = jax.make_array_from_process_local_data(rows, ones)
params = step(params, x)
print(float(params["b"][0]))
