"""Processor time of processes that wait for one that does not come, by thread.

    .venv/bin/python benchmarks/waiting.py --seconds 20 --json FILE

The last of four processes (--count) sleeps, and the others wait in an all-gather, over the engine
and over gloo: from one second after it began, with no stall warning due. Also how much longer a job
of two processes takes for the same steps beside a job that waits, and beside another one like it,
which has the same right to the cores: twice as long is its share where there are two cores.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import heapq
import json
import os
import statistics
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
folder, what = pathlib.Path(sys.argv[1]), sys.argv[2]
me = jax.process_index()
x = jnp.ones(1000)
multihost_utils.process_allgather(x)  # compiles
if what == "wait":
    (folder / f"up_{me}").write_text(str(__import__("os").getpid()))
    if me == jax.process_count() - 1:
        time.sleep(600)
    multihost_utils.process_allgather(x)
else:
    y = jnp.ones((400, 400))
    f = jax.jit(lambda a: a @ a / 400)
    jax.block_until_ready(f(y))
    times = []
    for step in range(int(sys.argv[3])):
        began = time.monotonic()
        jax.block_until_ready(f(y))
        multihost_utils.process_allgather(x)
        times.append(time.monotonic() - began)
    if me == 0:
        (folder / "times").write_text(" ".join(map(str, times)))
"""
_TICKS = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def job(
    folder: Path, collectives: str, count: int, *words: str
) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-P", "-m", "lockstep", "run", "-n", str(count)]
    command += ["--collectives", collectives, str(folder / "program.py"), str(folder), *words]
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
        with job(folder, collectives, count, "wait") as process:
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


def steps(collectives: str, count: int) -> float:
    """The median time of a step of a job of two processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with job(folder, collectives, 2, "work", str(count)) as process:
            wait_for([folder / "times"], process, folder)
            process.wait(60)
            return statistics.median(map(float, (folder / "times").read_text().split()))


def neighbours(collectives: str, count: int, repeats: int) -> dict[str, Any]:
    """Medians of a step alone, beside a job that hangs, and beside one that works, in turns."""
    alone, beside, working = [], [], []
    for _ in range(repeats):
        alone.append(steps(collectives, count))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with job(folder, collectives, COUNT, "wait") as process:
                wait_for([folder / f"up_{each}" for each in range(COUNT)], process, folder)
                time.sleep(1.0)
                beside.append(steps(collectives, count))
        with concurrent.futures.ThreadPoolExecutor() as pool:
            working += pool.map(steps, [collectives] * 2, [count] * 2)
    one = statistics.median(alone)
    return {
        "step_alone": one,
        "beside_a_waiting_job": round(statistics.median(beside) / one, 3),
        "beside_a_working_job": round(statistics.median(working) / one, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for collectives in ("lockstep", "gloo"):
        found[collectives] = shares(collectives, options.count, options.seconds)
        print(collectives, json.dumps(found[collectives]), flush=True)
        if options.repeats:
            pair = neighbours(collectives, options.steps, options.repeats)
            found[collectives]["neighbour"] = pair
            print("  neighbour", json.dumps(pair), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
