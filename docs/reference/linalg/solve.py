import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import lockstep.linalg as la

jax.config.update("jax_enable_x64", True)
jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(AxisType.Auto,))
by_rows = NamedSharding(mesh, P("rows", None))
n = 1000


def kernel():
    place = jnp.arange(n) / 100
    return jnp.exp(-jnp.abs(place[:, None] - place)) + 0.1 * jnp.eye(n)


a = jax.jit(kernel, out_shardings=by_rows)()  # each device makes its own rows
b = jax.jit(lambda: jnp.ones((n, 1)), out_shardings=by_rows)()
x, logdet = la.potrs(a, b, return_logdet=True)
residual = float(jnp.abs(a @ x - b).max())  # a sum over all devices: every process calls it


@jax.jit
def gradient(a, b):  # of the sum of the squares of x; in jit the sharding of a has to be said
    def loss(b):
        return (la.potrs(a, b, mesh=mesh, in_specs=P("rows", None)) ** 2).sum()

    return jax.grad(loss)(b)


error = float(jnp.abs(gradient(a, b) - 2 * la.potrs(a, x)).max())
if jax.process_index() == 0:
    print(f"x is {x.sharding.spec}, {x.addressable_shards[0].data.shape} on a device")
    print(f"residual below 1e-12: {residual < 1e-12}, log-determinant {float(logdet):.3f}")
    print(f"error of the gradient below 1e-9: {error < 1e-9}")
