"""A loop of collectives with a fault planted in one process: ``fault.py NAME PROCESS [STEPS]``.

Each line of output is one JSON object: ``planted`` (CLOCK_MONOTONIC) when a process comes to the
fault, ``raised`` when it catches what the fault has led to, ``number`` when a collective that must
not succeed returns (with the right number it may), ``wrong`` when one returns something else than
it has to, ``finished`` at the end. A process that catches an error computes something on its own
devices, and ends with status 20 + its index. ``# LINE name`` marks the lines that errors have to
name.
"""

from __future__ import annotations

import concurrent.futures
import functools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH = 1000
FAULT_STEP = 3


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


jax.distributed.initialize()
ME = jax.process_index()
DEVICES = np.array(jax.devices())
RANKS = DEVICES.size
ALL = Mesh(DEVICES, ("all",))
# Two by two, so that each row and each column has devices of two processes.
SQUARE = Mesh(DEVICES[[0, 3, 2, 1]].reshape(2, 2), ("x", "y")) if RANKS == 4 else None


def rows(width: int = WIDTH, dtype: Any = np.float32, mesh: Mesh = ALL, factor: int = 1) -> Any:
    """One row a device: ``factor`` times its rank, from 1."""

    def row(index: Any) -> np.ndarray:
        return np.full((1, width), factor * ((index[0].start or 0) + 1), dtype)

    sharding = NamedSharding(mesh, P(mesh.axis_names))
    return jax.make_array_from_callback((RANKS, width), sharding, row)


def over(mesh: Mesh | None) -> Callable[[Callable], Callable]:
    def decorate(function: Callable) -> Callable:
        if mesh is None:
            return function
        spec = P(mesh.axis_names)
        mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        return jax.jit(mapped)

    return decorate


@over(ALL)
def total(x):
    return lax.psum(x, "all")  # LINE total


@over(ALL)
def other_total(x):
    return 2 * lax.psum(x, "all")  # LINE other_total


@over(ALL)
def largest(x):
    return lax.pmax(x, "all")  # LINE largest


@over(ALL)
def gathered(x):
    return lax.all_gather(x, "all").sum(0)  # LINE gathered


@over(ALL)
def ring(x):
    return lax.ppermute(x, "all", [(i, (i + 1) % RANKS) for i in range(RANKS)])  # LINE ring


@over(ALL)
def ring_back(x):
    return lax.ppermute(x, "all", [((i + 1) % RANKS, i) for i in range(RANKS)])  # LINE ring_back


@over(SQUARE)
def along_x(x):
    return lax.psum(x, "x")  # LINE along_x


@over(SQUARE)
def along_y(x):
    return lax.psum(x, "y")  # LINE along_y


EVERYWHERE = NamedSharding(ALL, P())


@functools.partial(jax.jit, out_shardings=EVERYWHERE)
def moved(x):
    return x


def move() -> jax.Array:
    return moved(rows())  # LINE move


def move_more() -> jax.Array:
    return moved(rows(WIDTH + 1))  # LINE move_more


def gather_all() -> Any:
    everything = multihost_utils.process_allgather(rows(), tiled=True)  # LINE gather_all
    return jax.device_put(everything, jax.local_devices()[0])


def move_as_made_elsewhere() -> jax.Array:
    """The program is compiled where nothing of this file is on the stack."""
    make = functools.partial(jax.stages.Lowered.compile, moved.lower(rows(WIDTH + 1)))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        made = pool.submit(make).result()
    return made(rows(WIDTH + 1))


def numbers(array: jax.Array) -> list[float]:
    """What this process has of the array: one number a row, NaN for one of unequal elements."""
    parts = [np.asarray(shard.data) for shard in array.addressable_shards]
    return [float(p.flat[0]) if (p == p.flat[0]).all() else float("nan") for p in parts]


def usual() -> None:
    """One step of the loop, with a look at its result."""
    expected = RANKS * (RANKS + 1) / 2
    if any(value != expected for value in numbers(total(rows()))):
        say(wrong=numbers(total(rows())), expected=expected)


def must_fail(*calls: Callable[[], jax.Array], right: float | None = None) -> None:
    """Calls that no process may come out of with all numbers, unless they are the ``right`` one."""
    returned = [numbers(call()) for call in calls]
    if any(number != right for row in returned for number in row):
        say(number=returned)


def once() -> jax.Array:
    return total(rows())  # LINE once


def five_times() -> jax.Array:
    return total(rows(factor=5))  # LINE five_times


def other_once() -> jax.Array:
    return other_total(rows(factor=5))


def gathered_once() -> jax.Array:
    return gathered(rows())


def check_ring() -> jax.Array:
    result = ring(rows())
    received = [
        (rank - 1) % RANKS + 1 for rank in range(RANKS) if DEVICES[rank].process_index == ME
    ]
    if numbers(result) != received:
        say(wrong=numbers(result), expected=received)
    return result


def square() -> Any:
    assert SQUARE is not None
    return rows(mesh=SQUARE)


def along_x_once() -> jax.Array:
    return along_x(square())


def along_y_once() -> jax.Array:
    return along_y(square())


def circle() -> None:
    """Each of four processes waits in its first call for one whose first call is another."""
    calls = [along_x_once, along_y_once]
    must_fail(*(calls if ME > 1 else reversed(calls)))


def out_of_memory() -> None:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limit = used + (1 << 28)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    np.ones(1 << 32)


def exit_in_the_compiler() -> None:
    def exit_before_xla(event: str, *_: Any, **__: Any) -> None:
        if event.endswith("jaxpr_to_mlir_module_duration"):
            os._exit(7)

    jax.monitoring.register_event_duration_secs_listener(exit_before_xla)
    other_total(rows()).block_until_ready()


@jax.jit
def mean(x):
    return x.mean(0)


def batch_mean(local: int) -> jax.Array:
    """The mean over a batch of which this process has ``local`` rows."""
    batch = np.ones((local, WIDTH), np.float32)
    return mean(jax.make_array_from_process_local_data(NamedSharding(ALL, P("all")), batch))


def made_with(scale: float = 2.0, *, more: bool = False) -> jax.Array:
    """A function that is traced on each process for itself, with what Python has there."""

    @over(ALL)
    def scaled(x):
        if more:
            x = jnp.sin(x)  # LINE more
        return lax.psum(x * scale, "all")  # LINE scaled

    return scaled(rows())


@functools.partial(jax.jit, static_argnums=1)
def power_sum(x, power):
    return (x**power).sum()  # LINE power_sum


@jax.jit
def first_row(x):
    return (x[0] + 2 * x[-1]).sum()  # LINE first_row


def first_of(devices: np.ndarray) -> jax.Array:
    return first_row(rows(mesh=Mesh(devices, ("all",))))


@jax.jit
def weighted(w, x):
    return (w * x).sum()  # LINE weighted


def weigh(start: float) -> jax.Array:
    """A sum with weights that are said to be the same on all processes."""
    w = jax.make_array_from_process_local_data(EVERYWHERE, np.full(WIDTH, start, np.float32))
    return weighted(w, rows())


def in_two_threads(late: str) -> None:
    """Two threads dispatch a collective each, the thread ``late`` after the other one."""

    def call(name: str, function: Callable[[Any], jax.Array]) -> None:
        time.sleep(0.5 if name == late else 0)
        must_fail(lambda: function(rows()), right=RANKS * (RANKS + 1) / 2)

    with concurrent.futures.ThreadPoolExecutor(1, "prefetch") as pool:
        added = pool.submit(call, "prefetch", total)
        call("main", gathered)
        added.result()


def lose_the_service() -> None:
    run = Path(os.environ["LOCKSTEP_RUN_DIR"], "attempt_0")
    os.kill(int((run / "coordination.pid").read_text()), signal.SIGKILL)
    steps_for_a_while()


def steps_for_a_while() -> None:
    for _ in range(200):  # as many on each process
        usual()
        time.sleep(0.05)


def raise_error() -> None:
    raise FileNotFoundError("no such file: data.npz")


Step = Callable[[], Any]
Call = Callable[[], jax.Array]


def apart(mine: Sequence[Call], theirs: Sequence[Call]) -> tuple[Step, Step]:
    """The calls of the process with the fault, and those of the others: all of them must fail."""
    return functools.partial(must_fail, *mine), functools.partial(must_fail, *theirs)


# What the process with the fault does at the step, and what the others do.
FAULTS: dict[str, tuple[Step, Step]] = {
    "none": (usual, usual),
    "kill": (lambda: os.kill(os.getpid(), signal.SIGKILL), usual),
    "stop": (lambda: os.kill(os.getpid(), signal.SIGSTOP), usual),
    "exception": (raise_error, usual),
    "exit": (lambda: sys.exit(0), usual),
    "hard exit": (lambda: os._exit(0), usual),
    "exit in the compiler": (exit_in_the_compiler, lambda: must_fail(lambda: other_total(rows()))),
    "out of memory": (out_of_memory, usual),
    "shorter loop": (lambda: "leave", usual),
    "shape": apart([lambda: total(rows(WIDTH + 1))], [once]),
    "dtype": apart([lambda: total(rows(dtype=np.int32))], [once]),
    "reduction": apart([lambda: largest(rows())], [once]),
    "operation": apart([gathered_once], [once]),
    # A rank whose own two neighbours do the same has its right number before the others notice.
    "argument": apart([move_more], [move]),
    "argument, made on a thread": apart([move_as_made_elsewhere], [move]),
    "gathered data": apart([gather_all], [once]),
    "permutation": apart([lambda: ring_back(rows()), once], [check_ring, once]),
    "axis": apart([along_y_once, once], [along_x_once, once]),
    "swapped": apart([gathered_once, once], [once, gathered_once]),
    "swapped look-alikes": apart([other_once, once], [once, other_once]),
    "swapped data": apart([five_times, once], [once, five_times]),  # one program, on two arrays
    "crossing cliques": apart([along_y_once, along_x_once], [along_x_once, along_y_once]),
    "circle of cliques": (circle, circle),
    "one-sided program": apart([other_once, once], [once, once]),
    "last batch": apart([lambda: batch_mean(96)], [lambda: batch_mean(100)]),
    "constant": apart([lambda: made_with(3.0)], [made_with]),
    "branch": apart([lambda: made_with(more=True)], [made_with]),
    "static argument": apart([lambda: power_sum(rows(), 3)], [lambda: power_sum(rows(), 2)]),
    "mesh order": apart([lambda: first_of(DEVICES[::-1])], [lambda: first_of(DEVICES)]),
    "replicated values": apart([lambda: weigh(3.0)], [lambda: weigh(2.0)]),
    "threads": (lambda: in_two_threads("main"), lambda: in_two_threads("prefetch")),
    "service": (lose_the_service, steps_for_a_while),
}


def loop(fault: str, culprit: int, steps: int) -> None:
    for step in range(steps):
        if step == FAULT_STEP and fault != "none":
            say(planted=time.monotonic())
            if FAULTS[fault][culprit != ME]() == "leave":
                return
        else:
            usual()
        if step == FAULT_STEP:
            say(going=True)


def main(fault: str, culprit: str, steps: str = "6") -> None:
    try:
        loop(fault, int(culprit), int(steps))
    except (jax.errors.JaxRuntimeError, ValueError, AssertionError) as error:
        say(raised=str(error), at=time.monotonic())
        say(saved=float(jnp.ones(10).sum()))
        sys.exit(20 + ME)
    say(finished=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
