"""What a collective does when the others do not come, or come with something else.

    python waiting.py CASE

The last process misbehaves as CASE says. The others must raise an error that says so, and be able
to go on computing by themselves. Each process prints the error, and how often it was seen busy.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from checks import line_mesh, mapped, sharded
from jax import lax
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()

N, ME, LAST = jax.device_count(), jax.process_index(), jax.process_count() - 1
RING = [(i, (i + 1) % N) for i in range(N)]


def run(
    function: Callable[[jax.Array], jax.Array], columns: int = 8, dtype: type = np.float32
) -> jax.Array:
    x = sharded(np.ones((N, columns), dtype), line_mesh(), P("i"))
    return jax.block_until_ready(mapped(function, line_mesh(), P("i"), P("i"))(x))


def psum(a: jax.Array) -> jax.Array:
    return lax.psum(a, "i")


def pmax(a: jax.Array) -> jax.Array:
    return lax.pmax(a, "i")


def gather(a: jax.Array) -> jax.Array:
    return lax.all_gather(a, "i")


def exchange(a: jax.Array) -> jax.Array:
    return lax.all_to_all(jnp.tile(a, (N, 1)), "i", 0, 0)


def ring(a: jax.Array) -> jax.Array:
    return lax.ppermute(a, "i", RING)


def scatter(a: jax.Array) -> jax.Array:
    return lax.psum_scatter(jnp.tile(a, (N, 1)), "i", tiled=True)


# Case -> what the last process runs, and what the others run. None: nothing at all.
CASES = {
    "psum": (None, lambda: run(psum)),
    "all_gather": (None, lambda: run(gather)),
    "all_to_all": (None, lambda: run(exchange)),
    "ppermute": (None, lambda: run(ring)),
    "psum_scatter": (None, lambda: run(scatter)),
    "length": (lambda: run(psum, columns=9), lambda: run(psum)),
    "dtype": (lambda: run(psum, dtype=np.int32), lambda: run(psum)),
    "reduction": (lambda: run(pmax), lambda: run(psum)),
    "operation": (lambda: run(gather), lambda: run(psum)),
    "order": (lambda: (run(gather), run(psum)), lambda: (run(psum), run(gather))),
    "permuted length": (lambda: run(ring, columns=9), lambda: run(ring)),
}


class Watch:
    """Looks again and again whether a thread of this process, other than its own, is running."""

    def __init__(self) -> None:
        self.looks = self.busy = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        own = str(threading.get_native_id())
        while not self._ended.wait(0.02):
            states = [_state(task) for task in os.listdir("/proc/self/task") if task != own]
            self.looks += 1
            self.busy += "R" in states

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def _state(task: str) -> str:
    try:
        with open(f"/proc/self/task/{task}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:  # it has ended
        return ""


def main() -> None:
    theirs, ours = CASES[sys.argv[1]]
    assert float(run(psum).addressable_data(0)[0, 0]) == N  # all is well at first
    watch = Watch()
    try:
        if ME != LAST:
            ours()
        elif theirs is not None:
            theirs()
        else:
            time.sleep(4.5)
            run(psum)
    except jax.errors.JaxRuntimeError as error:
        print("error: " + str(error).replace("\n", " | "))
    else:
        print("no error")
    watch.end()
    print(f"busy: {watch.busy} of {watch.looks}")
    # This process goes on, alone.
    assert float(jax.jit(jnp.sum)(jnp.arange(100.0))) == 4950
    for device in jax.local_devices():
        assert float((jax.device_put(1.0, device) + 1).sum()) == 2
    try:
        run(psum)
    except jax.errors.JaxRuntimeError as error:
        print(f"again: {str(error).splitlines()[0]}")


main()
