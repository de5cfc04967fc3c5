"""What other tools take for the same: all-reduces by mpi4jax, calls of functions by Ray.

    lockstep run -n 2 --auto-init benchmarks/other_tools.py all-reduce lockstep
    mpirun -n 2 python benchmarks/other_tools.py all-reduce mpi4jax
    python benchmarks/other_tools.py calls lockstep
    python benchmarks/other_tools.py calls ray

All-reduces of float32 run in a compiled loop, one device a process; the median and quartiles of 15
loops. A call is that of a function on two processes which import JAX and return a number: the first
call with the start of the processes, then the median of 200. Ray's processes share no JAX job.
Other tools need environments of their own: ``pip install mpi4jax mpich``, ``pip install ray``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
LOOPS = 15
CALLS = 200


def by_lockstep() -> tuple[int, Callable[[Any, int], Callable[[], Any]]]:
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((jax.device_count(),), ("x",))

    def prepare(values: Any, times: int) -> Callable[[], Any]:
        def loop(a: Any) -> Any:
            return jax.lax.fori_loop(0, times, lambda _, b: jax.lax.psum(b, "x") / 2, a)

        run = jax.jit(
            jax.shard_map(loop, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        )
        rows = jax.NamedSharding(mesh, P("x"))
        x = jax.make_array_from_process_local_data(rows, np.asarray(values))
        return lambda: run(x).block_until_ready()

    return jax.process_index(), prepare


def by_mpi4jax() -> tuple[int, Callable[[Any, int], Callable[[], Any]]]:
    import jax
    import jax.numpy as jnp
    import mpi4jax  # pyright: ignore[reportMissingImports]
    from mpi4py import MPI  # pyright: ignore[reportMissingImports]

    def prepare(values: Any, times: int) -> Callable[[], Any]:
        def body(_: int, b: Any) -> Any:
            return mpi4jax.allreduce(b, op=MPI.SUM, comm=MPI.COMM_WORLD) / 2

        run = jax.jit(lambda a: jax.lax.fori_loop(0, times, body, a))
        x = jnp.asarray(values)
        return lambda: run(x).block_until_ready()

    return MPI.COMM_WORLD.Get_rank(), prepare


def all_reduce(tool: str) -> None:
    import numpy as np

    rank, prepare = {"lockstep": by_lockstep, "mpi4jax": by_mpi4jax}[tool]()
    for size in SIZES:
        times = max(3, min(1000, (32 << 20) // size))
        run = prepare(np.ones(size // 4, np.float32), times)
        run()
        found = []
        for _ in range(LOOPS):
            start = time.perf_counter()
            run()
            found.append((time.perf_counter() - start) / times * 1e6)
        low, middle, high = statistics.quantiles(found, n=4)
        if rank == 0:
            print(f"{tool:<10}{size:>10} B {middle:>10.2f} us ({low:.2f}-{high:.2f})", flush=True)


def number() -> int:
    import jax

    return len(jax.local_devices())


def calls(tool: str) -> None:
    start = time.perf_counter()
    if tool == "lockstep":
        import lockstep

        pool = lockstep.Pool(n=2, devices=1)
        call: Callable[[], Any] = lambda: pool.run(number)  # noqa: E731
    else:
        import ray  # pyright: ignore[reportMissingImports]

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

        class Worker:
            def run(self) -> int:
                return number()

        workers = [ray.remote(Worker).remote() for _ in range(2)]
        call = lambda: ray.get([worker.run.remote() for worker in workers])  # noqa: E731
    call()
    first, found = time.perf_counter() - start, []
    for _ in range(CALLS):
        begun = time.perf_counter()
        call()
        found.append((time.perf_counter() - begun) * 1e3)
    low, middle, high = statistics.quantiles(found, n=4)
    print(f"{tool}: the first call {first:.2f} s, then {middle:.2f} ms ({low:.2f}-{high:.2f})")


if __name__ == "__main__":
    {"all-reduce": all_reduce, "calls": calls}[sys.argv[1]](sys.argv[2])
