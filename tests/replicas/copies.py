"""Arrays whose copies differ, made behind JAX's back."""

from __future__ import annotations

import ctypes
from typing import Any


def flip_bit(copy: Any, byte: int = 0, bit: int = 0) -> None:
    """Flips a bit in the memory of a device: ``copy`` is an array on that device alone."""
    memory = (ctypes.c_ubyte * copy.nbytes).from_address(copy.unsafe_buffer_pointer())
    memory[byte] ^= 1 << bit


def replicated(mesh: Any, values: Any, spec: Any = None) -> Any:
    """``values`` on every device of ``mesh``, each with memory of its own."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(mesh, spec or PartitionSpec())
    own = [
        jax.device_put(np.array(values[index]), device).copy()
        for device, index in sharding.addressable_devices_indices_map(values.shape).items()
    ]
    return jax.make_array_from_single_device_arrays(values.shape, sharding, own)
