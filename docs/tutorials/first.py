import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

jax.distributed.initialize()  # no arguments: Lockstep knows the rank
rank, size = jax.process_index(), jax.process_count()
here, everywhere = jax.local_device_count(), jax.device_count()
print(f"process {rank} of {size}: {here} of {everywhere} devices")

mesh = jax.make_mesh((everywhere,), ("x",))
x = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, P("x")))
mean = jax.jit(jnp.mean)(x)  # the compiler inserts an all-reduce

if rank == 0:
    print("mean:", mean)
