"""Collectives of narrow types, written by hand and inserted by jit, against NumPy.

    python low_precision.py [--widen] [--dtypes float16,...]

Starts on whatever processes and devices it is given; prints one line a dtype.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

DTYPES = (
    "float16",
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
)
Model = Callable[[np.ndarray], np.ndarray]
Case = tuple[Any, Model]
"""A jitted function and what it computes."""


def _by_hand(mesh: jax.sharding.Mesh) -> dict[str, Case]:
    """Each takes an array [2 D, 4 D] sharded by rows over D devices, and returns one like it."""
    devices = mesh.size
    ring = [(i, (i + 1) % devices) for i in range(devices)]

    def mapped(f: Callable) -> Any:
        return jax.jit(
            jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        )

    def blocks(x: np.ndarray) -> np.ndarray:
        return x.reshape(devices, 2, -1)

    def reduced(ufunc: np.ufunc) -> Model:
        return lambda x: np.tile(ufunc.reduce(blocks(x), axis=0), (devices, 1))

    def scattered(x: np.ndarray) -> np.ndarray:
        return np.concatenate(np.split(blocks(x).sum(0), devices, axis=1))

    def exchanged(x: np.ndarray) -> np.ndarray:
        columns = np.stack(np.split(blocks(x), devices, axis=2))  # [to, from, 2, columns]
        return np.concatenate([np.concatenate(list(c), axis=1) for c in columns])

    return {
        "psum": (mapped(lambda x: lax.psum(x, "x")), reduced(np.add)),
        "pmax": (mapped(lambda x: lax.pmax(x, "x")), reduced(np.maximum)),
        "pmin": (mapped(lambda x: lax.pmin(x, "x")), reduced(np.minimum)),
        "psum of two": (
            mapped(lambda x: lax.psum((x, x.astype(jnp.float32)), "x")[0]),
            reduced(np.add),
        ),
        "all_gather": (
            mapped(lambda x: lax.all_gather(x, "x", tiled=True)),
            lambda x: np.tile(x, (devices, 1)),
        ),
        "psum_scatter": (
            mapped(lambda x: lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True)),
            scattered,
        ),
        "all_to_all": (mapped(lambda x: lax.all_to_all(x, "x", 1, 1, tiled=True)), exchanged),
        "ppermute": (mapped(lambda x: lax.ppermute(x, "x", ring)), lambda x: np.roll(x, 2, 0)),
        "psum in a loop": (
            mapped(lambda x: lax.fori_loop(0, 3, lambda i, c: lax.pmax(c, "x"), x)),
            reduced(np.maximum),
        ),
    }


def _by_jit(mesh: jax.sharding.Mesh) -> dict[str, Case]:
    whole, rows, columns = (NamedSharding(mesh, spec) for spec in (P(), P("x"), P(None, "x")))

    def total(x: jax.Array) -> jax.Array:  # jnp.sum would widen it
        return lax.reduce(x, jnp.zeros((), x.dtype), lax.add, (0,))

    return {
        "sum": (jax.jit(total, out_shardings=whole), lambda x: x.sum(0)),
        "max": (jax.jit(lambda x: jnp.max(x, 0), out_shardings=whole), lambda x: x.max(0)),
        "replicate": (jax.jit(lambda x: x, out_shardings=whole), lambda x: x),
        "other axis": (jax.jit(lambda x: x, out_shardings=columns), lambda x: x),
        "roll": (
            jax.jit(lambda x: jnp.roll(x, 1, 0), out_shardings=rows),
            lambda x: np.roll(x, 1, 0),
        ),
        "contraction": (
            jax.jit(lambda x: _contract(x, x), out_shardings=whole),
            lambda x: x.T @ x,
        ),
        "contraction, scattered": (
            jax.jit(lambda x: _contract(x, x), out_shardings=rows),
            lambda x: x.T @ x,
        ),
    }


def _contract(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.dot_general(a, b, (((0,), (0,)), ((), ())))


def _values(devices: int) -> np.ndarray:
    """Numbers whose sums and products over all devices are exact in every dtype here."""
    shape = (2 * devices, 4 * devices)
    sparse = (np.add.outer(np.arange(shape[0]), np.arange(shape[1])) % (2 * devices)) < 2
    return sparse.astype(np.float32)


def check(name: str, dtype: np.dtype, mesh: jax.sharding.Mesh, case: Case) -> str:
    """Raises AssertionError when a shard differs; returns the compiled program."""
    program, model = case
    host = _values(mesh.size)
    narrow = host.astype(dtype)
    x = jax.make_array_from_callback(
        host.shape, NamedSharding(mesh, P("x")), lambda index: narrow[index]
    )
    compiled = program.lower(x).compile()
    y = compiled(x)
    expected = model(host)
    assert (y.dtype, y.shape) == (dtype, expected.shape), name
    for shard in y.addressable_shards:
        got = np.asarray(shard.data).astype(np.float32)
        np.testing.assert_array_equal(got, expected[shard.index], err_msg=f"{name} {dtype}")
    return compiled.as_text()


def check_bits(mesh: jax.sharding.Mesh) -> None:
    """Every bit pattern of float16, NaNs with their payloads too, survives an all-gather."""
    host = np.arange(65536, dtype=np.uint16).view(np.float16)
    x = jax.make_array_from_callback(
        host.shape, NamedSharding(mesh, P("x")), lambda index: host[index]
    )
    y = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))(x)
    got = np.asarray(y.addressable_shards[0].data).view(np.uint16)
    np.testing.assert_array_equal(got, host.view(np.uint16))


def check_derivatives(mesh: jax.sharding.Mesh) -> None:
    """Gradients, vmap and explicit sharding go through the same collectives."""
    host = _values(mesh.size).astype(np.float16)
    sharding = NamedSharding(mesh, P("x"))
    x = jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
    mapped = functools.partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P())
    total = mapped(lambda u: lax.psum((lax.psum(u, "x") * u).sum(), "x"))
    gradient = jax.jit(jax.grad(lambda v: total(v).astype(jnp.float32)))(x)
    sums = np.tile(host.reshape(mesh.size, 2, -1).sum(0), (mesh.size, 1))
    for shard in gradient.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), (2 * sums)[shard.index])
    each = jax.jit(jax.vmap(mapped(lambda u: lax.psum(u, "x")), in_axes=1, out_axes=1))(x)
    np.testing.assert_array_equal(np.asarray(each.addressable_shards[0].data), sums[:2])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--widen", action="store_true", help="register the pass over any collectives"
    )
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    arguments = parser.parse_args()
    if arguments.widen:
        from jax.extend import xla

        from lockstep.hlo.float16_pass import widen
        from lockstep.hlo.proto import HloProgram
        from lockstep.hlo.size_limits import COLLECTIVES

        xla.register_hlo_module_transformation(
            lambda module: widen(HloProgram(module, COLLECTIVES)), name="test", platforms="cpu"
        )
    if "LOCKSTEP_NUM_PROCESSES" in os.environ:
        jax.distributed.initialize()
    axis_types = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=axis_types)
    cases = _by_hand(mesh) | _by_jit(mesh)
    for name in arguments.dtypes.split(","):
        dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
        texts = [check(case, dtype, mesh, cases[case]) for case in cases]
        refused = [t for t in texts if re.search(r"f16\[[^=]* (all-reduce|all-gather|reduce-s)", t)]
        print(
            f"{name}: {len(cases)} right, {len(refused)} with float16 in a collective", flush=True
        )
    check_bits(mesh)
    check_derivatives(mesh)
    print("derivatives right", flush=True)


if __name__ == "__main__":
    main()
