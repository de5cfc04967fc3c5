import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from numpyro.infer.hmc import hmc
from numpyro.infer.util import initialize_model

jax.config.update("jax_enable_x64", True)
jax.distributed.initialize()
ROWS, SLOPES, WARMUP, SAMPLES = 4096, np.array([1.0, -2.0, 0.5, 3.0]), 200, 300


def model(x, y):
    slopes = numpyro.sample("slopes", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ slopes, noise), obs=y)


def measured(rows):  # what a process would read of its files
    x = np.random.default_rng(0).normal(size=(ROWS, SLOPES.size))
    y = x @ SLOPES + np.random.default_rng(1).normal(scale=0.1, size=ROWS)
    return x[rows], y[rows]


mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(AxisType.Auto,))
each = ROWS // jax.process_count()
own = measured(slice(jax.process_index() * each, (jax.process_index() + 1) * each))
split = NamedSharding(mesh, P("rows"))
data = tuple(jax.make_array_from_process_local_data(split, part) for part in own)

start_key, key = jax.random.split(jax.random.key(0))
start, potential_of, constrain_of, _ = initialize_model(
    start_key, model, model_args=data, dynamic_args=True
)
first, kernel = hmc(potential_fn_gen=potential_of, algo="NUTS")
state = first(start, WARMUP, rng_key=key, model_args=data)


@jax.jit
def sample(state, *data):  # arrays that span processes have to be arguments
    def step(state, _):
        state = kernel(state, model_args=data)
        return state, (constrain_of(*data)(state.z), state.diverging)

    return jax.lax.scan(step, state, length=WARMUP + SAMPLES)[1]


draws, diverging = jax.tree.map(lambda a: np.asarray(a)[WARMUP:], sample(state, *data))
if jax.process_index() == 0:
    print("slopes", *(f"{mean:.3f}" for mean in draws["slopes"].mean(axis=0)))
    print(f"noise {draws['noise'].mean():.3f}, divergent {diverging.sum()} of {SAMPLES}")
