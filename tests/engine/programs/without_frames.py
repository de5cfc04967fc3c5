"""A collective with a jaxlib whose communicator requests cannot be read: prints its error."""

from __future__ import annotations

import jax
import numpy as np

import lockstep
from lockstep import _jax_compat

_jax_compat.device_id_bytes = lambda: 0  # the engine then finds no key of a group

jax.distributed.initialize()

x = np.ones((jax.local_device_count(), 3), np.float32)
try:
    jax.block_until_ready(jax.pmap(lambda a: jax.lax.psum(a, "i"), "i")(x))
except jax.errors.JaxRuntimeError as error:
    print(str(error).partition("lockstep: ")[2])
else:
    print("no error")
lockstep.barrier("all have tried", timeout=100)
