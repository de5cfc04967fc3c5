import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.distributed.initialize()  # 1.
mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, P("rows"))
TRUE = np.arange(8, dtype=np.float32)


def read(step):
    """The rows of this process: here from a seed, in real life from its own files."""
    own = 64 // jax.process_count()
    random = np.random.default_rng((step, jax.process_index()))
    x = random.normal(size=(own, 8)).astype(np.float32)
    return x, x @ TRUE


@jax.jit
def step(w, x, y):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * gradient, loss


w = np.zeros(8, np.float32)
for i in range(60):
    x, y = (jax.make_array_from_process_local_data(rows, part) for part in read(i))  # 2.
    w, loss = step(w, x, y)
    if i % 20 == 19:
        loss = float(loss)
        if jax.process_index() == 0:  # 3.
            print(f"step {i}: loss {loss:.5f}")
