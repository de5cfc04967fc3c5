"""Training steps on three processes, of which process 1 has more work."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
here = np.ones((1, 64, 256), np.float32)
batch = jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), here)
weights = jnp.ones((256, 256)) / 256


@jax.jit
def train_step(weights, batch):
    def loss_of(weights):
        return jnp.mean((batch @ weights - batch) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - gradient, loss


for step in range(400):
    time.sleep(0.06 if jax.process_index() == 1 else 0.02)  # reads and prepares its batch
    weights, loss = train_step(weights, batch)
    loss = float(loss)
    if step % 100 == 0 and jax.process_index() == 0:
        print(f"step {step}: loss {loss:.4f}", flush=True)
