"""A column-sharded matrix turned host-replicated: a whole copy in every process.

    lockstep run -n 2 -d 4 examples/host_replicated.py

The mesh is the grid of processes x local devices. The matrix starts with its columns split over all
eight devices, so that each process holds half of it. The constraint asks for columns split over the
devices of a process only, which leaves every process with all columns.
"""

from __future__ import annotations

import lockstep  # isort: skip  # before jax

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def show(title: str, array: jax.Array) -> None:
    assert isinstance(array.sharding, NamedSharding)
    print(f"{title}: {array.sharding.spec}")
    for shard in array.addressable_shards:
        columns = shard.index[1]
        rows = " / ".join(" ".join(f"{v:2g}" for v in row) for row in np.asarray(shard.data))
        print(f"  device {shard.device.id:4}: columns {columns.start or 0}:{columns.stop} = {rows}")


def columns_held(array: jax.Array) -> set[int]:
    width = array.shape[1]
    return {c for shard in array.addressable_shards for c in range(width)[shard.index[1]]}


def main() -> None:
    jax.distributed.initialize()
    mesh = lockstep.process_mesh(("process", "device"))
    split = NamedSharding(mesh, P(None, ("process", "device")))
    host_replicated = NamedSharding(mesh, P(None, "device"))

    matrix = np.arange(16, dtype=np.float32).reshape(2, 8)
    columns = jax.device_put(matrix, split)
    show("column-sharded", columns)
    assert len(columns_held(columns)) == 8 // jax.process_count()

    @jax.jit
    def replicate(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, host_replicated)

    copy = replicate(columns)
    show("host-replicated", copy)
    assert columns_held(copy) == set(range(8))
    for shard in copy.addressable_shards:
        np.testing.assert_array_equal(shard.data, matrix[shard.index])
    print("this process holds every column")


if __name__ == "__main__":
    main()
