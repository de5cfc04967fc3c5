"""What ``--check-replicas EVERY`` costs a training step, against the same step without it.

    python benchmarks/check_replicas.py
    python benchmarks/check_replicas.py -d 2 --rounds 6 --steps 400

Trains the model of ``examples/train_digits.py`` (8 replicated arrays, 77 KB in all) on two
processes. Each round starts a job for each EVERY, one after the other, and divides the mean time of
a step, checks included, by that of the job without the option. Printed is the median over rounds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
EVERY = (0, 100, 10, 1)
TIMEOUT_SECONDS = 300
WARM_UP = 3
"""Steps that are not timed: the first two compile, and are checked with any EVERY."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-d", type=int, default=1, help="devices of a process")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--hidden", type=int, default=128, help="columns of the first layer")
    parser.add_argument("--json", type=pathlib.Path, help=argparse.SUPPRESS)  # of a job
    options = parser.parse_args()
    if options.json:
        return job(options)
    ratios: dict[int, list[float]] = {every: [] for every in EVERY}
    times: dict[int, list[float]] = {every: [] for every in EVERY}
    for _ in range(options.rounds):
        for every in EVERY:
            times[every].append(seconds(options, every))
            ratios[every].append(times[every][-1] / times[0][-1])
    for every in EVERY:
        name = f"--check-replicas {every}" if every else "without"
        print(
            f"{name:22} {1e3 * statistics.median(times[every]):8.3f} ms/step"
            f"  {statistics.median(ratios[every]):6.3f} x"
        )


def seconds(options: argparse.Namespace, every: int) -> float:
    """The mean time of a step of one job."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "seconds.json")
        command = [sys.executable, "-m", "lockstep", "run", "-n", "2", "-d", str(options.d)]
        command += ["--check-replicas", str(every), __file__, "--json", str(file)]
        command += ["--steps", str(options.steps), "--hidden", str(options.hidden)]
        subprocess.run(command, check=True, timeout=TIMEOUT_SECONDS)
        return json.loads(file.read_text())


def job(options: argparse.Namespace) -> None:
    """Trains, and writes the mean time of a step."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    sys.path.insert(0, str(EXAMPLES))
    train_digits: Any = importlib.import_module("train_digits")
    train_digits.HIDDEN = options.hidden
    jax.distributed.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    replicated = NamedSharding(mesh, P())
    rows = 32 * jax.local_device_count()
    batch = [
        jax.make_array_from_process_local_data(NamedSharding(mesh, P("batch")), each[:rows])
        for each in map(train_digits.this_process, train_digits.load())
    ]
    params = jax.jit(train_digits.init, out_shardings=replicated)(jax.random.key(0))
    velocity = jax.jit(lambda p: jax.tree.map(jnp.zeros_like, p), out_shardings=replicated)(params)
    start = 0.0
    for step in range(options.steps + WARM_UP):
        if step == WARM_UP:
            start = time.perf_counter()
        params, velocity, loss = train_digits.train_step(params, velocity, *batch)
        float(loss)
    if jax.process_index() == 0:
        options.json.write_text(json.dumps((time.perf_counter() - start) / options.steps))


if __name__ == "__main__":
    main()
