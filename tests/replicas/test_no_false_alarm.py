"""Correct programs pass ``--check-replicas 1`` and compute the same bits as without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanes import sample
from support import Result, assert_unsaid, run_lockstep

EXAMPLES = Path(__file__).parents[2] / "examples"
COUNTED = """
import runpy, sys
from lockstep.replicas import check

def counting(self, exchange, run=check.Comparison.run):
    counting.calls += 1
    return run(self, exchange)

counting.calls = 0
check.Comparison.run = counting
"""
EXAMPLE = """
sys.argv = [FILE, "--steps", "25"]
runpy.run_path(FILE, run_name="__main__")
print("compared", counting.calls, flush=True)
"""
FLAX = """
import flax.linen as nn, jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
auto = (AxisType.Auto,) * 2
mesh = jax.make_mesh((2, jax.local_device_count()), ("data", "model"), axis_types=auto)

class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.LayerNorm()(nn.Dense(32)(x)))
        return nn.Dense(4)(nn.Dropout(0.1, deterministic=not train)(x))

net, optimizer = Net(), optax.adamw(1e-2)

def sharding(x):
    return NamedSharding(mesh, P(None, "model") if x.ndim == 2 else P())

def init(key):
    params = net.init(key, jnp.zeros((1, 8)), False)
    return params, optimizer.init(params), jax.random.key(7)

shardings = jax.tree.map(sharding, jax.eval_shape(init, jax.random.key(0)))
params, state, key = jax.jit(init, out_shardings=shardings)(jax.random.key(0))

@jax.jit
def step(params, state, key, x, y):
    key, own = jax.random.split(key)
    def loss(params):
        out = net.apply(params, x, True, rngs={"dropout": own})
        return optax.softmax_cross_entropy_with_integer_labels(out, y).mean()
    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, key, value

rows = NamedSharding(mesh, P("data"))
random = np.random.default_rng(jax.process_index())
for i in range(12):
    x = jax.make_array_from_process_local_data(rows, random.normal(size=(16, 8)).astype("f"))
    y = jax.make_array_from_process_local_data(rows, random.integers(0, 4, 16))
    params, state, key, value = step(params, state, key, x, y)
    print("loss", float(value).hex(), flush=True)
print("compared", counting.calls, flush=True)
"""


def run(program: str, *options: str) -> Result:
    result = run_lockstep(list(options), COUNTED + program, d=2, timeout=200)
    assert_unsaid("--check-replicas: ", result)
    return result


def numbers(result: Result) -> list[list[str]]:
    """What the processes print, without times, the count, and gloo's own lines."""
    return [
        [
            line.partition(", median")[0]
            for line in result.by_process[i]
            if not line.startswith(("compared ", "[Gloo] "))
        ]
        for i in (0, 1)
    ]


def compared(result: Result) -> int:
    [first, second] = [
        int(line.split()[1])
        for i in (0, 1)
        for line in result.by_process[i]
        if line.startswith("compared ")
    ]
    assert first == second
    return first


@pytest.mark.full
@sample("collectives", ["lockstep", "gloo"], 0)
def test_a_flax_step_with_sharded_and_replicated_params(collectives: str) -> None:
    plain = run(FLAX, "--collectives", collectives)
    checked = run(FLAX, "--collectives", collectives, "--check-replicas", "1")
    assert numbers(checked) == numbers(plain)
    assert len(numbers(plain)[0]) == 12
    assert (compared(plain), compared(checked) >= 12) == (0, True)


@pytest.mark.full
@pytest.mark.parametrize("every", [1, 10])
def test_the_digits(every: int) -> None:
    program = EXAMPLE.replace("FILE", repr(str(EXAMPLES / "train_digits.py")))
    plain = run(program)
    checked = run(program, "--check-replicas", str(every))
    assert numbers(checked) == numbers(plain)
    assert compared(checked) >= 25 // every
