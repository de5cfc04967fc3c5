"""Local and global devices: what one process holds, and what the whole program holds.

    lockstep run -n 2 -d 4 examples/devices.py

Every process runs this same file. `jax.devices()` is the same list everywhere; only the devices in
`jax.local_devices()` hold data that this process can read.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def main() -> None:
    jax.distributed.initialize()
    process, processes = jax.process_index(), jax.process_count()

    print(f"process {process} of {processes}")
    print(f"local devices: {len(jax.local_devices())} of {len(jax.devices())}")
    print("their ids:", *(device.id for device in jax.local_devices()))

    assert jax.device_count() == processes * jax.local_device_count()
    assert [d for d in jax.devices() if d.process_index == process] == jax.local_devices()

    # A global array has one shape on every process, but each process holds its own shards only.
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    whole = np.arange(2 * jax.device_count())
    array = jax.device_put(whole, NamedSharding(mesh, P("x")))
    held = [shard.data.tolist() for shard in array.addressable_shards]
    print(f"global shape {array.shape}, shards held here: {held}")
    assert array.shape == whole.shape
    assert not array.is_fully_addressable
    assert len(held) == jax.local_device_count()

    # Reading all of it would need the other processes' shards: JAX refuses rather than communicate.
    try:
        np.asarray(array)
    except RuntimeError as error:
        print(f"np.asarray refuses: {str(error)[:68]}...")
    else:
        raise AssertionError("an array of several processes was read whole by one of them")


if __name__ == "__main__":
    main()
