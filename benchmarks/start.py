"""What `lockstep run` adds to the start of a program that imports JAX and makes one array.

    python benchmarks/start.py [--repeats 7]

One process. The ways to start take turns, so that what else runs on the machine meets all of them;
the least and the median of each are printed, and what they add to plain Python's.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = "import jax.numpy as jnp\njnp.ones(8).block_until_ready()\n"
JOINING = "import jax\njax.distributed.initialize()\n" + PROGRAM
RUN = ["-m", "lockstep", "run", "-n", "1"]
WAYS = {
    "plain Python": ([], PROGRAM),
    "lockstep run": (RUN, PROGRAM),
    "lockstep run, gloo, initialize()": ([*RUN, "--collectives", "gloo"], JOINING),
    "lockstep run, initialize()": (RUN, JOINING),
}
TIMEOUT = 120.0


def seconds(options: list[str], program: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, *options, str(program)]
    subprocess.run(command, check=True, timeout=TIMEOUT, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        for _ in range(1 + repeats):  # the first round fills the caches of the system
            for name, (options, text) in WAYS.items():
                program.write_text(text)
                taken[name].append(seconds(options, program))
    least = {name: min(times[1:]) for name, times in taken.items()}
    middle = {name: statistics.median(times[1:]) for name, times in taken.items()}
    plain = next(iter(WAYS))
    print(f"{'':34} {'least':>7} {'median':>7} {'adds':>6} {'median':>7}   s, {repeats} rounds")
    for name in WAYS:
        adds = least[name] - least[plain], middle[name] - middle[plain]
        print(f"{name:34} {least[name]:7.2f} {middle[name]:7.2f} {adds[0]:6.2f} {adds[1]:7.2f}")


if __name__ == "__main__":
    main()
