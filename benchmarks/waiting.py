"""Processor time of processes that wait for one that does not come, by thread.

    .venv/bin/python benchmarks/waiting.py --seconds 20 --json FILE

The last of four processes (--count) sleeps, and the others wait in an all-gather, over the engine
and over gloo: from one second after it began, with no stall warning due. What such a job costs
others is in `neighbours.py`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COUNT = 4
PROGRAM = """
import pathlib, sys, time
import jax, jax.numpy as jnp, lockstep
from jax.experimental import multihost_utils

lockstep.initialize()
folder = pathlib.Path(sys.argv[1])
me = jax.process_index()
x = jnp.ones(1000)
multihost_utils.process_allgather(x)  # compiles
(folder / f"up_{me}").write_text(str(__import__("os").getpid()))
if me == jax.process_count() - 1:
    time.sleep(600)
multihost_utils.process_allgather(x)
"""
_TICKS = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def job(folder: Path, collectives: str, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """One that waits."""
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-P", "-m", "lockstep", "run", "-n", str(count)]
    command += ["--collectives", collectives, str(folder / "program.py"), str(folder)]
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def seconds_of_threads(pid: int) -> dict[tuple[str, str], float]:
    """Processor time of each thread, by its name and number, in nanoseconds' precision."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            nanoseconds = int((task / "schedstat").read_text().split()[0])
            found[(task / "comm").read_text().strip(), task.name] = nanoseconds / 1e9
    return found


def wait_for(paths: list[Path], process: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + 180
    while not all(path.exists() for path in paths):
        if time.monotonic() > end or process.poll() is not None:
            raise SystemExit((folder / "output").read_text())
        time.sleep(0.05)


def shares(collectives: str, count: int, seconds: float) -> dict[str, Any]:
    """The share of a core of each waiting process, and of its busiest threads."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with job(folder, collectives, count) as process:
            wait_for([folder / f"up_{each}" for each in range(count)], process, folder)
            pids = [int((folder / f"up_{each}").read_text()) for each in range(count - 1)]
            time.sleep(1.0)
            before = [seconds_of_threads(pid) for pid in pids]
            time.sleep(seconds)
            after = [seconds_of_threads(pid) for pid in pids]
    threads: dict[str, float] = collections.defaultdict(float)
    own = []
    for old, new in zip(before, after, strict=True):
        spent = {thread: new[thread] - old.get(thread, 0.0) for thread in new}
        own.append(round(sum(spent.values()) / seconds, 5))
        for (comm, _), used in spent.items():
            threads[comm] += used / seconds / len(pids)
    most = heapq.nlargest(5, threads, lambda comm: threads[comm])
    busiest = {comm: round(threads[comm], 5) for comm in most}
    return {"share_of_a_core": own, "threads": busiest}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for collectives in ("lockstep", "gloo"):
        found[collectives] = shares(collectives, options.count, options.seconds)
        print(collectives, json.dumps(found[collectives]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
