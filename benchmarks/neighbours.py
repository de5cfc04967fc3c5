"""What a second job on the same cores costs the first, in one run.

    .venv/bin/python benchmarks/neighbours.py --on machine,hosts --repeats 3 --json FILE

A job of two processes makes steps of a matrix product and an all-gather: alone, beside a job that
waits in a collective, and beside one like itself, in turns, over the engine and over gloo. Twice as
long is its share where there are two cores. ``hosts``: each job has a process on each of the same
two hosts, which are namespaces of this machine with an sshd (as root). Of two jobs the steps count
that both made at the same time.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import waiting
from ssh_hosts import SshHosts, ssh_hosts

PROGRAM = """
import pathlib, sys, time
import jax, jax.numpy as jnp, lockstep
from jax.experimental import multihost_utils

lockstep.initialize()
folder = pathlib.Path(sys.argv[1])
x, y = jnp.ones(1000), jnp.ones((400, 400))
f = jax.jit(lambda a: a @ a / 400)
jax.block_until_ready(f(y))
multihost_utils.process_allgather(x)
times = []
for step in range(int(sys.argv[2])):
    began = time.monotonic()
    jax.block_until_ready(f(y))
    multihost_utils.process_allgather(x)
    times.append((began, time.monotonic()))
if jax.process_index() == 0:
    (folder / "new").write_text("\\n".join(f"{a} {b}" for a, b in times))
    (folder / "new").rename(folder / "times")
"""
ENOUGH = 0.3
"""The share of the steps of two jobs that have to be at the same time."""


class Step(NamedTuple):
    """When it began and ended, in seconds of the machine's clock."""

    began: float
    ended: float


def steps(collectives: str, count: int, hosts: SshHosts | None) -> list[Step]:
    """Those of a job of two processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        where = ["--ssh", hosts.ssh(), "--hosts", "b,c"] if hosts else ["-n", "2"]
        command = [*(hosts.enter("a") if hosts else []), sys.executable, "-P", "-m", "lockstep"]
        command += ["run", *where, "--collectives", collectives, str(folder / "program.py"), name]
        with (
            open(folder / "output", "wb") as output,
            subprocess.Popen(
                [*command, str(count)], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            ) as process,
        ):
            try:
                waiting.wait_for([folder / "times"], process, folder)
            except SystemExit:
                process.terminate()
                raise
        lines = (folder / "times").read_text().splitlines()
        return [Step(*map(float, line.split())) for line in lines]


def median(found: list[Step]) -> float:
    return statistics.median(each.ended - each.began for each in found)


def together(collectives: str, count: int, hosts: SshHosts | None) -> list[float]:
    """The median steps of two jobs, of those that both made at the same time."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pair = list(pool.map(lambda _: steps(collectives, count, hosts), range(2)))
    first = max(found[0].began for found in pair)
    last = min(found[-1].ended for found in pair)
    both = [[s for s in found if s.began >= first and s.ended <= last] for found in pair]
    least = min(map(len, both)) / count
    if least < ENOUGH:
        print(f"  left out: {least:.2f} of the steps were at the same time", flush=True)
        return []
    return [median(some) for some in both]


@contextlib.contextmanager
def job_that_waits(collectives: str) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with waiting.job(folder, collectives, waiting.COUNT) as process:
            there = [folder / f"up_{each}" for each in range(waiting.COUNT)]
            waiting.wait_for(there, process, folder)
            time.sleep(1.0)
            yield


def measured(
    collectives: str, count: int, repeats: int, hosts: SshHosts | None
) -> dict[str, float | None]:
    """The median step alone, and how many times as long it is beside another job."""
    alone, beside, working = [], [], []
    for _ in range(repeats):
        alone.append(median(steps(collectives, count, hosts)))
        if hosts is None:
            with job_that_waits(collectives):
                beside.append(median(steps(collectives, count, hosts)))
        working += together(collectives, count, hosts)
    one = statistics.median(alone)

    def ratio(found: list[float]) -> float | None:
        return round(statistics.median(found) / one, 3) if found else None

    waits = {} if hosts else {"beside_a_waiting_job": ratio(beside)}
    return {"step_alone": one, **waits, "beside_a_working_job": ratio(working)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--on", default="machine,hosts")
    parser.add_argument("--collectives", default="lockstep,gloo")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for on in options.on.split(","):
            hosts = None
            if on == "hosts":
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                hosts = stack.enter_context(ssh_hosts(folder, "abc"))
            for collectives in options.collectives.split(","):
                key = f"{on} {collectives}"
                found[key] = measured(collectives, options.steps, options.repeats, hosts)
                print(key, json.dumps(found[key]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
