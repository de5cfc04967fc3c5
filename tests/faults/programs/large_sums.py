"""Sums large arrays, and says how many of the engine's connections there are with other hosts.

``large_sums.py ADDRESS...``: the addresses of the other hosts.
"""

import os
import sys
from pathlib import Path

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


def is_engine(line: str) -> bool:
    """Whether a line of /proc/net/tcp is of a connection with another host, and not JAX's."""
    _, own, peer, state, *_ = line.split()
    digits, _, port = peer.partition(":")
    address = ".".join(str(byte) for byte in reversed(bytes.fromhex(digits)))
    of_jax = int(os.environ["MASTER_PORT"]) in (int(port, 16), int(own.partition(":")[2], 16))
    return state == "01" and address in sys.argv[1:] and not of_jax


lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
print("connections", sum(map(is_engine, lines)), flush=True)
