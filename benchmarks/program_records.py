"""What the records of programs cost: of a compilation, and of a launch (gloo).

    python benchmarks/program_records.py [--layers 2 12 48]

Two processes of one device compile gradients of layers of matrix products, over the engine and over
gloo. The share of a compilation is the processor time of what Lockstep does for it, on all threads,
in that of JAX's compilation. A launch is the least of 600 batches of 300 calls of what JAX calls
after each one, less those of an empty function, so a busy machine changes it little.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CALLS, BATCHES = 300, 600
MARK = "row:"


def timed(of: Any, name: str, spent: list[float], clock: Callable[[], float]) -> None:
    """Adds the processor time of each call of ``of.name`` to ``spent``, of a nested one once."""
    function, depth = getattr(of, name), [0]

    def call(*args: Any, **options: Any) -> Any:
        began, depth[0] = clock(), depth[0] + 1
        try:
            return function(*args, **options)
        finally:
            depth[0] -= 1
            if not depth[0]:
                spent.append(clock() - began)

    setattr(of, name, call)


def least(call: Callable[..., Any], *args: Any) -> float:
    """Seconds of a call: the least mean of a batch."""
    found = []
    for _ in range(BATCHES):
        began = time.perf_counter()
        for _ in range(CALLS):
            call(*args)
        found.append(time.perf_counter() - began)
    return min(found) / CALLS


def work(layers: int) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from lockstep.programs import compilations, launches, modules
    from lockstep.watchdog import launch_watch, without_collectives

    record: list[float] = []
    for of, name in (
        (compilations, "_with_options"),
        (compilations, "_described"),
        (launches.Record, "_of_executable"),
        (modules, "publish"),
        (without_collectives.Comparison, "difference"),
    ):
        timed(of, name, record, time.thread_time)
    jax.distributed.initialize()
    jax.devices()
    compiled: list[float] = []
    from jax._src import compiler

    timed(compiler, "compile_or_get_cached", compiled, time.process_time)
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    x = jax.make_array_from_callback((64, 32), rows, lambda at: np.ones((64, 32), "float32")[at])
    weights = [np.eye(32, dtype="float32")] * layers

    def loss(weights: Any, x: Any) -> Any:
        for one in weights:
            x = jnp.tanh(x @ one)
        return (x**2).mean()

    step = jax.jit(jax.grad(loss))
    results = step(weights, x)
    step(weights, x)
    time.sleep(3)  # the threads that watch have looked by then
    share = 100 * sum(record) / sum(compiled)
    launched = ""
    if (recorded := launch_watch._recording.record) is not None:
        told = (step, (weights, x), {}, results)
        seconds = least(launch_watch._fast, *told) - least(lambda *_: None, *told)
        launched = f", a launch {1e6 * seconds:.2f} us"
        assert recorded.read().rings[0].written > CALLS
    print(f"{MARK} {layers} layers: {share:.2f}% of {sum(compiled):.2f} s{launched}", flush=True)
    import os

    os._exit(0)  # the batches have launched nothing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 12, 48])
    parser.add_argument("--work", type=int)
    args = parser.parse_args()
    if args.work:
        work(args.work)
        return
    for collectives in ("lockstep", "gloo"):
        for layers in args.layers:
            options = ["-n", "2", "-d", "1", "--collectives", collectives]
            command = [sys.executable, "-m", "lockstep", "run", *options, __file__]
            done = subprocess.run(
                [*command, "--work", str(layers)], capture_output=True, text=True, timeout=300
            )
            rows = [one.partition(MARK)[2] for one in done.stdout.splitlines() if MARK in one]
            print(f"{collectives}:", *(rows or [done.stderr[-2000:]]), sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
