"""Gathers arrays of known bytes, and tells an eavesdropper on argv[1] when that is over."""

import socket
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

jax.distributed.initialize()
mine = np.arange(1000, dtype=np.float32) + jax.process_index()
for _ in range(20):
    both = multihost_utils.process_allgather(mine)
    np.testing.assert_array_equal(both, [both[0], both[0] + 1])
print("gathered by", jax.config.values["jax_cpu_collectives_implementation"], flush=True)
if jax.process_index() == 0:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as teller:
        teller.sendto(b"gathered all", (sys.argv[1], 9))
