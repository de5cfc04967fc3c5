"""The smallest job there is: one process, two CPU devices, one sum through the engine.

``python -m lockstep.doctor.smoke`` prints one line of JSON: ``result``, ``expected``,
``engine_calls`` and ``seconds``.
"""

from __future__ import annotations

import json
import os
import time


def main() -> None:
    start = time.monotonic()
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
    import lockstep
    from lockstep.engine import bindings
    from lockstep.system import port_reservation

    with port_reservation.reserve() as port:
        lockstep.initialize(port_reservation.address(port), num_processes=1, process_id=0)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("d",))
    spec = PartitionSpec("d")
    total = jax.shard_map(
        lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=spec, out_specs=PartitionSpec()
    )
    values = np.arange(2.0 * jax.device_count(), dtype=np.float32)
    result = jax.jit(total)(jax.device_put(jnp.asarray(values), jax.NamedSharding(mesh, spec)))
    print(
        json.dumps(
            {
                "result": np.asarray(result).tolist(),
                "expected": values.reshape(-1, 2).sum(0).tolist(),
                "engine_calls": bindings.counts()["all_reduce"],
                "seconds": time.monotonic() - start,
            }
        )
    )


if __name__ == "__main__":
    main()
