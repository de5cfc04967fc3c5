"""Faults whose diagnosis is easily mistaken: ``misleading.py NAME``. ``# LINE name`` marks lines.

They are written as users write them: nothing is caught, so the launcher's report is what is read.
"""

from __future__ import annotations

import atexit
import functools
import queue
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

sys.path.append(str(Path(__file__).parent / "site-packages"))
from mc_stats import statistics  # pyright: ignore[reportMissingImports]

jax.distributed.initialize()
ME = jax.process_index()
DEVICES = np.array(jax.devices())
MESH = Mesh(DEVICES, ("data",))
ROWS = NamedSharding(MESH, P("data"))
WHOLE = NamedSharding(MESH, P())


def batch(rows: int) -> jax.Array:
    """``rows`` rows of this process's data: JAX works the shape of the whole out of them."""
    return jax.make_array_from_process_local_data(ROWS, np.ones((rows, 8), np.float32))


@jax.jit
def loss(weights, x):
    return jnp.mean((x @ weights) ** 2)  # LINE loss


def one_side() -> None:
    weights = jnp.ones((8,))
    for step in range(4):
        float(loss(weights, batch(100)))  # LINE one_side_loop
        if step == 2 and ME == 0:
            log_norm(batch(100))  # LINE one_side


def log_norm(x) -> None:
    print(float(norm(x)))  # LINE log_norm


@jax.jit
def norm(x):
    return jnp.sqrt(jnp.sum(x * x))  # LINE norm


def library() -> None:
    x = batch(100)
    (average(x) if ME == 0 else loss(jnp.ones((8,)), x)).block_until_ready()


def average(x):
    return statistics(x)  # LINE average


def prefetch() -> None:
    weights = jnp.ones((8,))
    feed = threading.Thread(target=fill, name="prefetch")
    feed.start()
    FED.wait()
    for _ in range(50):
        float(loss(weights, batch(100)))
    feed.join()


FED = threading.Event()


def fill() -> None:
    for step in range(50):
        if ME == 1 and step == 5:
            time.sleep(0.5)  # so that the two processes never keep the same order by luck
        jax.device_put(np.full((8, 8), step, np.float32), WHOLE)  # LINE fill
        FED.set()


def at_exit() -> None:
    weights = jnp.ones((8,))
    float(loss(weights, batch(100)))
    if ME == 0:
        atexit.register(lambda: float(norm(batch(100))))  # LINE at_exit
        raise KeyboardInterrupt
    float(loss(weights, batch(100)))


def caught() -> None:
    weights = jnp.ones((8,))
    float(loss(weights, batch(100)))
    try:
        float(loss(weights, batch(96 if ME == 1 else 100)))
    except Exception as error:
        print("caught:", error)
    try:
        float(loss(weights, batch(100)))
    except Exception as error:
        print("later:", error)
        raise


def callback() -> None:
    """The program ends on device 0 alone, and the other device of process 0 goes on."""
    value = jnp.float32(0)
    for _ in range(6):
        value = logged(batch(100), value)
    float(value)


def callback_unread() -> None:
    """As `callback`, in a loop that reads no loss: the main thread waits where it dispatches."""
    value = jnp.float32(0)
    for _ in range(100):
        value = logged(batch(100), value)
    float(value)


@jax.jit
def logged(x, value):
    value = value + jnp.sum(x)
    jax.debug.callback(log, value)
    return value


def log(value) -> None:
    LOG.append(value)
    if ME == 0 and len(LOG) > 3:
        raise RuntimeError("loss log disk full")  # LINE log


LOG = []


def loader_thread() -> None:
    """The thread that reads data ends by an exception on process 1, whose main thread waits."""
    batches = queue.Queue()

    def load() -> None:
        for number in range(3):
            if ME == 1 and number == 2:
                raise OSError("cannot decode image 7")  # LINE load
            batches.put(batch(100))

    threading.Thread(target=load, name="loader").start()
    for _ in range(3):
        float(loss(jnp.ones((8,)), batches.get()))


def device_order() -> None:
    own_first = sorted(DEVICES, key=lambda d: (d.process_index != ME, d.id))
    rows = NamedSharding(Mesh(np.array(own_first), ("data",)), P("data"))
    local = np.ones((100, 8), np.float32)
    float(loss(jnp.ones((8,)), jax.make_array_from_process_local_data(rows, local)))


@jax.jit
@functools.partial(jax.shard_map, mesh=MESH, in_specs=P("data"), out_specs=P("data"))
def positive_sum(x):
    return lax.cond(x[0] > 0, lambda y: lax.psum(y, "data") + 0 * y, lambda y: y, x)  # LINE cond


def cond() -> None:
    values = np.arange(DEVICES.size, dtype=np.float32)
    x = jax.make_array_from_callback(values.shape, ROWS, lambda index: values[index])
    print(positive_sum(x))


def twice() -> None:
    jax.distributed.initialize()  # LINE twice


def keyboard() -> None:
    if ME == 1:
        input("name? ")


def swallowed() -> None:
    """Each step stands in a try statement, so the program goes on and ends well."""
    for step in range(4):
        try:
            if ME == 1 and step == 2:
                raise OSError("cannot decode image 7")
            float(loss(jnp.ones((8,)), batch(100)))
        except Exception:
            print("skip", step)


def chained() -> None:
    for step in range(4):
        try:
            float(loss(jnp.ones((8,)), batch(96 if ME == 1 and step == 3 else 100)))
        except Exception as error:
            raise RuntimeError("training failed") from error  # LINE chained


@jax.jit
@functools.partial(jax.shard_map, mesh=MESH, in_specs=P("data"), out_specs=P())
def misspelt(x):
    return lax.psum(x, "date")  # LINE misspelt


def axis() -> None:
    misspelt(jnp.ones((8,)))


def elsewhere() -> None:
    """``jax.devices()[0]`` is a device of process 0."""
    float(jax.device_put(np.ones(4), jax.devices()[0]).sum())  # LINE elsewhere


globals()[sys.argv[1]]()
