"""How far the times that `lockstep.inspect` predicts are from those of programs that run.

    lockstep bench --calibrate -n 2
    lockstep run -n 2 benchmarks/predicted_times.py

Each program is compiled, inspected, and run. The measured time of a collective is that from the
last device's arrival to the last device's end, by the flight recorder; waiting for a device that
computes longer is no part of it, as none of the prediction. Of many executions the lower quartile
counts, as in the calibration. Process 0 prints a line for each program: its collectives, their
predicted and measured time in one execution, and the ratio.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep
from lockstep._words import format_seconds
from lockstep.data._exchange import exchange
from lockstep.engine import bindings
from lockstep.flight_recorder.run_records import read_record
from lockstep.inspection import cost_model

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def placed(mesh: Any, spec: P, *shape: int) -> jax.Array:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32) / shape[-1]
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda i: values[i])


def data_parallel(mesh: Any, width: int) -> Program:
    """Gradients of two layers: an all-reduce of all of them."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum((jnp.tanh(x @ w[0]) @ w[1]) ** 2)

    w = placed(mesh, P(), 2, width, width)
    return jax.value_and_grad(loss), (w, placed(mesh, P("d"), 64, width))


def tensor_parallel(mesh: Any, width: int) -> Program:
    """Six layers in a loop, an all-reduce of the activations in each."""

    def forward(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        def layer(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.nn.relu(h @ up) @ down, None

        return lax.scan(layer, x, None, length=6)[0]

    up, down = placed(mesh, P(None, "d"), width, width), placed(mesh, P("d"), width, width)
    return forward, (placed(mesh, P(), 64, width), up, down)


def fsdp(mesh: Any, width: int) -> Program:
    """Four layers whose weights are gathered when they are needed."""

    def forward(layers: jax.Array, x: jax.Array) -> jax.Array:
        return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, layers)[0]

    layers = placed(mesh, P(None, "d"), 4, width, width)
    return forward, (layers, placed(mesh, P("d"), 64, width))


def experts(mesh: Any, width: int) -> Program:
    """Tokens to the experts and back: two all-to-all."""

    def layer(tokens: jax.Array, expert: jax.Array) -> jax.Array:
        sent = lax.all_to_all(tokens, "d", 0, 1, tiled=True)
        return lax.all_to_all(jnp.tanh(sent @ expert[0]), "d", 1, 0, tiled=True)

    mapped = jax.shard_map(
        layer, mesh=mesh, in_specs=(P(None, "d"), P("d")), out_specs=P(None, "d"), check_vma=False
    )
    tokens = placed(mesh, P(None, "d"), mesh.size, 16 * mesh.size, width)
    return mapped, (tokens, placed(mesh, P("d"), mesh.size, width, width))


def ring(mesh: Any, width: int) -> Program:
    """Eight turns of a ring: a permute in each."""
    size = mesh.size

    def turn(_: Any, h: jax.Array) -> jax.Array:
        return lax.ppermute(jnp.tanh(h), "d", [(i, (i + 1) % size) for i in range(size)])

    mapped = jax.shard_map(
        lambda h: lax.fori_loop(0, 8, turn, h), mesh=mesh, in_specs=P("d"), out_specs=P("d")
    )
    return mapped, (placed(mesh, P("d"), 64 * size, width),)


def iterations(mesh: Any, width: int) -> Program:
    """A solver's iterations: a product with a sharded matrix, and the sum of a number."""

    def iterate(a: jax.Array, x: jax.Array) -> jax.Array:
        def step(_: Any, x: jax.Array) -> jax.Array:
            y = a @ x
            return y / (1 + jnp.sum(y * y))

        return lax.fori_loop(0, 16, step, x)

    return iterate, (placed(mesh, P("d"), width, width), placed(mesh, P("d"), width))


PROGRAMS = (data_parallel, tensor_parallel, fsdp, experts, ring, iterations)


def own_entries(before: dict[int, int]) -> list[list[Any]]:
    """[members, sequence or number, entered, done] of each collective since ``before``."""
    record = read_record(f"/proc/self/fd/{bindings.recorder_fd()}")
    members = {clique: sorted(devices) for clique, devices in record.cliques}
    return [
        [members[e.clique], e.op, e.number if e.is_permute else e.sequence, e.entered_ns, e.done_ns]
        for ring in record.rings
        for e in ring.entries
        if e.number > before.get(ring.device, 0)
    ]


def written() -> dict[int, int]:
    record = read_record(f"/proc/self/fd/{bindings.recorder_fd()}")
    return {ring.device: ring.written for ring in record.rings}


def measured(entries: list[list[list[Any]]]) -> float:
    """Seconds of all collectives of one device, from the entries of all processes."""
    by_meeting: dict[str, list[list[Any]]] = defaultdict(list)
    for own in entries:
        for entry in own:
            by_meeting[str(entry[:3])].append(entry)
    times = [
        max(0, max(e[4] for e in there) - max(e[3] for e in there)) * len(there)
        for there in by_meeting.values()
    ]
    return sum(times) / jax.device_count() / 1e9


def run(name: str, jitted: Any, arguments: Any, times: int) -> float:
    """The lower quartile of the measured seconds of an execution."""
    jax.block_until_ready(jitted(*arguments))
    found = []
    for _ in range(times):
        before = written()
        jax.block_until_ready(jitted(*arguments))
        found.append(measured(exchange(name, own_entries(before))))
    return statistics.quantiles(found, n=4)[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--widths", default="64,256,1024", help="of the programs' matrices")
    parser.add_argument("--times", type=int, default=30, help="executions of each program")
    parser.add_argument("--costs", type=Path, help="default: your own file")
    options = parser.parse_args()
    jax.distributed.initialize()
    model = cost_model.load(options.costs)
    if model is None:
        parser.error("no costs are known: run lockstep bench --calibrate")
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
    errors = []
    for make in PROGRAMS:
        for width in map(int, options.widths.split(",")):
            f, arguments = make(mesh, width)
            jitted = jax.jit(f)
            report = lockstep.inspect(jitted, *arguments).predict(model)
            seconds = run(make.__name__, jitted, arguments, options.times)
            predicted = report.seconds
            assert predicted is not None
            errors.append(abs(predicted / seconds - 1))
            if jax.process_index() == 0:
                what = ", ".join(sorted({row.op for row in report.collectives}))
                text = f"{make.__name__:16} {width:5}  predicted {format_seconds(predicted):>8}"
                text += f"  measured {format_seconds(seconds):>8}  {predicted / seconds:5.2f}"
                print(f"{text}  {what}", flush=True)
    if jax.process_index() == 0:
        middle = statistics.median(errors)
        print(f"error: {middle:.0%} in the middle, {max(errors):.0%} at worst")


if __name__ == "__main__":
    main()
