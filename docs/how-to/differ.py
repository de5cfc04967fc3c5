import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

jax.distributed.initialize()
rows = NamedSharding(jax.make_mesh((jax.device_count(),), ("rows",)), P("rows"))
dtype = np.float32 if jax.process_index() == 0 else np.int32  # the mistake
x = jax.make_array_from_process_local_data(rows, np.ones(jax.local_device_count(), dtype))
print(float(jax.jit(jnp.sum)(x)))
