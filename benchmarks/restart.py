"""From a fault to the first new step, by parts: a process of a training on the digits is killed.

    python benchmarks/restart.py [--processes 4] [--runs 3]

It prints the median seconds of each part: where everything is compiled and imported again
(JAX_ENABLE_COMPILATION_CACHE=0), by default, where compiled programs are kept, and with --preload.
Each part ends when the last process has ended it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[1] / "examples"
TIMEOUT = 300.0
LAUNCHER = ("noticed", "stopped", "prepared")
WAYS = {
    "compiles": (False, []),
    "loads": (True, []),
    "loads, `--preload`": (True, ["--preload", "jax,sklearn.datasets"]),
}
"""Whether compiled programs are kept, and further options."""


def train(folder: Path) -> None:
    """What each process runs: the example's model, data and step, with a checkpoint."""
    marks = [("interpreter", time.monotonic())]

    def mark(name: str) -> None:
        marks.append((name, time.monotonic()))

    import jax
    import numpy as np

    mark("import jax")
    sys.path.insert(0, str(EXAMPLES))
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    digits: Any = importlib.import_module("train_digits")

    mark("import scikit-learn")
    jax.distributed.initialize()
    mark("coordination service")
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    sharded, replicated = NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())
    mark("devices")
    batch = [
        jax.make_array_from_process_local_data(sharded, digits.this_process(rows)[:64])
        for rows in digits.load()
    ]
    params = jax.jit(digits.init, out_shardings=replicated)(jax.random.key(0))
    velocity = jax.tree.map(jax.numpy.zeros_like, params)
    saved = folder / "saved.npz"
    is_first = not saved.exists()
    if not is_first:
        with np.load(saved) as found:
            params = jax.device_put(dict(found), replicated)
    mark("data, checkpoint")
    params, velocity, loss = digits.train_step(params, velocity, *batch)
    loss.block_until_ready()
    mark("first step")
    if not is_first:
        (folder / f"marks_{jax.process_index()}").write_text(json.dumps(marks))
        return
    values = jax.device_get(params)
    if jax.process_index() == 0:
        np.savez(folder / "next.npz", **values)
        os.replace(folder / "next.npz", saved)
    while True:
        params, velocity, loss = digits.train_step(params, velocity, *batch)
        loss.block_until_ready()
        if jax.process_index() == jax.process_count() - 1 and saved.exists():
            (folder / "fault").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)


def measured(processes: int, cached: bool, more: Sequence[str]) -> dict[str, float]:
    """The seconds of each part of one restart."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ["-n", str(processes), "--max-restarts", "1", "--log-dir", str(folder / "logs")]
        options += more
        command = [sys.executable, "-P", "-m", "lockstep", "run", *options, __file__]
        environ = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": str(int(cached))}
        done = subprocess.run(
            [*command, "--train", name], env=environ, capture_output=True, timeout=TIMEOUT
        )
        assert done.returncode == 0, done.stderr.decode()
        [path] = folder.glob("logs/run_*/restarts.json")
        [restart] = json.loads(path.read_text())["restarts"]
        own = [restart["noticed"], restart["ended"], restart["prepared"]]
        parts = dict(zip(LAUNCHER, own, strict=True))
        fault = float((folder / "fault").read_text())
        before = fault + sum(own)
        marks = [json.loads(path.read_text()) for path in folder.glob("marks_*")]
        for each in zip(*marks, strict=True):
            at = max(time for _, time in each)
            parts[each[0][0]], before = at - before, at
        return parts | {"in all": before - fault}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.runs):
        for way in found:  # in turn: what else the machine does meets all
            found[way].append(measured(options.processes, *WAYS[way]))
    print(f"| part | {' | '.join(found)} |\n|{'---|' * (len(found) + 1)}")
    for part in found["loads"][0]:
        medians = [statistics.median(each[part] for each in runs) for runs in found.values()]
        print(f"| {part} | {' | '.join(f'{median:.2f} s' for median in medians)} |")


if __name__ == "__main__":
    main()
