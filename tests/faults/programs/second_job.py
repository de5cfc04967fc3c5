"""Two jobs, one after the other, in the same processes; process 1 is killed in the second one."""

import os
import signal

import jax
import jax.extend
import numpy as np
from jax.experimental import multihost_utils

mine = np.arange(3, dtype=np.float32)
for job in range(2):
    jax.distributed.initialize()
    mine = mine + jax.process_index() + 10 * job
    everybody = multihost_utils.process_allgather(mine)
    np.testing.assert_array_equal(everybody[jax.process_index()], mine)
    assert everybody[1, 0] == everybody[0, 0] + 1 + job
    print("checked", flush=True)
    if job == 0:
        jax.distributed.shutdown()
        jax.clear_caches()
        jax.extend.backend.clear_backends()

if jax.process_index() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    multihost_utils.process_allgather(mine)
except (ValueError, jax.errors.JaxRuntimeError) as error:
    print(f"raised {error}", flush=True)
