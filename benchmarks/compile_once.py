"""How long a job takes from its start to its first step, with JAX's persistent compilation cache.

    python benchmarks/compile_once.py [--processes 4] [--layers 192] [--ways barrier lockstep]

Each line is one start: stock JAX over gloo, then `lockstep run` over gloo and over the engine, each
with a cache of its own, first empty and then as the first start has left it. `barrier` is stock JAX
with a barrier of its coordination service before the first step: without one, gloo ends a job whose
processes come to their first collective more than 30 s apart.

After the seconds from the start to the end of the first step comes the processor time of the whole
job, which depends less on what else runs. `compiled` is how many programs each process has
compiled; one of them, the step, takes nearly all of the time. `step` is the processor time in
seconds that each process used to compile or to load it, in the same order.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import stock_job

PROGRAM = """
import collections, os, sys, time
import jax, jax.monitoring, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

folder, layers, place = sys.argv[1], int(sys.argv[2]), [int(word) for word in sys.argv[3:]]
jax.config.update("jax_compilation_cache_dir", folder)
if place:
    port, processes, process, waits = place
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
else:
    jax.distributed.initialize()
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name.split("/")[-1]]))
mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(AxisType.Auto,))

def loss(w, x):
    for i in range(layers):
        q = jnp.tanh(x @ w[i])
        x = jax.nn.gelu(jax.nn.softmax(q @ q.T) @ x) + x
    return (x**2).mean()

def step(w, x):
    value, slope = jax.value_and_grad(loss)(w, x)
    return value, w - 1e-3 * slope

rows = NamedSharding(mesh, P("x"))
x = jax.make_array_from_callback((16, 32), rows, lambda i: jnp.ones((16, 32))[i])
w = jnp.ones((layers, 32, 32)) / 32
lowered = jax.jit(step).lower(w, x)
began = time.process_time()
compiled = lowered.compile()
used = time.process_time() - began
if place and waits:
    from jax._src import distributed
    distributed.global_state.client.wait_at_barrier("compiled", 1_000_000)
value, w = compiled(w, x)
value.block_until_ready()
missed = events["compile_requests_use_cache"] - events["cache_hits"]
print(f"[{jax.process_index()}: {missed} {used:.1f}]", flush=True)
"""
WAYS = ("stock", "barrier", "gloo", "lockstep")
TIMEOUT = 1000.0


def commands(way: str, program: Path, folder: Path, args: argparse.Namespace) -> list[list[str]]:
    own = [str(program), str(folder), str(args.layers)]
    if way in ("stock", "barrier"):
        place = [str(stock_job.free_port()), str(args.processes)]
        waits = str(int(way == "barrier"))
        return [[sys.executable, *own, *place, str(i), waits] for i in range(args.processes)]
    run = [sys.executable, "-m", "lockstep", "run", "-n", str(args.processes), "--no-prefix"]
    return [[*run, "--collectives", way, *own]]


def processor_seconds() -> float:
    """Of all children that have ended, and of theirs."""
    times = os.times()
    return times.children_user + times.children_system


def start(way: str, program: Path, folder: Path, args: argparse.Namespace) -> str:
    """One start, as a line of the output has it."""
    began, used_before = time.perf_counter(), processor_seconds()
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands(way, program, folder, args)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT)[0] for process in running]
    except subprocess.TimeoutExpired:
        return f"no end in {TIMEOUT:g} s"
    finally:
        for process in running:
            process.kill()
            process.wait()
    seconds = time.perf_counter() - began
    if any(process.returncode for process in running):
        errors = re.findall(r"^[\w.]*Error: .{,120}", "".join(outputs), re.M)
        return f"failed after {seconds:.1f} s: {' | '.join(dict.fromkeys(errors))}"
    found = sorted(re.findall(r"\[(\d+): (\d+) ([\d.]+)\]", "".join(outputs)))
    compiled, used = (" ".join(each[i] for each in found) for i in (1, 2))
    cores = processor_seconds() - used_before
    return f"{seconds:6.1f} s   processor {cores:.1f} s   step {used}   compiled {compiled}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--layers", type=int, default=192)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        for way in args.ways:
            for which in ("first", "second"):
                line = start(way, program, Path(folder, way), args)
                print(f"{way:9} {which:7} {line}", flush=True)


if __name__ == "__main__":
    main()
