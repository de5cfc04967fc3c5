"""The programs that `gpu.py` starts on a GPU: ``gpu_programs.py NAME``. Each prints JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lockstep  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def mesh() -> Any:
    return jax.make_mesh((jax.device_count(),), ("x",), (AxisType.Auto,))


def over_all(function: Callable, out: Any = None) -> Callable:
    out = P("x") if out is None else out
    mapped = jax.shard_map(function, mesh=mesh(), in_specs=P("x"), out_specs=out, check_vma=False)
    return jax.jit(mapped)


def rows(array: np.ndarray) -> jax.Array:
    return jax.make_array_from_callback(
        array.shape, NamedSharding(mesh(), P("x")), lambda index: array[index]
    )


def mine(array: jax.Array) -> np.ndarray:
    return np.asarray(array.addressable_data(0))


def collectives() -> None:
    """Every collective of two ranks beside NumPy."""
    ranks, me = jax.process_count(), jax.process_index()
    data = np.random.default_rng(0).normal(size=(ranks * 4, 64)).astype(np.float32)
    x, parts = rows(data), np.split(data, ranks)
    around = [(i, (i + 1) % ranks) for i in range(ranks)]

    def exchanged(v: Any) -> Any:
        return lax.all_to_all(v, "x", split_axis=0, concat_axis=0, tiled=True)

    width = 4 // ranks
    own = slice(me * width, (me + 1) * width)
    total = np.sum(parts, axis=0)
    expected: dict[str, tuple[Callable, Any]] = {
        "all-reduce": (lambda v: lax.psum(v, "x"), total),
        "all-gather": (lambda v: lax.all_gather(v, "x"), np.stack(parts)),
        "reduce-scatter": (
            lambda v: lax.psum_scatter(v, "x", tiled=True),
            total[own],
        ),
        "all-to-all": (
            exchanged,
            np.concatenate([part[own] for part in parts]),
        ),
        "collective-permute": (lambda v: lax.ppermute(v, "x", around), parts[me - 1]),
    }
    for name, (function, value) in expected.items():
        call = over_all(function)
        errors = [mine(call(x)).reshape(np.shape(value)) - value for _ in range(3)]
        say(collective=name, process=me, error=float(np.max(np.abs(errors))))

    @over_all
    def loop(v):
        return lax.fori_loop(0, 10, lambda _, a: lax.psum(a, "x") / ranks, v)

    say(
        collective="in a loop",
        process=me,
        error=float(np.max(np.abs(mine(loop(x)) - sum(parts) / 2))),
    )


def fail() -> None:
    """The collectives, and an error: the records of a failed run are kept."""
    collectives()
    raise SystemExit(7)


def cost() -> None:
    """Microseconds that the dispatch of a program with 50 small all-reduces takes its thread.

    Two processes on one GPU take turns, milliseconds each, so how long the kernels take says
    nothing; the thread that dispatches does not wait for them.
    """
    x = rows(np.ones((jax.process_count(), 256), np.float32))

    @over_all
    def fifty(v):
        for _ in range(50):
            v = lax.psum(v, "x") * 0.5
        return v

    fifty(x).block_until_ready()
    taken = []
    for _ in range(10):
        started = time.perf_counter()
        y = fifty(x)
        taken.append(time.perf_counter() - started)
        y.block_until_ready()
    if jax.process_index() == 0:
        say(microseconds_of_dispatch=[round(1e6 * t, 1) for t in sorted(taken)])


def compile_alone() -> None:
    """Only process 0 compiles a program of all processes."""
    total = over_all(lambda v: lax.psum(v, "x"))
    x = rows(np.ones((jax.process_count(), 256), np.float32))
    mine(total(x))
    if jax.process_index() == 1:
        time.sleep(600)
    mine(over_all(lambda v: 2 * lax.psum(v, "x"))(x))


def launch_alone() -> None:
    """Both compile a program, and process 0 alone launches it: NCCL has no communicator yet."""
    x = rows(np.ones((jax.process_count(), 256), np.float32))
    total: Any = over_all(lambda v: lax.psum(v, "x"))
    compiled = total.lower(x).compile()
    if jax.process_index() == 1:
        time.sleep(600)
    mine(compiled(x))


def restart() -> None:
    """Twelve steps with a checkpoint in a file; process 1 stands still once, before the sixth."""
    kept = Path(sys.argv[2])
    begun = int(kept.read_text()) if kept.exists() else 0
    lockstep.continues_from(begun)
    total = over_all(lambda v: lax.psum(v, "x"))
    x = rows(np.ones((jax.process_count(), 256), np.float32))
    error = 0.0
    for step in range(begun, 12):
        if step == 5 and not begun and jax.process_index() == 1:
            time.sleep(600)
        error = max(error, float(np.max(np.abs(mine(total(x)) - jax.process_count()))))
        if jax.process_index() == 0:
            kept.write_text(str(step + 1))
    say(process=jax.process_index(), steps=[begun, 12], error=error)


def sleep() -> None:
    total = over_all(lambda v: lax.psum(v, "x"))
    x = rows(np.ones((jax.process_count(), 256), np.float32))
    for _ in range(3):
        mine(total(x))
    if jax.process_index() == 1:
        time.sleep(600)
    mine(total(x))


def lag_inside() -> None:
    """Process 1 stays behind inside of a program that both have launched."""

    def late(seconds: np.ndarray) -> np.ndarray:
        if jax.process_index() == 1:
            time.sleep(float(seconds))
        return np.zeros((), np.float32)

    def body(v: Any, seconds: Any) -> Any:
        nothing = jax.pure_callback(late, jax.ShapeDtypeStruct((), np.float32), seconds)
        return lax.psum(v + nothing, "x")

    mapped = jax.shard_map(
        body, mesh=mesh(), in_specs=(P("x"), P()), out_specs=P("x"), check_vma=False
    )
    step, x = jax.jit(mapped), rows(np.ones((jax.process_count(), 256), np.float32))
    for seconds in (0, 0, 600):
        mine(step(x, np.float32(seconds)))


def precision() -> None:
    data = np.random.default_rng(0).normal(size=(jax.process_count(), 4096)).astype(np.float32)
    for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        dtype = getattr(jnp, name)
        cast = np.asarray(jnp.asarray(data).astype(dtype))
        found = mine(over_all(lambda v: lax.psum(v, "x"))(rows(cast))).astype(np.float32)
        exact = cast.astype(np.float32).sum(0)
        rounded = np.asarray(jnp.asarray(exact).astype(dtype).astype(jnp.float32))
        if jax.process_index() == 0:
            say(dtype=name, differ=int(np.sum(found[0] != rounded)), of=exact.size)


def linalg() -> None:
    """Residuals of `lockstep.linalg` on one GPU, in units of the precision times n."""
    import lockstep.linalg as la

    jax.config.update("jax_enable_x64", True)
    n = 1000
    a = jax.random.normal(jax.random.key(0), (n, n), jnp.float64)
    positive, symmetric = a @ a.T + n * jnp.eye(n), a + a.T
    b = jax.random.normal(jax.random.key(1), (n, 8), jnp.float64)
    place = NamedSharding(jax.make_mesh((1,), ("x",), (AxisType.Auto,)), P("x"))
    positive, symmetric = jax.device_put(positive, place), jax.device_put(symmetric, place)
    unit = n * float(jnp.finfo(jnp.float64).eps)

    def told(name: str, residual: Any, scale: Any) -> None:
        ratio = float(jnp.linalg.norm(residual)) / float(jnp.linalg.norm(scale)) / unit
        say(routine=name, n=n, ratio=ratio)

    told("potrs", positive @ la.potrs(positive, b) - b, b)
    told("potri", positive @ la.potri(positive) - jnp.eye(n), jnp.eye(n))
    values, vectors = la.syevd(symmetric)
    told("syevd", symmetric @ vectors - vectors * values, symmetric)


def solvers() -> None:
    """Relative residuals of each family of `lockstep.linalg` over the job's processes.

    Each in units of the precision times n: a backward stable routine stays near 1.
    """
    import lockstep.linalg as la

    jax.config.update("jax_enable_x64", True)
    n, k = 256, 96
    rng = np.random.default_rng(0)
    general = rng.normal(size=(n, n))
    a, tall = rows(general), rows(rng.normal(size=(2 * n, k)))
    spd, low = rows(general @ general.T + n * np.eye(n)), rows(general + general.T)
    b, many = rows(rng.normal(size=(n, 8))), rows(rng.normal(size=(2 * n, 3)))
    unit = n * float(np.finfo(np.float64).eps)

    def told(name: str, residual: Callable[..., Any], *arrays: Any) -> None:
        def relative(*x: Any) -> Any:
            error, scale = residual(*x)
            return jnp.linalg.norm(error) / jnp.linalg.norm(scale) / unit

        ratio = float(jax.jit(relative, out_shardings=NamedSharding(mesh(), P()))(*arrays))
        if jax.process_index() == 0:
            say(routine=name, n=n, ratio=round(ratio, 4))

    def solved(x: Any, y: Any, z: Any) -> Any:
        return x @ y - z, jnp.linalg.norm(x) * jnp.linalg.norm(y)

    told("potrs", solved, spd, la.potrs(spd, b), b)
    told("solve", solved, a, la.solve(a, b), b)
    told("inv", solved, a, la.inv(a), rows(np.eye(n)))
    told("qr", lambda x, q, r: (q @ r - x, x), a, *la.qr(a))
    told("qr, tall: orthogonal", lambda q: (q.T @ q - jnp.eye(k), jnp.eye(k)), la.qr(tall)[0])
    x = la.lstsq(tall, many)[0]
    told("lstsq", lambda m, y, z: (m.T @ (m @ y - z), jnp.linalg.norm(m) ** 2), tall, x, many)
    told("svd", lambda m, u, s, v: ((u * s) @ v - m, m), a, *la.svd(a, False))
    told("polar", lambda m, u, h: (u @ h - m, m), a, *la.polar(a))
    values, vectors = la.eigh(low)
    told("eigh", lambda m, w, v: (m @ v - v * w, m), low, values, vectors)
    values, vectors = la.eigh(low, spd)
    told("eigh(a, b)", lambda m, o, w, v: (m @ v - o @ v * w, m), low, spd, values, vectors)


if __name__ == "__main__":
    NAME = sys.argv[1]
    if NAME != "linalg":
        lockstep.initialize()
    globals()[NAME]()
