"""The checks of a job of two processes on each of two hosts.

lockstep run --hosts a:2,b:2 tests/data/hosts_job.py
"""

from __future__ import annotations

from typing import Any

import lockstep  # isort: skip
import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from lockstep import data

jax.distributed.initialize()
ME, COUNT = jax.process_index(), jax.process_count()
MESH = jax.make_mesh((2, COUNT // 2), ("host", "core"), axis_types=(AxisType.Auto,) * 2)
SPREAD = NamedSharding(MESH, P(("host", "core")))


def check_inspect() -> None:
    """What stays within a host is told from what goes between hosts, as the job is placed."""

    def sums(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.psum(x, "core"), lax.pmax(x, "host")

    mapped = jax.shard_map(
        sums, mesh=MESH, in_specs=P(("host", "core")), out_specs=(P("host"), P("core"))
    )
    x = jax.ShapeDtypeStruct((8, 4), np.float32, sharding=SPREAD)
    report = lockstep.inspect(mapped, x)
    reach = {row.axes.names: str(row.reach) for row in report.collectives}
    assert reach == {("core",): "within a host", ("host",): "between hosts"}, report
    assert "on 4 devices of 4 processes on 2 hosts" in str(report)


def seen(source: Any) -> list[int]:
    found = []
    for batch in data.batches(source, 8, SPREAD):
        values, mask = lockstep.gather((batch.rows, batch.mask), to=None)
        found += values[mask].tolist()
    return found


def check_batches() -> None:
    rows = np.arange(21, dtype=np.int32)
    assert seen(rows) == rows.tolist()
    mine = (np.int32(100 * ME + i) for i in range(3 + 2 * ME))
    assert sorted(seen(mine)) == [100 * p + i for p in range(COUNT) for i in range(3 + 2 * p)]


def check_equalize() -> None:
    assert list(data.equalize(range(3 + ME))) == [0, 1, 2]
    blocks = [np.ones((2, 1), np.float32)] * (1 + ME)
    assert len(list(data.equalize(blocks, "last"))) == COUNT


def check_transfers() -> None:
    want = np.arange(24, dtype=np.float32).reshape(8, 3)
    last = COUNT - 1  # on the other host
    x = lockstep.scatter(want if last == ME else None, SPREAD, last)
    got = lockstep.gather(x, to=0)
    assert got is None if ME else np.array_equal(got, want)
    assert np.array_equal(lockstep.gather(lockstep.broadcast(want), to=None), want)


CHECKS = {name: value for name, value in globals().items() if name.startswith("check_")}
if __name__ == "__main__":
    for name, check in CHECKS.items():
        check()
        print("passed", name, flush=True)
