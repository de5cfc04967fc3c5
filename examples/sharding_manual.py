"""Manual sharding: `shard_map` runs one function per device, on that device's shard.

    lockstep run -n 2 -d 4 examples/sharding_manual.py

Inside the function every shape is a shard's shape, and nothing is communicated but what the program
asks for by name: here an all-gather, a reduce-scatter and a permute over the axis of devices.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def per_device(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    print(f"per-device shape while tracing: {x.shape}")
    devices = jax.lax.axis_size("device")
    gathered = jax.lax.all_gather(x, "device", tiled=True)
    scattered = jax.lax.psum_scatter(gathered, "device", tiled=True)
    ring = [(source, (source + 1) % devices) for source in range(devices)]
    shifted = jax.lax.ppermute(x, "device", ring)
    return gathered.sum(keepdims=True), scattered, shifted


def main() -> None:
    jax.distributed.initialize()
    devices = jax.device_count()
    mesh = jax.make_mesh((devices,), ("device",), axis_types=(AxisType.Auto,))
    host = np.arange(2 * devices, dtype=np.float32)
    x = jax.device_put(host, NamedSharding(mesh, P("device")))

    run = functools.partial(jax.shard_map, mesh=mesh, in_specs=P("device"))
    totals, scattered, shifted = jax.jit(run(per_device, out_specs=P("device")))(x)

    print(f"global shape {x.shape}, shard shape {x.addressable_shards[0].data.shape}")
    print(f"all-gather, then sum:  {[float(s.data[0]) for s in totals.addressable_shards]}")
    print(f"reduce-scatter:        {[s.data.tolist() for s in scattered.addressable_shards]}")
    print(f"shifted by one device: {[s.data.tolist() for s in shifted.addressable_shards]}")

    # Every device gathered the same array, so their sum is the array times the number of devices.
    for shard in totals.addressable_shards:
        assert float(shard.data[0]) == host.sum()
    for shard in scattered.addressable_shards:
        np.testing.assert_array_equal(shard.data, devices * host[shard.index])
    for shard in shifted.addressable_shards:
        np.testing.assert_array_equal(shard.data, np.roll(host, 2)[shard.index])


if __name__ == "__main__":
    main()
