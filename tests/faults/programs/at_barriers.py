"""Programs with a barrier: ``at_barriers.py NAME [LIBRARY]``. ``# LINE name`` marks lines.

The first, up to `one_side_dispatches`, can never end; those below it look like them for some
seconds, and print "finished". LIBRARY is native_sleep.cc, for those that call it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import lockstep

jax.distributed.initialize()
ME = jax.process_index()
ROWS = NamedSharding(Mesh(np.array(jax.devices()), ("all",)), P("all"))
X = jax.make_array_from_callback(
    (jax.device_count(), 256), ROWS, lambda _: np.ones((1, 256), np.float32)
)
SECONDS = 5.0
"""Longer than a proof takes."""


@jax.jit
def total(x):
    return jnp.sum(x)  # LINE total


@jax.jit
def slow_total(x, rounds):
    one = jnp.ones((256, 256))
    work = jax.lax.fori_loop(0, rounds, lambda _, a: (a @ one) / 256, one)
    return jnp.sum(x * work[0, 0])


def one_side() -> None:
    float(total(X))
    if ME == 0:
        lockstep.barrier("epoch")  # LINE one_side_barrier
    else:
        float(total(X))  # LINE one_side_total


def one_side_blocks() -> None:
    float(total(X))
    if ME == 0:
        lockstep.barrier("epoch")  # LINE one_side_blocks_barrier
    else:
        total(X).block_until_ready()


def one_side_dispatches() -> None:
    """Process 1 reads no loss: it waits where it dispatches, for room."""
    last = total(X)
    float(last)
    if ME == 0:
        lockstep.barrier("epoch")  # LINE one_side_dispatches_barrier
    else:
        for _ in range(100):
            last = total(
                X,
            )
        float(last)


def in_flight() -> None:
    """Process 0 has dispatched what process 1 waits for, and computes before that."""
    rounds = 8
    while True:
        began = time.monotonic()
        float(slow_total(X, rounds))
        if lockstep_says(time.monotonic() - began > 1):
            break
        rounds *= 2
    rounds = int(rounds * SECONDS) if ME == 0 else 1
    pending = slow_total(X, rounds)
    if ME == 0:
        lockstep.barrier("saved")
    float(pending)
    if ME == 1:
        lockstep.barrier("saved")


def lockstep_says(enough: bool) -> bool:
    """Whether it is enough for all processes."""
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.array(enough)).all())


def another_thread() -> None:
    """The main thread of process 0 waits in the barrier, and a thread calls the collective."""
    float(total(X))

    def work() -> None:
        time.sleep(SECONDS)
        float(total(X))

    thread = threading.Thread(target=work)
    if ME == 0:
        thread.start()
        lockstep.barrier("saved")
        thread.join()
    else:
        float(total(X))
        lockstep.barrier("saved")


def barrier_before_reading(work: Callable[[], object]) -> None:
    """Process 1 has dispatched a collective, works, and comes to the barrier before it reads it."""
    float(total(X))
    if ME == 0:
        lockstep.barrier("saved")
        float(total(X))
    else:
        pending = total(X)
        work()
        lockstep.barrier("saved")
        float(pending)


def not_read_yet() -> None:
    barrier_before_reading(lambda: time.sleep(SECONDS))


def timeout() -> None:
    float(total(X))
    if ME == 0:
        try:
            lockstep.barrier("saved", timeout=SECONDS)
        except lockstep.MissingProcessError:
            print("went on")
    float(total(X))


def own_name() -> None:
    """A function of the program, not JAX's, has the name of a wait for a result."""

    def block_until_ready() -> None:
        time.sleep(SECONDS)

    barrier_before_reading(block_until_ready)


def native_read() -> None:
    """JAX calls a function of a C library that reads data, and sleeps meanwhile."""
    library, data = sleeping(ME == 1), np.ones(1)
    library.read_slowly.argtypes = [ctypes.py_object] * 2
    library.read_slowly.restype = ctypes.py_object
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(data))  # for the result
    here = SingleDeviceSharding(jax.local_devices()[0])
    read = functools.partial(library.read_slowly, data)
    barrier_before_reading(lambda: jax.make_array_from_callback((1,), here, read))


def native_program() -> None:
    """Process 1 calls a compiled program of its own in which a native call sleeps."""
    target = jax.ffi.pycapsule(sleeping(ME == 1).compute_slowly)
    jax.ffi.register_ffi_target("compute_slowly", target, platform="cpu")

    @jax.jit
    def slow(x):
        jax.ffi.ffi_call("compute_slowly", (), has_side_effect=True)()
        return x + 1

    def work() -> None:
        for _ in range(2):
            slow(np.float32(1))

    barrier_before_reading(work)


def native_call() -> None:
    """As `in_flight`, but what process 0 computes is a native call that sleeps."""
    target = jax.ffi.pycapsule(sleeping(ME == 0).compute_slowly)
    jax.ffi.register_ffi_target("compute_slowly", target, platform="cpu")

    @jax.jit
    @functools.partial(jax.shard_map, mesh=ROWS.mesh, in_specs=P("all"), out_specs=P())
    def slow(x):
        jax.ffi.ffi_call("compute_slowly", (), has_side_effect=True)()
        return jax.lax.psum(jnp.sum(x), "all")

    pending = slow(X)
    if ME == 0:
        lockstep.barrier("saved")
    float(pending)
    if ME == 1:
        lockstep.barrier("saved")


def sleeping(long: bool) -> ctypes.CDLL:
    library = ctypes.CDLL(sys.argv[2])
    ctypes.c_uint.in_dll(library, "seconds").value = int(SECONDS) if long else 0
    return library


def alarm() -> None:
    """A timer of the program ends the wait."""

    class Enough(Exception):
        pass

    def raise_enough(*_: object) -> None:
        raise Enough

    float(total(X))
    signal.signal(signal.SIGALRM, raise_enough)
    if ME == 0:
        signal.alarm(int(SECONDS))
        with contextlib.suppress(Enough):
            lockstep.barrier("saved")
    float(total(X))
    if ME == 1:
        lockstep.barrier("saved")  # releases the service's barrier, which process 0 has left


globals()[sys.argv[1]]()
print("finished")
