import os

import ray
import ray.train
from ray.train.v2.jax import JaxConfig, JaxTrainer

ENVIRON = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "2",
    "LOCKSTEP_COLLECTIVE_TIMEOUT": "60",
}
if "LOCKSTEP_KEY_FILE" in os.environ:
    ENVIRON["LOCKSTEP_KEY_FILE"] = os.environ["LOCKSTEP_KEY_FILE"]


def import_lockstep():
    import lockstep  # before jax, which Ray imports before it calls train()


def train(config):
    import jax
    import numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(AxisType.Auto,))
    own = np.random.default_rng(jax.process_index()).normal(size=(512, 8))
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("rows")), own)
    y = x @ np.arange(8.0)

    @jax.jit
    def step(w, x, y):
        return w - config["rate"] * jax.grad(lambda w: ((x @ w - y) ** 2).mean())(w)

    w = np.zeros(8)
    for _ in range(100):
        w = step(w, x, y)
    print(f"{jax.process_count()} processes, {jax.device_count()} devices: w[7] = {w[7]:.2f}")
    ray.train.report({"last": float(w[-1])})


ray.init(runtime_env={"worker_process_setup_hook": import_lockstep, "env_vars": ENVIRON})
JaxTrainer(
    train,
    train_loop_config={"rate": 0.1},
    jax_config=JaxConfig(use_gpu=True),
    scaling_config=ray.train.ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
).fit()
