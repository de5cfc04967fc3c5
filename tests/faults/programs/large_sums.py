"""Sums large arrays, and says how many bytes each connection with another host has carried.

``large_sums.py ADDRESS...``: the addresses of the other hosts.
"""

import os
import socket
import struct
import sys

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("x",))
total = jax.jit(
    jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
)
for number in range(20):
    local = np.arange(1 << 20, dtype=np.float32)[None] % 1000 + jax.process_index() + number
    spread = jax.make_array_from_process_local_data(jax.NamedSharding(mesh, P("x")), local)
    want = sum(local + other - jax.process_index() for other in range(jax.process_count()))
    np.testing.assert_array_equal(total(spread).addressable_data(0), want)


def carried(fd: str) -> int:
    """Bytes that a connection with another host has carried, in the direction that it is for."""
    try:
        with socket.socket(fileno=os.dup(int(fd))) as connection:
            if connection.getpeername()[0] in sys.argv[1:]:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                return max(struct.unpack_from("QQ", info, 120))  # acknowledged, received
    except OSError:
        pass  # no connection
    return 0


print("bytes", *filter(None, map(carried, os.listdir("/proc/self/fd"))), flush=True)
