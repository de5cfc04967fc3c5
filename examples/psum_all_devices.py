"""One sum over all devices of all processes, by `pmap` and by `shard_map`.

    lockstep run -n 2 -d 4 examples/psum_all_devices.py

Device number k contributes k + 1, so with 8 devices every one of them receives 1 + 2 + ... + 8.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def sum_by_pmap() -> jax.Array:
    """Each process passes the rows of its own devices; the axis spans every process."""
    first = jax.process_index() * jax.local_device_count()
    mine = jnp.arange(first + 1, first + 1 + jax.local_device_count(), dtype=jnp.float32)
    return jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")(mine)


def sum_by_shard_map() -> jax.Array:
    """Every process names the same global array; the mesh spans every process."""
    mesh = jax.make_mesh((jax.device_count(),), ("device",), axis_types=(AxisType.Auto,))
    whole = np.arange(1, jax.device_count() + 1, dtype=np.float32)
    array = jax.device_put(whole, NamedSharding(mesh, P("device")))
    total = jax.shard_map(
        lambda x: jax.lax.psum(x, "device"), mesh=mesh, in_specs=P("device"), out_specs=P()
    )
    return jax.jit(total)(array)


def main() -> None:
    jax.distributed.initialize()
    devices = jax.device_count()
    expected = devices * (devices + 1) / 2

    by_pmap = sum_by_pmap()
    print(f"pmap:      {[float(s.data.squeeze()) for s in by_pmap.addressable_shards]}")
    by_shard_map = sum_by_shard_map()
    print(f"shard_map: {[float(s.data.squeeze()) for s in by_shard_map.addressable_shards]}")

    for result in (by_pmap, by_shard_map):
        assert len(result.addressable_shards) == jax.local_device_count()
        assert all(float(s.data.squeeze()) == expected for s in result.addressable_shards)
    print(f"1 + 2 + ... + {devices} = {expected:g} on every local device, both ways")


if __name__ == "__main__":
    main()
