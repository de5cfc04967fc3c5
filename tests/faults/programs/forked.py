"""A process forks in the middle of its work; the child tries a collective, the parent goes on."""

from __future__ import annotations

import os
import signal
import warnings

import jax
import jax.numpy as jnp

jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
ones = jnp.ones(jax.local_device_count())
print("before", float(total(ones)[0]), flush=True)
if jax.process_index() == 1:
    warnings.simplefilter("ignore")  # JAX warns of fork
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            print("child", float(total(ones)[0]), flush=True)
        except Exception as error:
            print("child raised", error, flush=True)
        os._exit(0)
    print("child ended", os.waitpid(child, 0)[1], flush=True)
print("after", float(total(ones)[0]), flush=True)
