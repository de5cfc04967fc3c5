"""How much memory `lockstep.gather`, `scatter` and `broadcast` take beside their results.

    lockstep run -n 2 benchmarks/transfer_memory.py gather
    lockstep run -n 2 -d 4 benchmarks/transfer_memory.py broadcast --mib 1024

Each process prints how much its resident memory grew at most, beside the result that stays there,
and what of that the C library has kept of freed memory (`malloc_trim` gives it back). A smaller
transfer runs first, so that compiling is no part of it. One kind in a run: freed memory of another
one would hide what is asked for.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep

COLUMNS = 256
MIB = 1 << 20


def status(field: str) -> float:
    """MiB, of /proc/self/status."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def trim() -> None:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def transfer(kind: str, rows: int, sharding: NamedSharding) -> tuple[Callable[[], Any], float]:
    """A call without arguments, and the MiB that its result takes on this process."""
    shape, whole = (rows, COLUMNS), rows * COLUMNS * 4 / MIB
    first = jax.process_index() == 0
    if kind in ("gather", "gather-all"):
        x = jax.jit(lambda: jnp.ones(shape), out_shardings=sharding)().block_until_ready()
        to = 0 if kind == "gather" else None
        return lambda: lockstep.gather(x, to=to), whole * (first or to is None)
    value = np.ones(shape, np.float32) if first else None
    if kind == "scatter":
        part = whole / jax.process_count()
        return lambda: lockstep.scatter(value, sharding).block_until_ready(), part
    return lambda: lockstep.broadcast(value).block_until_ready(), whole


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("gather", "gather-all", "scatter", "broadcast"))
    parser.add_argument("--mib", type=int, default=256, help="of the array")
    options = parser.parse_args()
    jax.distributed.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P("d"))
    rows = options.mib * MIB // (4 * COLUMNS)
    small, _ = transfer(options.kind, rows // 4, sharding)
    small()
    call, stays = transfer(options.kind, rows, sharding)
    trim()
    lockstep.barrier("ready")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before, begin = status("VmRSS"), time.perf_counter()
    result = call()
    seconds, most = time.perf_counter() - begin, status("VmHWM")
    trim()
    kept = status("VmRSS") - before
    print(
        f"{options.kind} of {options.mib} MiB: at most {most - before - stays:.0f} MiB beside the "
        f"result of {stays:.0f} MiB, {kept - stays:.0f} MiB after malloc_trim; {seconds:.2f} s",
        flush=True,
    )
    del result


if __name__ == "__main__":
    main()
