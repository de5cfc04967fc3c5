import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import lockstep

jax.distributed.initialize()
mesh = jax.make_mesh((2, 4), ("data", "model"))
x = jax.device_put(np.zeros((8, 3, 16), np.float32), NamedSharding(mesh, P("data", None, "model")))
if jax.process_index() == 0:
    lockstep.show_sharding(x)
