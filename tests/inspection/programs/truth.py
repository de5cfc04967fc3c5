"""Programs of many kinds: what `lockstep.inspect` reports, and what the recorder saw of each.

    lockstep run -n 2 -d 2 truth.py     compares the two, and prints a line for each program
    python truth.py                     plans for 4 devices in one process, and prints the reports

Each report is printed as JSON, so that a test can compare the plan with the job.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import lockstep  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lockstep.flight_recorder import format

IN_JOB = "LOCKSTEP_NUM_PROCESSES" in os.environ
TURNS = 3
"""How often the loop of unknown length runs here."""
Program = tuple[Callable[..., Any], tuple[Any, ...]]
HLO_DTYPES = {"pred": "u8"}


def mesh(kind: AxisType = AxisType.Auto) -> Mesh:
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind, kind))


def place(array: np.ndarray, spec: P, on: Mesh) -> jax.Array:
    sharding = NamedSharding(on, spec)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def data_parallel(on: Mesh) -> Program:
    def loss(w: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"] - y) ** 2)

    def step(w: Any, x: jax.Array, y: jax.Array) -> Any:
        value, slope = jax.value_and_grad(loss)(w, x, y)
        return jax.tree.map(lambda a, b: a - 0.1 * b, w, slope), value

    rows = P(("x", "y"), None)
    w = {"a": place(numbers(8, 16), P(), on), "b": place(numbers(16, 4), P(), on)}
    return step, (w, place(numbers(8, 8), rows, on), place(numbers(8, 4), rows, on))


def fsdp(on: Mesh) -> Program:
    def loss(layers: jax.Array, x: jax.Array) -> jax.Array:
        x, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, layers)
        return jnp.sum(x**2)

    layers = place(numbers(3, 16, 16), P(None, ("x", "y"), None), on)
    return jax.grad(loss), (layers, place(numbers(8, 16), P(("x", "y"), None), on))


def tensor_parallel(on: Mesh) -> Program:
    def forward(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        def layer(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            h = jax.nn.relu(h @ up) @ down
            return lax.with_sharding_constraint(h, NamedSharding(on, P("x", None))), None

        return lax.scan(layer, x, None, length=5)[0]

    return forward, (
        place(numbers(4, 8), P("x", None), on),
        place(numbers(8, 16), P(None, "y"), on),
        place(numbers(16, 8), P("y", None), on),
    )


def pipeline(on: Mesh) -> Program:
    def stage(x: jax.Array, w: jax.Array) -> jax.Array:
        def tick(_: Any, h: jax.Array) -> jax.Array:
            return lax.ppermute(jnp.tanh(h @ w[0]), "x", [(0, 1)])

        return lax.fori_loop(0, 4, tick, x)

    mapped = jax.shard_map(
        stage, mesh=on, in_specs=(P("y"), P("x")), out_specs=P(("x", "y")), check_vma=False
    )
    return mapped, (place(numbers(4, 8), P("y"), on), place(numbers(2, 8, 8), P("x"), on))


def mixture_of_experts(on: Mesh) -> Program:
    def layer(tokens: jax.Array, expert: jax.Array) -> jax.Array:
        sent = lax.all_to_all(tokens, "y", 0, 1, tiled=True)
        return lax.all_to_all(jnp.tanh(sent @ expert[0]), "y", 1, 0, tiled=True)

    mapped = jax.shard_map(
        layer, mesh=on, in_specs=(P("x"), P("y")), out_specs=P("x"), check_vma=False
    )
    return mapped, (place(numbers(4, 6, 8), P("x"), on), place(numbers(2, 8, 8), P("y"), on))


def automatic(on: Mesh) -> Program:
    return lambda x, w: jax.nn.sigmoid(x @ w), (
        place(numbers(8, 16), P("x", "y"), on),
        place(numbers(16, 4), P("y", None), on),
    )


def explicit(on: Mesh) -> Program:
    on = mesh(AxisType.Explicit)

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.einsum("ij,jk->ik", x, w, out_sharding=NamedSharding(on, P("x", None)))

    return layer, (
        place(numbers(8, 16), P("x", "y"), on),
        place(numbers(16, 4), P("y", None), on),
    )


def manual(on: Mesh) -> Program:
    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.psum_scatter(x @ w, "y", scatter_dimension=1, tiled=True)

    mapped = jax.shard_map(
        layer, mesh=on, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", "y")
    )
    return mapped, (numbers(8, 16), numbers(16, 4))


def resharding(on: Mesh) -> Program:
    def swap(x: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(x * 2, NamedSharding(on, P(None, ("x", "y"))))

    return swap, (place(numbers(8, 8), P(("x", "y"), None), on),)


def reshaping(on: Mesh) -> Program:
    def flatten(x: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(x.reshape(32, 2) + 1, NamedSharding(on, P(("x", "y"))))

    return flatten, (place(numbers(8, 8), P(None, ("y", "x")), on),)


def rematerialized(on: Mesh) -> Program:
    def turn(x: jax.Array) -> jax.Array:
        columns = lax.with_sharding_constraint(x, NamedSharding(on, P(None, "x")))
        return lax.with_sharding_constraint(jnp.sin(columns), NamedSharding(on, P("y", None)))

    return turn, (place(numbers(8, 8), P("y", None), on),)


def nested_loops(on: Mesh) -> Program:
    def body(x: jax.Array) -> jax.Array:
        def inner(_: Any, h: jax.Array) -> jax.Array:
            return lax.psum(jnp.tanh(h), "x")

        def outer(_: Any, h: jax.Array) -> jax.Array:
            return lax.pmax(lax.fori_loop(0, 3, inner, h), "y")

        return lax.fori_loop(0, 2, outer, x)

    return jax.shard_map(body, mesh=on, in_specs=P(), out_specs=P(), check_vma=False), (numbers(5),)


def several_types(on: Mesh) -> Program:
    def body(x: jax.Array) -> Any:
        sums = lax.psum((x, x[:3] * 2, x.astype(jnp.bfloat16), jnp.int32(1)), ("x", "y"))
        return sums, lax.pmax((x > 0).any(), "x"), lax.all_gather(x.astype(jnp.int8), "y")

    return jax.shard_map(body, mesh=on, in_specs=P(), out_specs=P(), check_vma=False), (
        numbers(6, 2),
    )


def unknown_length(on: Mesh) -> Program:
    def grow(x: jax.Array, turns: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            h, i = state
            return jnp.tanh(h @ h), i + 1

        return lax.while_loop(lambda state: state[1] < turns, step, (x, jnp.int32(0)))[0]

    return grow, (place(numbers(8, 8), P("x", "y"), on), np.int32(TURNS))


def largest(on: Mesh) -> Program:
    def rows(x: jax.Array) -> jax.Array:
        return jnp.argmax(x, axis=0)

    return rows, (place(numbers(16, 4), P("x", None), on),)


def solve(on: Mesh) -> Program:
    flat = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
    root = numbers(32, 32)
    a = root @ root.T + 32 * np.eye(32, dtype=np.float32)

    def solve(a: jax.Array, b: jax.Array) -> jax.Array:
        return lockstep.linalg.potrs(a, b, mesh=flat, in_specs=(P("i", None), P()))

    return solve, (
        place(a, P("i", None), flat),
        place(numbers(32, 2), P(), flat),
    )


PROGRAMS = (
    data_parallel,
    fsdp,
    tensor_parallel,
    pipeline,
    mixture_of_experts,
    automatic,
    explicit,
    manual,
    resharding,
    reshaping,
    rematerialized,
    nested_loops,
    several_types,
    unknown_length,
    largest,
    solve,
)


def reported(report: Any, device: int) -> Counter[tuple]:
    """What the recorder of a device should see of one execution."""
    ids = report.placement.devices
    found: Counter[tuple] = Counter()
    for row in report.collectives:
        runs = 1
        for trips in row.trips:
            runs *= TURNS if trips is None else trips
        for part in parts(row):
            if row.pairs:
                members = tuple(ids)
                if not any(ids[d] == device for pair in row.pairs for d in pair):
                    continue
            else:
                group = next(g for g in row.groups if device in [ids[d] for d in g])
                members = tuple(ids[d] for d in group)
            found[row.op, *part, tuple(sorted(members))] += runs
    return found


def parts(row: Any) -> Iterator[tuple]:
    """(dtype, bytes) as the engine counts them: each operand, the share of a reduce-scatter, the
    piece of an all-to-all for each device, the bytes of a permute."""
    for dtype, shape in row.operands:
        item = np.dtype(jax.numpy.dtype(NUMPY[dtype])).itemsize
        size = item * int(np.prod(shape, dtype=int))
        if row.op == "reduce-scatter":
            size //= row.group_size
        if row.op in ("all-to-all", "collective-permute"):
            yield "byte", size
            if row.op == "all-to-all":
                return
        else:
            yield HLO_DTYPES.get(dtype, dtype), size


NUMPY = {"f32": "float32", "bf16": "bfloat16", "s32": "int32", "s8": "int8", "pred": "bool"}


def record() -> format.ProcessRecord:
    from lockstep.engine import bindings
    from lockstep.flight_recorder.run_records import read_record

    return read_record(f"/proc/self/fd/{bindings.recorder_fd()}")


def recorded(before: dict[int, int]) -> dict[int, Counter[tuple]]:
    """Device -> what it ran since; (operation, dtype, bytes, members)."""
    now = record()
    members = dict(now.cliques)
    return {
        ring.device: Counter(
            (
                format.OPS[entry.op],
                format.DTYPES[entry.dtype],
                entry.bytes,
                tuple(sorted(members[entry.clique])),
            )
            for entry in ring.entries
            if entry.number > before.get(ring.device, 0)
        )
        for ring in now.rings
    }


def main() -> int:
    if IN_JOB:
        jax.distributed.initialize()
    wrong = 0
    for make in PROGRAMS:
        f, arguments = make(mesh())
        jitted = jax.jit(f)
        report = lockstep.inspect(jitted, *arguments)
        if jax.process_index() == 0:
            print("report", json.dumps({make.__name__: report.to_dict()}), flush=True)
        if not IN_JOB:
            continue
        jax.block_until_ready(jitted(*arguments))
        before = {ring.device: ring.written for ring in record().rings}
        jax.block_until_ready(jitted(*arguments))
        seen: Counter[tuple] = Counter()
        for device, seen in recorded(before).items():
            expected = reported(report, device)
            if seen != expected:
                wrong += 1
                print(
                    f"{make.__name__}: device {device}: reported but not seen "
                    f"{expected - seen}, seen but not reported {seen - expected}",
                    flush=True,
                )
        print(f"{make.__name__}: {sum(seen.values())} collectives of a device", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
