"""Data loaded per process: each process reads its own records, and together they are one array.

    lockstep run -n 2 -d 4 examples/process_local_data.py

No process ever holds the whole array. `jax.make_array_from_process_local_data` puts each process's
rows on its own devices, without communication.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

RECORDS = 16
FEATURES = 3


def load(records: range) -> np.ndarray:
    """Stands for reading these records from a file: shape [len(records), FEATURES]."""
    return np.stack([np.full(FEATURES, record, np.float32) for record in records])


def main() -> None:
    jax.distributed.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P("batch", None))

    each = RECORDS // jax.process_count()
    mine = range(jax.process_index() * each, (jax.process_index() + 1) * each)
    rows = load(mine)
    print(f"loaded records {mine.start} to {mine.stop - 1}: {rows.shape}")

    batch = jax.make_array_from_process_local_data(sharding, rows)
    print(f"global array: {batch.shape}, {len(batch.addressable_shards)} shards of it here")
    assert batch.shape == (RECORDS, FEATURES)
    for shard in batch.addressable_shards:
        np.testing.assert_array_equal(shard.data, load(range(RECORDS)[shard.index[0]]))

    mean = jax.jit(lambda x: jnp.mean(x, axis=0), out_shardings=NamedSharding(mesh, P()))(batch)
    print(f"mean over the records of all processes: {np.asarray(mean).tolist()}")
    np.testing.assert_allclose(mean, np.full(FEATURES, (RECORDS - 1) / 2))


if __name__ == "__main__":
    main()
