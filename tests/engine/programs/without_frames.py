"""Groups of devices with a jaxlib whose frames nobody can read: the first argument says which.

Where they cannot be known, each process that asks prints its error, and no number.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep
from lockstep import _jax_compat

_jax_compat.device_id_bytes = lambda: 0  # what it would be for a jaxlib that is not known

jax.distributed.initialize()

DEVICES = jax.devices()
N = len(DEVICES)
X = np.arange(N * 6, dtype=np.int32).reshape(N, 6) ** 2


def line(devices: Sequence[Any] = DEVICES) -> Mesh:
    return Mesh(np.array(devices), ("i",))


def grid() -> Mesh:
    return Mesh(np.array(DEVICES).reshape(2, -1), ("x", "y"))


def mapped(function: Callable[..., Any], mesh: Mesh, out: Any) -> Any:
    spec = P(mesh.axis_names)
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False)
    )


def placed(mesh: Mesh) -> jax.Array:
    sharding = NamedSharding(mesh, P(mesh.axis_names))
    return jax.make_array_from_callback((mesh.size, 6), sharding, lambda at: X[: mesh.size][at])


def summed(mesh: Mesh, *axes: str) -> Any:
    return jax.block_until_ready(mapped(lambda a: lax.psum(a, axes), mesh, P())(placed(mesh)))


def assert_equal(got: jax.Array, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape
    for shard in got.addressable_shards:
        np.testing.assert_array_equal(shard.data, wanted[shard.index])


def print_error_of(function: Callable[..., Any], *args: Any) -> None:
    try:
        function(*args)
    except jax.errors.JaxRuntimeError as error:
        print(str(error).partition("lockstep: ")[2])
    else:
        print("no error")


def work_on(mesh: Mesh) -> None:
    ring = [(i, (i + 1) % N) for i in range(N)]
    step = mapped(
        lambda a: (
            lax.ppermute(a, "i", ring),
            lax.psum(a, "i"),
            lax.all_gather(a, "i", tiled=True),
            lax.psum_scatter(jnp.tile(a, (N, 1)), "i", tiled=True),
            lax.all_to_all(jnp.tile(a, (N, 1)), "i", 0, 0, tiled=True),
        ),
        mesh,
        (P("i"), P(), P(), P("i"), P("i")),
    )
    for _ in range(3):
        moved, total, gathered, scattered, exchanged = step(placed(mesh))
        assert_equal(moved, np.roll(X, 1, axis=0))
        assert_equal(total, X.sum(0, keepdims=True))
        assert_equal(gathered, X)
        assert_equal(scattered, np.tile(X.sum(0), (N, 1)))
        assert_equal(exchanged, np.tile(X, (N, 1)))
    # Here the compiler chooses how the groups are spelled.
    assert_equal(jax.jit(lambda a: a.sum(0))(placed(mesh)), X.sum(0))
    print("right")


def all_devices() -> None:
    work_on(line())


def all_devices_backwards() -> None:
    work_on(line(DEVICES[::-1]))


def one_program_with_look_alikes() -> None:
    twice = mapped(lambda a: lax.psum(lax.psum(a, "y"), ("x", "y")), grid(), P())
    print_error_of(lambda: jax.block_until_ready(twice(placed(grid()))))


def another_group_later() -> None:
    summed(grid(), "x", "y")
    print_error_of(summed, grid(), "y")


def another_order_later() -> None:
    summed(line(), "i")
    print_error_of(summed, line([DEVICES[0], *DEVICES[:0:-1]]), "i")


def groups_of_some_devices() -> None:
    print_error_of(summed, grid(), "y")


def devices_of_one_process() -> None:
    if jax.process_index() == 0:
        print_error_of(summed, line(jax.local_devices()), "i")


def a_program_that_was_dropped() -> None:
    mesh = line(jax.local_devices())
    mapped(lambda a: lax.psum(a, "i"), mesh, P()).lower(placed(mesh)).compile()
    jax.clear_caches()
    gc.collect()
    print_error_of(summed, line(), "i")


def not_on_all_processes() -> None:
    if jax.process_index() == 0:
        print_error_of(summed, line(), "i")


globals()[sys.argv[1]]()
lockstep.barrier("all have asked", timeout=100)
