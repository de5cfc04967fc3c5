"""Correct programs that a comparison of the processes' calls might take for a divergence.

    sound.py CACHE_FOLDER [strict | gloo]      each process prints "finished"

CACHE_FOLDER/0 is the persistent compilation cache of process 0, and so on; "" is none.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()
ME = jax.process_index()
LOCAL = jax.local_device_count()
DEVICES = np.array(jax.devices())
RANKS = DEVICES.size
ROUNDS = 30


def over(mesh: Mesh, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    spec = P(mesh.axis_names)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped)


def rows(mesh: Mesh, width: int = 64) -> jax.Array:
    sharding = NamedSharding(mesh, P(mesh.axis_names))
    shape = (mesh.devices.size, width)
    return jax.make_array_from_callback(shape, sharding, lambda i: np.ones((1, width), "float32"))


def check(array: jax.Array, expected: float) -> None:
    for shard in array.addressable_shards:
        assert (np.asarray(shard.data) == expected).all(), (shard.data, expected)


ALL = Mesh(DEVICES, ("all",))
GRID = Mesh(DEVICES.reshape(-1, LOCAL), ("process", "local"))


def several_cliques() -> None:
    both = over(GRID, lambda x: lax.psum(lax.psum(x, "process") + lax.psum(x, "local"), "process"))
    total = over(ALL, lambda x: lax.psum(x, "all"))
    processes = RANKS // LOCAL
    for _ in range(ROUNDS):
        check(both(rows(GRID)), processes * (processes + LOCAL))
        check(total(rows(ALL)), RANKS)


def asynchronous() -> None:
    """Many executions in flight; what each process does in between is its own affair."""
    total = over(ALL, lambda x: lax.psum(x, "all") / RANKS)
    local = jax.jit(lambda x: (x @ x).sum())
    x = rows(ALL)
    for step in range(ROUNDS):
        x = total(x)
        if step % (ME + 2) == 0:
            # XLA's threads are few: local work behind collectives that wait may never get one.
            x.block_until_ready()
            local(jnp.ones((50 + 10 * ME, 50 + 10 * ME))).block_until_ready()
    check(x, 1)


def threads() -> None:
    """Each thread has a clique of its own: a device of each process."""

    def work(mesh: Mesh) -> None:
        try:
            total = over(mesh, lambda x: lax.psum(x, "pair"))
            for _ in range(ROUNDS):
                check(total(rows(mesh)), mesh.devices.size)
        except BaseException as error:
            failed.append(error)

    failed: list[BaseException] = []
    meshes = [Mesh(column, ("pair",)) for column in DEVICES.reshape(-1, LOCAL).T]
    running = [threading.Thread(target=work, args=(mesh,)) for mesh in meshes]
    for thread in running[:: 1 if ME == 0 else -1]:
        thread.start()
    for thread in running:
        thread.join()
    if failed:
        raise failed[0]


def traced_from_another_line() -> None:
    """JAX numbers a program by where it was traced, too."""
    total = over(ALL, lambda x: lax.psum(5 * x, "all"))
    for _ in range(ROUNDS):
        if ME == 0:
            check(total(rows(ALL)), 5 * RANKS)
        else:
            check(total(rows(ALL)), 5 * RANKS)


def through_pmap() -> None:
    total = jax.pmap(lambda x: lax.psum(x, "device"), axis_name="device")
    for width in (1, 5, 1):
        check(total(jnp.ones((LOCAL, width))), RANKS)


def caches_cleared_by_one() -> None:
    total = over(ALL, lambda x: lax.psum(x, "all"))
    for step in range(6):
        if step == 3 and ME == 0:
            jax.clear_caches()
        check(total(rows(ALL)), RANKS)


def other_programs_first() -> None:
    """Processes that compile other local programs, and another number of them, before."""
    for i in range(5 * ME):
        jax.jit(lambda x, i=i: x + i)(jnp.ones(3 + i)).block_until_ready()
    check(over(ALL, lambda x: lax.psum(3 * x, "all"))(rows(ALL)), 3 * RANKS)


def one_function_many_shapes() -> None:
    total = over(ALL, lambda x: lax.psum(x, "all"))
    for width in (1, 7, 64, 7, 1, 1000, 1):
        check(total(rows(ALL, width)), RANKS)


def pairs_in_opposite_order() -> None:
    """Four processes in a circle of pairs: one turns the order round, and no wait is in vain.

    It traces its calls at a line of its own, so that its pairs compare programs while others wait.
    """
    if RANKS != 4 * LOCAL:
        return
    square = Mesh(DEVICES[[0, 3 * LOCAL, 2 * LOCAL, LOCAL]].reshape(2, 2), ("x", "y"))
    for _ in range(3):
        along_x = over(square, lambda x: lax.psum(x, "x"))
        along_y = over(square, lambda x: lax.psum(x, "y"))
        if ME == 1:
            check(along_y(rows(square)), 2)
            check(along_x(rows(square)), 2)
        else:
            check(along_x(rows(square)), 2)
            check(along_y(rows(square)), 2)


def many_under_way() -> None:
    """More than XLA lets be in flight, and none of them is waited for."""
    total = over(ALL, lambda x: lax.psum(x, "all") / RANKS)
    x = rows(ALL)
    for _ in range(200):
        x = total(x)
    check(x, 1)


def slow_process() -> None:
    """The others wait, long enough for the watchdog to look more than once."""
    total = over(ALL, lambda x: lax.psum(x, "all"))
    for late in range(RANKS // LOCAL):
        if late == ME:
            time.sleep(1.5)
        check(total(rows(ALL)), RANKS)


def permutes() -> None:
    """Only some ranks take part, and each in another place of its program's order."""
    pairs = [(0, RANKS - 1)]
    one_way = over(ALL, lambda x: lax.ppermute(x, "all", pairs))
    back = over(ALL, lambda x: lax.ppermute(x, "all", [(b, a) for a, b in pairs]))
    for _ in range(ROUNDS):
        one_way(rows(ALL)).block_until_ready()
        back(rows(ALL)).block_until_ready()


def main(cache: str, how: str = "") -> None:
    if cache:
        jax.config.update("jax_compilation_cache_dir", str(Path(cache, str(ME))))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    several_cliques()
    asynchronous()
    if how != "strict":  # which wants each call on the same line in all processes
        traced_from_another_line()
    threads()
    through_pmap()
    caches_cleared_by_one()
    other_programs_first()
    one_function_many_shapes()
    permutes()
    if how != "gloo":  # over which whole programs are compared, and not their collectives
        pairs_in_opposite_order()
    many_under_way()
    slow_process()
    print("finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
