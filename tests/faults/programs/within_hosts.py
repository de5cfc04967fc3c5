"""Sums over the devices of each host alone; then, in process 1, the fault of argv[1]."""

import os
import signal
import sys
import time

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

jax.distributed.initialize()
fault = sys.argv[1]
culprit = jax.process_index() == 1
# The processes of a host follow each other.
mesh = jax.make_mesh((2, jax.device_count() // 2), ("host", "within"))
rows = PartitionSpec(("host", "within"))
where = NamedSharding(mesh, rows)
ones = np.ones(jax.device_count(), np.float32)
total = jax.jit(
    jax.shard_map(
        lambda a: jax.lax.psum(a, "within"),
        mesh=mesh,
        in_specs=rows,
        out_specs=PartitionSpec("host"),
    )
)
print("pid", os.getpid(), flush=True)
try:
    for step in range(10**9):
        if step == 20 and culprit:
            print("planted", time.monotonic(), flush=True)
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit(0)
        mine = jax.make_array_from_callback(ones.shape, where, lambda index: ones[index])
        assert total(mine).addressable_data(0)[0] == len(ones) // 2
        time.sleep(0.05)
except (jax.errors.JaxRuntimeError, ValueError) as error:
    print("raised", time.monotonic(), error, flush=True)
    sys.exit(3)
