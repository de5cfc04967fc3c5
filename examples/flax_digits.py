"""Flax, Optax and Orbax on several processes: a classifier of the digits that survives a failure.

    pip install flax optax orbax-checkpoint scikit-learn 'lockstep-jax[data]'
    lockstep run -n 2 -d 2 --max-restarts 3 examples/flax_digits.py --folder /tmp/flax-digits

The model is a Flax NNX module, the optimizer is Optax's Adam. Parameters are replicated, and the
batches of `lockstep.data` are split over all devices, so XLA adds up the gradients of all
processes. Orbax saves model, optimizer and the place in the data. With `--kill-at STEP` process 1
kills itself once before that step, to show a restart.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
from pathlib import Path

import grain
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

from lockstep import data

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


def loss_of(model: Classifier, batch: data.Batch) -> jax.Array:
    """The mean over the rows that are no padding."""
    images, labels = batch.rows
    each = optax.softmax_cross_entropy_with_integer_labels(model(images), labels)
    return (each * batch.mask).sum() / batch.mask.sum()


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def train_step(
    graph: nnx.GraphDef, state: nnx.State, batch: data.Batch
) -> tuple[nnx.State, jax.Array]:
    model, optimizer = nnx.merge(graph, state)
    loss, gradients = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, gradients)
    return nnx.state((model, optimizer)), loss


@functools.partial(jax.jit, static_argnums=0)
def count_right(graph: nnx.GraphDef, state: nnx.State, batch: data.Batch) -> jax.Array:
    model, _ = nnx.merge(graph, state)
    images, labels = batch.rows
    return ((model(images).argmax(axis=1) == labels) & batch.mask).sum()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="where the checkpoints lie")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="process 1 kills itself once")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    jax.distributed.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    split, replicated = NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())

    pixels, digits = load_digits(return_X_y=True)
    images, labels = (pixels / 16).astype(np.float32), digits.astype(np.int32)
    rows = grain.MapDataset.source(list(zip(images, labels, strict=True))).shuffle(seed=0)
    # Of each batch a process reads the rows of its own devices.
    training = rows[HELD_OUT:].shuffle(seed=1).repeat(options.epochs)
    batches = data.batches(training, BATCH, split)

    graph, _ = nnx.split(nnx.eval_shape(create))
    state = jax.jit(lambda: nnx.state(create()), out_shardings=replicated)()

    settings = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    with ocp.CheckpointManager(options.folder.resolve(), options=settings) as manager:
        first = 0
        if (latest := manager.latest_step()) is not None:
            like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
            parts = {
                "state": ocp.args.StandardRestore(like),
                "data": data.CheckpointRestore(batches),
            }
            state = manager.restore(latest, args=ocp.args.Composite(**parts))["state"]
            first = latest + 1
            print(f"going on from the checkpoint of step {latest}", flush=True)
        for step, batch in enumerate(batches, first):
            if step == options.kill_at and not first and jax.process_index() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            state, loss = train_step(graph, state, batch)
            loss = float(loss)  # on every process: reading it raises if another process has failed
            if (step + 1) % SAVE_EVERY == 0:
                parts = {
                    "state": ocp.args.StandardSave(state),
                    "data": data.CheckpointSave(batches),
                }
                manager.save(step, args=ocp.args.Composite(**parts))
                if jax.process_index() == 0:
                    print(f"step {step}: loss {loss:.4f}, saved", flush=True)

    right = sum(
        int(count_right(graph, state, b)) for b in data.batches(rows[:HELD_OUT], BATCH, split)
    )
    accuracy = right / HELD_OUT
    print(f"held-out accuracy {accuracy:.3f} by process {jax.process_index()}")
    assert accuracy > 0.9 or options.epochs < 20


if __name__ == "__main__":
    main()
