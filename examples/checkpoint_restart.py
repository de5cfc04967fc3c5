"""Training that goes on after a failure: checkpoints with Orbax, and `lockstep run --max-restarts`.

    pip install orbax-checkpoint
    lockstep run -n 2 -d 2 --max-restarts 3 examples/checkpoint_restart.py --folder /tmp/checkpoints

Kill one of the processes (`kill -9 PID`; each prints its own), or let process 1 do it itself with
`--kill-at STEP`: the job starts again and goes on from the last checkpoint. The numbers it ends
with are those of an undisturbed run, to the last bit: all that a step needs is in the checkpoint or
follows from the step's number.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep

FEATURES = 64
BATCH = 512
SAVE_EVERY = 5
State = dict[str, jax.Array]


def batch(step: int, mesh: Mesh) -> tuple[jax.Array, jax.Array]:
    """The rows of a step, split over all devices. They depend on nothing but its number."""
    rng = np.random.default_rng(step)
    x = rng.normal(size=(BATCH, FEATURES)).astype(np.float32)
    y = x @ np.linspace(-1, 1, FEATURES, dtype=np.float32) + rng.normal(size=BATCH)
    rows = NamedSharding(mesh, P("rows"))
    return jax.device_put(x, rows), jax.device_put(y.astype(np.float32), rows)


@functools.partial(jax.jit, donate_argnums=0)
def train(state: State, x: jax.Array, y: jax.Array) -> tuple[State, jax.Array]:
    """One step of gradient descent with momentum; XLA adds up the gradients of all devices."""

    def loss_of(w: jax.Array) -> jax.Array:
        return jnp.mean((x @ w - y) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(state["w"])
    velocity = 0.9 * state["velocity"] - 0.01 * gradient
    return {"w": state["w"] + velocity, "velocity": velocity}, loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="where the checkpoints lie")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="process 1 kills itself once")
    options = parser.parse_args()

    jax.distributed.initialize()
    print(f"process {jax.process_index()} has pid {os.getpid()}", flush=True)
    mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = NamedSharding(mesh, P())
    zeros = np.zeros(FEATURES, np.float32)
    state = {name: jax.device_put(zeros, everywhere) for name in ("w", "velocity")}

    # Saving ends before the next step begins. An asynchronous save would be faster, and a process
    # that is killed meanwhile would leave no checkpoint: Orbax only counts those that are whole.
    settings = ocp.CheckpointManagerOptions(
        max_to_keep=2, save_interval_steps=SAVE_EVERY, enable_async_checkpointing=False
    )
    with ocp.CheckpointManager(options.folder.resolve(), options=settings) as manager:
        first = 0
        if (latest := manager.latest_step()) is not None:
            like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
            state = manager.restore(latest, args=ocp.args.StandardRestore(like))
            first = latest + 1
            print(f"going on from the checkpoint of step {latest}", flush=True)
            lockstep.continues_from(latest)  # the account of the restarts has it
        loss = None
        for step in range(first, options.steps):
            if step == options.kill_at and first == 0 and jax.process_index() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            state, loss = train(state, *batch(step, mesh))
            print(f"step {step}: loss {float(loss):.6f}", flush=True)
            manager.save(step, args=ocp.args.StandardSave(state))
    digest = hashlib.sha256(np.asarray(state["w"]).tobytes()).hexdigest()
    print(f"weights: {digest}")


if __name__ == "__main__":
    main()
