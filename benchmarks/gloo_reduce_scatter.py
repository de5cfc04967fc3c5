"""Counts wrong results of `psum_scatter`, which gloo returns without an error (jax-ml/jax#40830).

    lockstep run -n 2 --collectives gloo benchmarks/gloo_reduce_scatter.py --mib 32 --executions 60
    lockstep run -n 2 benchmarks/gloo_reduce_scatter.py --mib 32 --executions 60

Every execution is checked element by element; the numbers are small integers, so sums are exact.
Exits with status 1 when a process has seen a wrong result.
"""

from __future__ import annotations

import argparse
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def pattern(size: int, dtype: np.dtype) -> np.ndarray:
    ramp = np.arange(size) % 1021
    return (ramp + 1j * (ramp % 7)).astype(dtype) if dtype.kind == "c" else ramp.astype(dtype)


class Scatter:
    """One reduce-scatter of `mib` MiB a device, alone or several times inside a `lax.scan`."""

    def __init__(self, mib: float, dtype: np.dtype, steps: int) -> None:
        devices = np.array(sorted(jax.devices(), key=lambda d: d.id))
        mesh = Mesh(devices, ("x",))
        ranks = devices.size
        size = int(mib * 2**20 / dtype.itemsize) // ranks * ranks
        each = pattern(size, dtype)
        sharding = NamedSharding(mesh, P("x"))

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            return each + (index[0].start or 0) // size

        self.x = jax.make_array_from_callback((ranks * size,), sharding, part)
        self.expected = ranks * each + ranks * (ranks - 1) // 2
        self.steps = max(steps, 1)

        def body(x: jax.Array) -> jax.Array:
            if steps == 0:
                return lax.psum_scatter(x, "x", tiled=True)[None]
            counts = jnp.arange(steps, dtype=x.dtype)
            return lax.scan(lambda c, i: (c, lax.psum_scatter(x + i, "x", tiled=True)), 0, counts)[
                1
            ]

        mapped = jax.shard_map(
            body, mesh=mesh, in_specs=P("x"), out_specs=P(None, "x"), check_vma=False
        )
        self.function = jax.jit(mapped)
        self.ranks = ranks

    def wrong(self) -> int:
        """Executes once; returns how many of the steps came out wrong on this process."""
        y = self.function(self.x)
        bad = set()
        for shard in y.addressable_shards:
            part = self.expected[shard.index[1]]
            for step, got in enumerate(np.asarray(shard.data)):
                if not np.array_equal(got, part + self.ranks * step):
                    bad.add(step)
        return len(bad)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=float, nargs="+", default=[2, 8, 32], help="a device")
    parser.add_argument("--dtype", nargs="+", default=["float64", "complex128"])
    parser.add_argument("--executions", type=int, default=40, help="of each size and type")
    parser.add_argument("--scan", type=int, default=0, help="steps of a lax.scan; 0: no scan")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize()
    total = 0
    for dtype in map(np.dtype, arguments.dtype):
        for mib in arguments.mib:
            start = time.perf_counter()
            scatter = Scatter(mib, dtype, arguments.scan)
            rounds = -(-arguments.executions // scatter.steps)
            wrong = sum(scatter.wrong() for _ in range(rounds))
            print(
                f"process {jax.process_index()}: {dtype} {mib:g} MiB a device: {wrong} of "
                f"{rounds * scatter.steps} executions wrong, {time.perf_counter() - start:.1f} s",
                flush=True,
            )
            total += wrong
    multihost_utils.sync_global_devices("every process has printed its counts")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
