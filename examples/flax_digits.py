"""Flax, Optax and Orbax on several processes: a classifier of the digits that survives a failure.

    pip install flax optax orbax-checkpoint scikit-learn
    lockstep run -n 2 -d 2 --max-restarts 3 examples/flax_digits.py --folder /tmp/flax-digits

The model is a Flax NNX module, the optimizer is Optax's Adam, and Orbax saves both. Parameters are
replicated and the batch is split over all devices, so XLA adds up the gradients of all processes.
With `--kill-at STEP` process 1 kills itself once before that step, to show a restart.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
from pathlib import Path

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

BATCH = 256
HELD_OUT = 360
SAVE_EVERY = 20


class Classifier(nnx.Module):
    """Two dense layers: 64 pixels to 10 classes."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, 128, rngs=rngs)
        self.out = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.out(nnx.relu(self.hidden(images)))


def create() -> tuple[Classifier, nnx.Optimizer]:
    model = Classifier(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def loss_of(model: Classifier, images: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def train_step(
    graph: nnx.GraphDef, state: nnx.State, images: jax.Array, labels: jax.Array
) -> tuple[nnx.State, jax.Array]:
    model, optimizer = nnx.merge(graph, state)
    loss, gradients = nnx.value_and_grad(loss_of)(model, images, labels)
    optimizer.update(model, gradients)
    return nnx.state((model, optimizer)), loss


@functools.partial(jax.jit, static_argnums=0)
def count_right(
    graph: nnx.GraphDef, state: nnx.State, images: jax.Array, labels: jax.Array
) -> jax.Array:
    model, _ = nnx.merge(graph, state)
    return (model(images).argmax(axis=1) == labels).sum()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="where the checkpoints lie")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="process 1 kills itself once")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    jax.distributed.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    split, replicated = NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())

    def globally(rows: np.ndarray) -> jax.Array:
        """Of rows that all processes know, each process reads those of its own devices."""
        return jax.make_array_from_callback(rows.shape, split, lambda part: rows[part])

    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    images = (pixels[order] / 16).astype(np.float32)
    labels = digits[order].astype(np.int32)

    graph, _ = nnx.split(nnx.eval_shape(create))
    state = jax.jit(lambda: nnx.state(create()), out_shardings=replicated)()

    settings = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    with ocp.CheckpointManager(options.folder.resolve(), options=settings) as manager:
        first = 0
        if (latest := manager.latest_step()) is not None:
            like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
            state = manager.restore(latest, args=ocp.args.StandardRestore(like))
            first = latest + 1
            print(f"going on from the checkpoint of step {latest}", flush=True)
        for step in range(first, options.steps):
            if step == options.kill_at and not first and jax.process_index() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            # The rows of a step depend on nothing but its number, so a restart repeats no other.
            rows = HELD_OUT + np.random.default_rng(step).choice(len(labels) - HELD_OUT, BATCH)
            state, loss = train_step(graph, state, globally(images[rows]), globally(labels[rows]))
            loss = float(loss)  # on every process: reading it raises if another process has failed
            if (step + 1) % SAVE_EVERY == 0:
                manager.save(step, args=ocp.args.StandardSave(state))
                if jax.process_index() == 0:
                    print(f"step {step}: loss {loss:.4f}, saved", flush=True)

    right = count_right(graph, state, globally(images[:HELD_OUT]), globally(labels[:HELD_OUT]))
    accuracy = int(right) / HELD_OUT
    print(f"held-out accuracy {accuracy:.3f} by process {jax.process_index()}")
    assert accuracy > 0.9 or options.steps < 100


if __name__ == "__main__":
    main()
