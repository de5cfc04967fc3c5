"""The ways to write a program over all devices, and a process's resources after all of them."""

from __future__ import annotations

import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
from checks import assert_shards, check, mapped, run_all, sharded
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep
from lockstep.engine import bindings

lockstep.initialize()

N, LOCAL = jax.device_count(), jax.local_device_count()


@check
def process_mesh_is_processes_by_devices() -> None:
    mesh = lockstep.process_mesh()
    assert mesh.axis_names == ("process", "device")
    assert mesh.devices.shape == (jax.process_count(), LOCAL)
    for process, row in enumerate(mesh.devices):
        assert [d.process_index for d in row] == [process] * LOCAL
        assert [d.id for d in row] == sorted(d.id for d in row)
    named = lockstep.process_mesh(("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    assert named.axis_names == ("a", "b")
    assert named.axis_types == (AxisType.Explicit,) * 2


@check
def automatic() -> None:
    mesh = lockstep.process_mesh()
    a = np.arange(16.0 * 16, dtype=np.float32).reshape(16, 16) % 7
    x = sharded(a, mesh, P("process", "device"))

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        y = jax.lax.with_sharding_constraint(x @ x.T, NamedSharding(mesh, P("device", "process")))
        return (y - y.max()).sum(axis=0) + jnp.sort(x, axis=0)[0].sum()

    y = a @ a.T
    wanted = (y - y.max()).sum(axis=0) + np.sort(a, axis=0)[0].sum()
    got = jax.jit(step, out_shardings=NamedSharding(mesh, P()))(x)
    assert_shards(got, wanted)


@check
def explicit() -> None:
    mesh = lockstep.process_mesh(axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        a = np.arange(8.0 * 8, dtype=np.float32).reshape(8, 8)
        x = sharded(a, mesh, P("process", "device"))
        y = jax.jit(lambda x: jnp.sum(x * 2, axis=1))(x)
        assert jax.typeof(y).sharding.spec == P("process")
        assert_shards(y, (2 * a).sum(axis=1))


@check
def manual() -> None:
    mesh = lockstep.process_mesh()
    a = np.arange(8 * N, dtype=np.int32).reshape(8, N)

    def local(x: jax.Array) -> jax.Array:
        return lax.psum(x.sum(0), "device") + lax.axis_index("process")

    got = mapped(local, mesh, P(None, ("process", "device")), P("process"))(
        sharded(a, mesh, P(None, ("process", "device")))
    )
    rows = a.sum(0, dtype=np.int32).reshape(jax.process_count(), LOCAL).sum(1, dtype=np.int32)
    assert_shards(got, rows + np.arange(jax.process_count(), dtype=np.int32))


@check
def pmapped() -> None:
    first = jax.process_index() * LOCAL
    x = jnp.arange(first, first + LOCAL, dtype=jnp.float32)
    got = jax.pmap(lambda a: (lax.psum(a, "i"), lax.pmean(a, "i"), lax.axis_index("i")), "i")(x)
    total = N * (N - 1) / 2
    assert [float(v) for s in got[0].addressable_shards for v in s.data] == [total] * LOCAL
    assert [float(v) for s in got[1].addressable_shards for v in s.data] == [total / N] * LOCAL
    mine = [int(v) for s in got[2].addressable_shards for v in s.data]
    assert mine == list(range(first, first + LOCAL))


@check
def differentiated() -> None:
    mesh = lockstep.process_mesh()
    a = np.arange(1, N + 1, dtype=np.float32)
    x = sharded(a, mesh, P(("process", "device")))
    gradient = jax.jit(jax.grad(lambda v: (v.sum() ** 2) / 2))(x)
    assert_shards(gradient, np.full(N, a.sum(), np.float32))


@check
def a_second_initialize_only_checks() -> None:
    lockstep.initialize()
    lockstep.initialize(check=False)


@check
def a_second_job_in_the_same_processes() -> None:
    jax.distributed.shutdown()
    jax.clear_caches()
    jax.extend.backend.clear_backends()
    lockstep.initialize()
    before = bindings.counts()
    pmapped()
    assert bindings.counts()["all_reduce"] >= before["all_reduce"] + LOCAL


@check
def nothing_of_the_engine_is_in_the_file_system() -> None:
    with open("/proc/self/maps") as file:
        shared = [line for line in file if "memfd:" in line or "/dev/shm" in line]
    assert any("memfd:lockstep" in line for line in shared), "the engine maps no memory?"
    assert not any("/dev/shm" in line for line in shared), shared


run_all()
