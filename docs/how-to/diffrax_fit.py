import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("curves",), axis_types=(AxisType.Auto,))
split, replicated = NamedSharding(mesh, P("curves")), NamedSharding(mesh, P())
optimizer = optax.adam(1e-2)


class Field(eqx.Module):
    layers: eqx.nn.MLP

    def __call__(self, t, state, args):
        return self.layers(state)


def pendulum(t, state, args):
    angle, speed = state
    return jnp.stack([speed, -2.0 * jnp.sin(angle) - 0.2 * speed])


def curve(field, start):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        t0=0.0,
        t1=2.0,
        dt0=0.1,
        y0=start,
        saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 2.0, 10)),
        stepsize_controller=diffrax.PIDController(1e-4, 1e-4),
    ).ys


curves = jax.vmap(curve, in_axes=(None, 0))


def loss_of(field, starts, wanted):
    return jnp.mean((curves(field, starts) - wanted) ** 2)


@eqx.filter_jit
def create():  # every process computes the same from the same seed, and nothing is sent
    field = Field(eqx.nn.MLP(2, 2, 32, 2, jnp.tanh, key=jax.random.key(0)))
    state = field, optimizer.init(eqx.filter(field, eqx.is_inexact_array))
    return eqx.filter_shard(state, replicated)


@eqx.filter_jit
def step(state, starts, wanted):
    field, momenta = state
    loss, gradients = eqx.filter_value_and_grad(loss_of)(field, starts, wanted)
    updates, momenta = optimizer.update(gradients, momenta)
    return (eqx.apply_updates(field, updates), momenta), loss


own = np.random.default_rng(0).uniform(-1, 1, (64, 2)).astype(np.float32)
own = own.reshape(jax.process_count(), -1, 2)[jax.process_index()]
starts = jax.make_array_from_process_local_data(split, own)
wanted = eqx.filter_jit(curves)(pendulum, starts)
state = create()
for number in range(101):
    state, loss = step(state, starts, wanted)
    loss = float(loss)  # on every process
    if number % 50 == 0 and jax.process_index() == 0:
        print(f"step {number}: loss {loss:.6f}", flush=True)
