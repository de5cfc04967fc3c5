"""Collectives between hosts, compared with NumPy; then, in one process, the fault of argv[1].

argv[2], where it is given, is the number of elements that each device adds meanwhile.
"""

import os
import signal
import sys
import time

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

jax.distributed.initialize()
jax.config.update("jax_num_cpu_devices", 2)
fault = sys.argv[1]
length = int(sys.argv[2]) if len(sys.argv) > 2 else 1
culprit = jax.process_index() == 1
count = jax.device_count()
mesh = jax.make_mesh((count,), ("x",))
rows, everywhere = PartitionSpec("x"), PartitionSpec()


def over_all(body, out=rows):
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=out, check_vma=False))


def spread(values):
    where = NamedSharding(mesh, rows)
    return jax.make_array_from_callback(values.shape, where, lambda index: values[index])


def check(body, values, wanted, out=rows):
    for shard in over_all(body, out)(spread(values)).addressable_shards:
        np.testing.assert_array_equal(shard.data, wanted[shard.index])


def check_all(length):
    values = np.arange(count * count * length, dtype=np.float32).reshape(count * count, length) % 97
    blocks = values.reshape(count, count, length)
    total = blocks.sum(0)
    check(lambda a: jax.lax.psum(a, "x"), values, total, everywhere)
    check(lambda a: jax.lax.all_gather(a, "x", tiled=True), values, values, everywhere)
    check(lambda a: jax.lax.psum_scatter(a, "x", tiled=True), values, total)
    turned = blocks.swapaxes(0, 1).reshape(values.shape)
    check(lambda a: jax.lax.all_to_all(a, "x", 0, 0, tiled=True), values, turned)
    shift = [(i, (i + 1) % count) for i in range(count)]
    shifted = np.roll(blocks, 1, 0).reshape(values.shape)
    check(lambda a: jax.lax.ppermute(a, "x", shift), values, shifted)


for rows_each in (1, 1000, 100_003) if fault == "none" else (1,):
    check_all(rows_each)
print("pid", os.getpid(), flush=True)
print("checked", jax.config.values["jax_cpu_collectives_implementation"], flush=True)

total = over_all(lambda a: jax.lax.psum(a, "x"), everywhere)
twice = over_all(lambda a: 2 * jax.lax.psum(a, "x"), everywhere)


def be_stuck():
    time.sleep(60)


try:
    for step in range(10**9):
        if step == 20 and culprit and fault not in ("none", "forever"):
            print("planted", time.monotonic(), flush=True)
            if fault == "fork and kill" and os.fork() == 0:
                print("child", os.getpid(), flush=True)
                time.sleep(60)
                os._exit(0)
            if fault in ("kill", "fork and kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "raise":
                raise RuntimeError("no more of this")
            if fault == "exit":
                sys.exit(0)
            if fault == "dtype":
                total(spread(np.ones(count, np.int32)))
            if fault == "program":
                twice(spread(np.ones(count, np.float32)))
            if fault == "argument":
                everywhere_too = NamedSharding(mesh, everywhere)
                jax.jit(lambda a: a, out_shardings=everywhere_too)(spread(np.ones(count)))
            if fault == "stuck":
                be_stuck()
            if fault == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            if fault == "line":
                total(spread(np.ones(count, np.float32)))
        if step == 40 and fault == "none":
            break
        added = total(spread(np.ones(count * length, np.float32)))
        assert (np.asarray(added) == count).all()
        print("step", step, flush=True)
        time.sleep(0.02)
except (jax.errors.JaxRuntimeError, ValueError) as error:
    print("raised", time.monotonic(), error, flush=True)
    sys.exit(3)
