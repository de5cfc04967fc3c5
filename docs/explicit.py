import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
auto = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(AxisType.Auto,))
explicit = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(AxisType.Explicit,))


def product(mesh, **more):
    columns = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P(None, "x")))
    rows = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("x", None)))
    with jax.set_mesh(mesh):
        return jax.jit(lambda a, b: jnp.dot(a, b, **more))(columns, rows)


print("automatic:", product(auto).sharding.is_fully_replicated)
print("out_sharding:", product(explicit, out_sharding=P("x")).sharding.spec)
print(product(explicit))  # raises
