"""Memory, descriptors, threads and files of a process over a million steps.

    .venv/bin/python benchmarks/long_run.py --json benchmarks/results/long_run.json

Two processes make an all-reduce in each step, from Python: over the engine a million times, over
gloo 100,000 times. Each hundredth of the steps process 0 notes what it has, and what the directory
of the run and its launcher have. ``make figures`` draws it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS = {"lockstep": 1_000_000, "gloo": 100_000}
PROGRAM = """
import json, os, pathlib, sys, time
import jax, jax.numpy as jnp, numpy as np, lockstep
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

lockstep.initialize()
steps, out = int(sys.argv[1]), sys.argv[2]
mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(AxisType.Auto,))
sharded = NamedSharding(mesh, P("x"))
x = jax.make_array_from_callback(
    (jax.device_count(),), sharded, lambda index: np.ones(1, np.float32)
)
step = jax.jit(
    jax.shard_map(lambda a: a + jax.lax.psum(a, "x") * 0, mesh=mesh, in_specs=P("x"),
                  out_specs=P("x")),
    donate_argnums=0,
)

def rss(pid):
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")

def size(folder):
    return sum(path.lstat().st_size for path in pathlib.Path(folder).rglob("*"))

def state(number):
    return {
        "step": number,
        "seconds": time.monotonic(),
        "rss": rss("self"),
        "launcher_rss": rss(os.getppid()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "run_dir": size(os.environ["LOCKSTEP_RUN_DIR"]),
    }

found = []
for number in range(steps + 1):
    if number % (steps // 100) == 0:
        jax.block_until_ready(x)
        found.append(state(number))
    elif number % 64 == 0:
        jax.block_until_ready(x)
    x = step(x)
assert float(x.addressable_shards[0].data[0]) == 1.0
if jax.process_index() == 0:
    pathlib.Path(out).write_text(json.dumps(found))
"""


def measure(collectives: str, steps: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        program, out = Path(name, "program.py"), Path(name, "out.json")
        program.write_text(PROGRAM)
        command = [sys.executable, "-P", "-m", "lockstep", "run", "-n", "2"]
        command += ["--collectives", collectives, str(program), str(steps), str(out)]
        subprocess.run(command, check=True, env={**os.environ, "TMPDIR": name})
        rows: list[dict[str, Any]] = json.loads(out.read_text())
    began = rows[0]["seconds"]
    return [{**row, "seconds": round(row["seconds"] - began, 2)} for row in rows]


def growth(rows: list[dict[str, Any]]) -> dict[str, int]:
    """What the last sample has more than that after a tenth of the steps."""
    names = ("rss", "launcher_rss", "descriptors", "threads", "run_dir")
    return {name: rows[-1][name] - rows[len(rows) // 10][name] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=float, default=1.0, help="of the steps")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    for collectives, steps in STEPS.items():
        found[collectives] = measure(collectives, int(steps * options.share))
        last = found[collectives][-1]
        print(collectives, "growth:", json.dumps(growth(found[collectives])), json.dumps(last))
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
