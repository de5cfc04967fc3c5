"""What the records of programs cost: of a compilation, and of a launch (gloo).

    python benchmarks/program_records.py [--layers 2 12 48] [--blocks 1 4 12]

Two processes of one device compile gradients of layers of matrix products, and steps of Adam on
blocks of a transformer, over the engine and over gloo. The share of a compilation is the processor
time of what Lockstep does for it, on all threads, in that of the first call: JAX traces, lowers and
compiles. The share of the compiler alone is told beside it. A launch is the least of 600 batches of
300 calls of what JAX calls after each one, less those of an empty function, so a busy machine
changes it little.
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


def products(layers: int) -> tuple[Callable[..., Any], Any, tuple[int, ...]]:
    """A step, its parameters, and the shape of a batch."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def loss(weights: Any, x: Any) -> Any:
        for one in weights:
            x = jnp.tanh(x @ one)
        return (x**2).mean()

    return jax.grad(loss), [np.eye(32, dtype="float32")] * layers, (64, 32)


def transformer(blocks: int) -> tuple[Callable[..., Any], Any, tuple[int, ...]]:
    """The same of a step of Adam."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    width, heads = 64, 4

    def block(one: Any, x: Any) -> Any:
        h = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        q, k, v = (jnp.einsum("bsd,dhe->bhse", h, one[name]) for name in "qkv")
        a = jax.nn.softmax(jnp.einsum("bhse,bhte->bhst", q, k) / 4.0)
        x = x + jnp.einsum("bhse,hed->bsd", jnp.einsum("bhst,bhte->bhse", a, v), one["o"])
        return x + jax.nn.gelu(x @ one["u"]) @ one["w"]

    def loss(weights: Any, x: Any) -> Any:
        for one in weights:
            x = block(one, x)
        return (x**2).mean()

    def adam(state: Any, x: Any) -> Any:
        weights, means, squares = state
        gradient = jax.grad(loss)(weights, x)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradient)
        squares = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, squares, gradient)
        steps = jax.tree.map(lambda m, s: 1e-3 * m / (jnp.sqrt(s) + 1e-8), means, squares)
        return jax.tree.map(jnp.subtract, weights, steps), means, squares

    def made(*shape: int) -> Any:
        return np.full(shape, 0.01, "float32")

    split, wide = (width, heads, width // heads), (width, 4 * width)
    ends = {"o": made(heads, width // heads, width), "u": made(*wide), "w": made(*wide[::-1])}
    weights = [{**{name: made(*split) for name in "qkv"}, **ends} for _ in range(blocks)]
    zeros = jax.tree.map(np.zeros_like, weights)
    return adam, (weights, zeros, zeros), (8, 16, width)


PROGRAMS = {"layers": products, "blocks": transformer}


def work(program: str, size: int) -> None:
    import jax
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
    function, weights, shape = PROGRAMS[program](size)
    x = jax.make_array_from_callback(shape, rows, lambda at: np.ones(shape, "float32")[at])
    step = jax.jit(function)
    record.clear()
    compiled.clear()
    began = time.process_time()
    results = step(weights, x)
    whole = time.process_time() - began
    step(weights, x)
    time.sleep(3)  # the threads that watch have looked by then
    share, of_compiler = (100 * sum(record) / seconds for seconds in (whole, sum(compiled)))
    launched = ""
    if (recorded := launch_watch._recording.record) is not None:
        told = (step, (weights, x), {}, results)
        seconds = least(launch_watch._fast, *told) - least(lambda *_: None, *told)
        launched = f", a launch {1e6 * seconds:.2f} us"
        assert recorded.read().rings[0].written > CALLS
    shares = f"{share:.2f}% of {whole:.2f} s ({of_compiler:.2f}% of the compiler's)"
    print(f"{MARK} {size} {program}: {shares}{launched}", flush=True)
    import os

    os._exit(0)  # the batches have launched nothing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--layers", type=int, nargs="*", default=[2, 12, 48])
    parser.add_argument("--blocks", type=int, nargs="*", default=[1, 4, 12])
    parser.add_argument("--work", nargs=2)
    args = parser.parse_args()
    if args.work:
        work(args.work[0], int(args.work[1]))
        return
    for collectives in ("lockstep", "gloo"):
        for program, size in [(name, n) for name in PROGRAMS for n in vars(args)[name]]:
            options = ["-n", "2", "-d", "1", "--collectives", collectives]
            command = [sys.executable, "-m", "lockstep", "run", *options, __file__]
            done = subprocess.run(
                [*command, "--work", program, str(size)],
                capture_output=True,
                text=True,
                timeout=300,
            )
            rows = [one.partition(MARK)[2] for one in done.stdout.splitlines() if MARK in one]
            print(f"{collectives}:", *(rows or [done.stderr[-2000:]]), sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
