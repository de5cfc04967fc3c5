"""The program that `chaos` disturbs: a training of known numbers, which goes on from checkpoints.

    python training.py FOLDER

Each step's collectives are compared with NumPy, and so is every result of the random programs that
run after each checkpoint. It ends when FOLDER has a file ``end``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine.random_programs import worker
from soak import known

WRONG = 7
"""The status of a process that was given a wrong number."""
LARGE = 1 << 16
EVERY = 5
"""Steps between two checkpoints."""
RANDOM = argparse.Namespace(in_flight=2, times=2, repeat=1, keep=None)
"""How the random programs run: see `worker`."""


def make_step(mesh: Mesh):
    count = mesh.devices.size
    around = [(i, (i + 1) % count) for i in range(count)]

    def step(state, rows, large, end):
        own = rows * state
        summed = jax.lax.psum(own.sum(0), "x")
        turned = jax.lax.psum(jax.lax.ppermute(own, "x", around).sum(0), "x")
        columns = jax.lax.all_to_all(own, "x", split_axis=1, concat_axis=0, tiled=True)
        gathered = jax.lax.all_gather(columns.sum(0), "x", tiled=True)
        return summed, turned, gathered, jax.lax.psum(large, "x"), jax.lax.psum(end, "x")

    specs = (P(), P("x"), P(), P("x"))
    mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    return jax.jit(mapped)


def check(step: int, what: str, found: np.ndarray, right: np.ndarray) -> None:
    if not np.array_equal(found, right):
        print(f"WRONG {what} in step {step}: {found.tolist()} for {right.tolist()}", flush=True)
        os._exit(WRONG)


def check_random(step: int, devices: list[Any]) -> None:
    """Two programs that no step before has had."""
    tally = worker.check(range(step, step + RANDOM.in_flight), devices, RANDOM)
    if tally.wrong:
        print(f"WRONG random programs after step {step}", flush=True)
        os._exit(WRONG)


def main() -> None:
    folder = Path(sys.argv[1])
    attempt = os.environ["LOCKSTEP_ATTEMPT"]
    number = os.environ["LOCKSTEP_PROCESS_ID"]
    (folder / "at" / f"{attempt}-{number}").write_text(f"{os.uname().nodename} {os.getpid()}")
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize()
    me, count = jax.process_index(), jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    saved = folder / "saved" / "state.npy"
    first, *begin = np.load(saved) if saved.exists() else (0, *known.after(0))
    state = np.array(begin, np.float32)
    print("goes on from step", int(first), flush=True)
    check(int(first), "checkpoint", state, np.array(known.after(int(first)), np.float32))
    share = NamedSharding(mesh, P("x"))
    make = make_step(mesh)
    step = int(first)
    while True:
        rows, right = known.rows(step), known.total(state, step)
        here = np.full(count, (folder / "end").exists(), np.float32)
        large = np.full(LARGE, step % 100, np.float32)
        given = [
            jax.make_array_from_callback(x.shape, share, lambda i, x=x: x[i]) for x in (rows, here)
        ]
        found = make(state, given[0], large, given[1])
        *totals, larges, ends = (np.asarray(each) for each in found)
        for what, each in zip(("psum", "ppermute", "all_to_all"), totals, strict=True):
            check(step, what, each, right)
        check(step, "large psum", larges, large * count)
        state = known.advanced(state, totals[0])
        if step % EVERY == 0:
            if me == 0:
                np.save(folder / "saved" / "next.npy", [step + 1, *state])
                os.replace(folder / "saved" / "next.npy", saved)
            check_random(step, list(mesh.devices.flat))
        if ends.sum() == count:
            break
        step += 1
        time.sleep(0.02)
    multihost_utils.sync_global_devices("end")
    print("ends after", step + 1, "steps with", *map(int, state), flush=True)


if __name__ == "__main__":
    main()
