"""Computations over some of the devices and processes; needs three processes or more."""

from __future__ import annotations

import concurrent.futures
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from checks import assert_shards, check, line_mesh, mapped, run_all, sharded
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()

ME, PROCESSES = jax.process_index(), jax.process_count()
DEVICES = {p: [d for d in jax.devices() if d.process_index == p] for p in range(PROCESSES)}
LOCAL = jax.local_device_count()


def line(devices: list[Any]) -> Mesh:
    return Mesh(np.array(devices), ("i",))


def work_on(mesh: Mesh, seed: int = 0) -> None:
    """Four collectives over the mesh, with known results."""
    count = mesh.devices.size
    x = np.random.default_rng(seed).integers(0, 100, (count, count, 3))
    x = x.astype(np.int32)
    ring = [(i, (i + 1) % count) for i in range(count)]
    function = mapped(
        lambda a: (
            lax.psum(a, "i"),
            lax.all_gather(a, "i", tiled=True),
            lax.ppermute(a, "i", ring),
            lax.all_to_all(a[0], "i", 0, 0)[None],
        ),
        mesh,
        P("i"),
        (P("i"), P(), P("i"), P("i")),
    )
    total, rows, moved, exchanged = function(sharded(x, mesh, P("i")))
    assert_shards(total, np.broadcast_to(x.sum(0, dtype=np.int32), x.shape), str(mesh))
    assert_shards(rows, x, str(mesh))
    assert_shards(moved, np.roll(x, 1, axis=0), str(mesh))
    assert_shards(exchanged, x.swapaxes(0, 1), str(mesh))


@check
def first_and_last_process_while_the_others_do_something_else() -> None:
    if ME in (0, PROCESSES - 1):
        work_on(line(DEVICES[0] + DEVICES[PROCESSES - 1]))
        work_on(line(DEVICES[PROCESSES - 1] + DEVICES[0]))
    else:
        time.sleep(0.2)
        assert float(jnp.arange(10.0).sum()) == 45
    work_on(line_mesh())


@check
def every_pair_of_processes_in_turn() -> None:
    for a in range(PROCESSES):
        for b in range(a + 1, PROCESSES):
            if ME in (a, b):
                work_on(line(DEVICES[a] + DEVICES[b]), seed=a * PROCESSES + b)


@check
def one_device_of_each_process() -> None:
    for local in range(LOCAL):
        work_on(line([DEVICES[p][local] for p in range(PROCESSES)]))


@check
def uneven_numbers_of_devices() -> None:
    some = [d for p in range(PROCESSES) for d in DEVICES[p][: 1 if p == 0 else LOCAL]]
    work_on(line(some))
    work_on(line(some[::-1]))


@check
def the_own_devices_alone() -> None:
    work_on(line(DEVICES[ME]), seed=ME)
    work_on(line(DEVICES[ME][:1]), seed=ME)


@check
def disjoint_meshes_from_several_threads() -> None:
    def many(mesh: Mesh, seed: int) -> None:
        x = np.full((mesh.devices.size, 50), seed, np.float32)
        function = mapped(
            lambda a: lax.psum(lax.ppermute(a, "i", [(0, 1), (1, 0)]), "i"), mesh, P("i"), P("i")
        )
        argument = sharded(x, mesh, P("i"))
        results = [function(argument * k) for k in range(40)]
        for k, result in enumerate(results):
            assert_shards(result, np.full_like(x, 2 * seed * k), f"thread {seed}, step {k}")

    meshes = [line([DEVICES[p][local] for p in range(PROCESSES)]) for local in range(LOCAL)]
    with concurrent.futures.ThreadPoolExecutor(len(meshes)) as pool:
        for result in [pool.submit(many, mesh, i + 1) for i, mesh in enumerate(meshes)]:
            result.result(timeout=60)


@check
def what_jax_offers_between_processes() -> None:
    multihost_utils.sync_global_devices("here")
    assert multihost_utils.broadcast_one_to_all(np.int32(ME + 7)) == 7
    rows = multihost_utils.process_allgather(np.array([ME, 10 * ME]))
    assert rows.tolist() == [[p, 10 * p] for p in range(PROCESSES)]
    multihost_utils.assert_equal(np.arange(3), "the same on all processes")


run_all()
