"""Data-parallel training on the handwritten digits of scikit-learn, on any number of processes.

    lockstep run -n 2 -d 4 examples/train_digits.py

A stock JAX program. Every process holds its own part of the training images and feeds rows of it to
its own devices; the parameters are replicated. The compiler sees that the loss is a mean over a
sharded batch and inserts the all-reduce of the gradients.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

HIDDEN = 128
CLASSES = 10
HELD_OUT = 360
LEARNING_RATE = 0.1
MOMENTUM = 0.9

Params = dict[str, jax.Array]


def init(key: jax.Array) -> Params:
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (64, HIDDEN)) * np.sqrt(2 / 64),
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(second, (HIDDEN, CLASSES)) * np.sqrt(2 / HIDDEN),
        "b2": jnp.zeros(CLASSES),
    }


def logits(params: Params, images: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(images @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def loss_of(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(
        jax.nn.log_softmax(logits(params, images)), labels[:, None], axis=1
    )
    return -chosen.mean()


@jax.jit
def train_step(
    params: Params, velocity: Params, images: jax.Array, labels: jax.Array
) -> tuple[Params, Params, jax.Array]:
    loss, gradient = jax.value_and_grad(loss_of)(params, images, labels)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, gradient)
    params = jax.tree.map(lambda p, v: p - LEARNING_RATE * v, params, velocity)
    return params, velocity, loss


@jax.jit
def count_right(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    return (logits(params, images).argmax(axis=1) == labels).sum()


def load() -> tuple[np.ndarray, np.ndarray]:
    """The digits in an order that is the same on every process: [1797, 64] in 0..1, [1797]."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order] / 16).astype(np.float32), labels[order].astype(np.int32)


def this_process(rows: np.ndarray) -> np.ndarray:
    """This process's part: parts are equal, and rows that do not divide are left out."""
    each = len(rows) // jax.process_count()
    return rows[jax.process_index() * each :][:each]


def held_out_part(rows: np.ndarray, fill: int) -> np.ndarray:
    """Pads to a multiple of the devices, for every row must be counted, and takes our part."""
    missing = -len(rows) % jax.device_count()
    padding = np.full((missing, *rows.shape[1:]), fill, rows.dtype)
    return this_process(np.concatenate([rows, padding]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on the digits of scikit-learn.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="images per device and step")
    parser.add_argument("--json", type=pathlib.Path, help="write the numbers to this file")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    jax.distributed.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    sharded, replicated = NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())

    def globally(rows: np.ndarray) -> jax.Array:
        return jax.make_array_from_process_local_data(sharded, rows)

    images, labels = load()
    mine = this_process(images[HELD_OUT:]), this_process(labels[HELD_OUT:])
    print(
        f"process {jax.process_index()} of {jax.process_count()}: {len(mine[0])} training images,"
        f" {jax.local_device_count()} of {jax.device_count()} devices"
    )

    params = jax.jit(init, out_shardings=replicated)(jax.random.key(0))
    velocity = jax.jit(lambda p: jax.tree.map(jnp.zeros_like, p), out_shardings=replicated)(params)

    random = np.random.default_rng(jax.process_index())
    losses: list[float] = []
    seconds: list[float] = []
    for step in range(options.steps):
        rows = random.choice(len(mine[0]), options.batch * jax.local_device_count())
        batch = globally(mine[0][rows]), globally(mine[1][rows])
        start = time.perf_counter()
        params, velocity, loss = train_step(params, velocity, *batch)
        losses.append(float(loss))
        seconds.append(time.perf_counter() - start)
        if jax.process_index() == 0 and (step % 50 == 0 or step == options.steps - 1):
            print(f"step {step:4}  loss {losses[-1]:.4f}")

    held_out = (
        globally(held_out_part(images[:HELD_OUT], 0)),
        globally(held_out_part(labels[:HELD_OUT], -1)),  # no class is -1: padding is never right
    )
    accuracy = int(count_right(params, *held_out)) / HELD_OUT
    # The first steps compile and open connections.
    median = statistics.median(seconds[len(seconds) // 10 :])
    if jax.process_index() == 0:
        print(f"held-out accuracy {accuracy:.3f}, median time per step {1e3 * median:.2f} ms")
        if options.json:
            numbers = {"losses": losses, "accuracy": accuracy, "median_step_seconds": median}
            options.json.write_text(json.dumps(numbers))


if __name__ == "__main__":
    main()
