"""What each process of a benchmark's job does: it builds, measures and checks the cases.

The benchmark calls `carry_out` in all processes of its pool. Between orders they sleep in ``recv``,
so that they do not disturb the job that is being measured.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import threading
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import lockstep
from lockstep.bench import programs
from lockstep.bench.cases import Case
from lockstep.system import machine

COPY_BUFFER = 64 << 20
COPY_PIECE = 4 << 20
INNER_ON_GPUS = 16


class _Copier:
    """One thread's pair of buffers, larger together than the caches and already touched."""

    def __init__(self) -> None:
        self._source = np.ones(COPY_BUFFER, np.uint8)
        self._target = np.ones(COPY_BUFFER, np.uint8)
        self.rate = 0.0

    def run(self, seconds: float) -> None:
        """Copies for about ``seconds``; ``rate`` is then bytes read and written per second."""
        moved, offset, start = 0, 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            piece = slice(offset, offset + COPY_PIECE)
            np.copyto(self._target[piece], self._source[piece])
            moved += 2 * COPY_PIECE
            offset = (offset + COPY_PIECE) % COPY_BUFFER
        self.rate = moved / elapsed


@dataclasses.dataclass
class _Running:
    """The case being measured and its buffers."""

    programs: programs.Programs
    x: jax.Array
    y: jax.Array
    inner: int = 1
    """How many collectives a turn of the loop has."""

    def loop(self, k: int) -> float:
        """The seconds of ``k`` collectives, of which as many run as are whole turns."""
        turns = -(-k // self.inner)
        start = time.perf_counter()
        self.x, self.y = self.programs.loop(np.int32(turns), self.x, self.y)
        jax.block_until_ready((self.x, self.y))
        return (time.perf_counter() - start) * k / (turns * self.inner)

    def call(self) -> tuple[float, jax.Array]:
        start = time.perf_counter()
        result = jax.block_until_ready(self.programs.call(self.x))
        return time.perf_counter() - start, result

    def wrong(self, y: jax.Array) -> int:
        return sum(int(shard.data[0]) for shard in self.programs.wrong(y).addressable_shards)


class Worker:
    """The orders a process understands; each takes and returns what JSON can carry."""

    def __init__(self) -> None:
        self._mesh = Mesh(np.array(jax.devices()), (programs.AXIS,))
        self._running: _Running | None = None
        self._copiers: list[_Copier] = []

    def hello(self) -> dict[str, Any]:
        """Facts of this process, its job and its machine."""
        return {
            "process": jax.process_index(),
            "processes": jax.process_count(),
            "ranks": jax.device_count(),
            "platform": jax.default_backend(),
            "cores": len(os.sched_getaffinity(0)),
            "glibc_tunables": os.environ.get("GLIBC_TUNABLES", ""),
            "machine": machine.describe(),
            "versions": {
                "lockstep": lockstep.__version__,
                "jax": jax.__version__,
                "jaxlib": importlib.metadata.version("jaxlib"),
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }

    def prepare(self, case: dict[str, Any], on_gpus: bool = False) -> dict[str, Any]:
        """Compiles a case, fills its buffers, and checks one turn of the loop and one call."""
        self._running = None
        inner = INNER_ON_GPUS if on_gpus else 1
        built = programs.build(Case(**case), self._mesh, inner)
        self._running = running = _Running(built, *built.fill(), inner)
        running.loop(1)
        wrong = running.wrong(running.y) + running.wrong(running.call()[1])
        return {
            "wrong": wrong,
            "collectives": programs.collectives_in_loop(built.loop_text),
            "copies": programs.copies_in_loop(built.loop_text),
        }

    def block(self, k: int, samples: int, calls: int) -> dict[str, Any]:
        """Times ``samples`` loops of ``k`` and ``calls`` single calls, then checks the result.

        A loop that is not counted brings the processes into step first, unless there is one sample
        only.
        """
        running = self._case()
        if samples > 1:
            running.loop(1)
        looped = [running.loop(k) for _ in range(samples)]
        called = [running.call()[0] for _ in range(calls)]
        return {"loop": looped, "call": called, "wrong": running.wrong(running.y)}

    def copy(self, seconds: float) -> dict[str, Any]:
        """Copies on one thread per local device, all at once."""
        if not self._copiers:
            self._copiers = [_Copier() for _ in jax.local_devices()]
        threads = [threading.Thread(target=c.run, args=(seconds,)) for c in self._copiers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"rate": sum(copier.rate for copier in self._copiers)}

    def release(self) -> dict[str, Any]:
        """Gives the case's memory back."""
        self._running = None
        return {}

    def _case(self) -> _Running:
        if self._running is None:
            raise RuntimeError("no case is prepared")
        return self._running


_worker: Worker | None = None


def carry_out(order: str, values: dict[str, Any]) -> dict[str, Any]:
    """Calls the method ``order`` of this process's worker."""
    global _worker
    _worker = _worker or Worker()
    return getattr(_worker, order)(**values)
