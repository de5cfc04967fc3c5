"""One implementation's job: a pool whose processes carry out orders (`lockstep.bench.worker`).

An order reaches all processes without using the collectives that are measured, and between orders
they sleep. Every wait here has a deadline.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from lockstep._config import COLLECTIVES
from lockstep._errors import LockstepError, SpawnError, SpawnTimeoutError
from lockstep.pool.pool import Pool
from lockstep.pool.processes import PoolSpec

START_SECONDS = 120.0
MAX_REASON = 300
_TELLING = (
    re.compile(r"\b[\w.]*(Error|Exception)\w*: "),
    re.compile(r"error:|terminate called|signal|Aborted|refused|failed"),
    re.compile(r""),
)


UNRECORDED = "unrecorded"
"""The engine without its recorder: what recording costs."""
PLAIN = "plain"
"""The engine with ``--no-encryption``, between hosts."""
STRICT = "strict"
"""The engine with ``--strict``: what comparing lines costs."""
XLA = "xla"
"""XLA's own exchange: all devices in one process that joins no job, so no library is called."""
NCCL = "nccl"
"""On GPUs, with Lockstep's recorder."""
IMPLEMENTATIONS = (*COLLECTIVES, PLAIN, XLA, UNRECORDED, STRICT, NCCL)
ON_GPUS = (NCCL, UNRECORDED, STRICT, XLA)
"""The implementations on GPUs: NCCL moves the data, also inside one process."""
_SETTINGS = {
    PLAIN: {"LOCKSTEP_ENCRYPTION": "0"},
    UNRECORDED: {"LOCKSTEP_RECORD": "0"},
    STRICT: {"LOCKSTEP_STRICT": "1"},
}
ENGINES = ("lockstep", *_SETTINGS)
"""The implementations whose collectives are those of Lockstep's engine."""


class JobFailed(Exception):
    """The job cannot go on; the text is one line that says why."""


@dataclasses.dataclass(frozen=True)
class JobSpec:
    """A job to start: ``implementation`` on ``processes`` times ``devices`` devices."""

    implementation: str
    processes: int
    devices: int
    options: tuple[str, ...] = ()
    """Further options of ``lockstep run``, also those that name hosts."""
    x64: bool = False
    hosts: tuple[str, ...] = ()
    """The host of each process; empty: this machine."""
    environ: tuple[tuple[str, str], ...] = ()
    """Further variables of the processes."""
    platform: str | None = None
    """Whose devices; None: those of CPUs."""

    def pool(self) -> PoolSpec:
        """The processes to start."""
        alone = self.implementation == XLA
        launched = 1 if alone else self.processes
        of_lockstep = self.implementation in (*ENGINES, NCCL)
        collectives = "lockstep" if of_lockstep else self.implementation
        x64 = {"JAX_ENABLE_X64": "1"} if self.x64 else {}
        return PoolSpec(
            launched,
            self.devices * self.processes // launched,
            self.platform,
            "gloo" if alone else collectives,  # alone: not used, and the engine is not loaded
            {**x64, **_SETTINGS.get(self.implementation, {}), **dict(self.environ)},
            self.options,
            self.hosts,
            joins=not alone,
            shown=False,
        )


def why(text: str) -> str:
    """The most telling line of what a failed job has said: the first that names an exception, else
    the first that speaks of an error, else the first of all."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = (line for pattern in _TELLING for line in lines if pattern.search(line))
    line = next(telling, "it printed nothing")
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 1] + "…"


def carry_out(order: str, values: dict[str, Any]) -> dict[str, Any]:
    """Runs in each process: what `lockstep.bench.worker` answers to an order."""
    # A late import: the benchmark's own process needs no JAX.
    from lockstep.bench import worker

    return worker.carry_out(order, values)


class BenchJob:
    """A running job. Use it as a context manager, or `close` it: it leaves no process behind."""

    def __init__(self, spec: JobSpec) -> None:
        """Starts the job and waits until every process has joined it.

        Raises `JobFailed` when the launcher ends, or after `START_SECONDS`.
        """
        self.spec = spec
        try:
            self._pool = Pool.of(spec.pool())
            self._pool.wait(START_SECONDS)
        except LockstepError as error:  # the first line of several says only that it has failed
            *_, text = str(error).split("\n", 1)
            raise JobFailed(f"ended before it started: {why(text)}") from None
        self.hello = self.request("hello", START_SECONDS)

    def request(self, order: str, timeout: float, **values: Any) -> list[dict[str, Any]]:
        """Gives every process an order; returns their answers, in the order of their ranks.

        Raises `JobFailed` when a process answers with an error, ends, or ``timeout`` seconds pass.
        """
        try:
            return self._pool.run(carry_out, (order, values), timeout=timeout)
        except SpawnTimeoutError as error:
            reason = f"no answer in time: {error}"
        except SpawnError as error:
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        # What is left may wait for those that are gone: no use in waiting for it.
        self._pool.close(at_once=True)
        raise JobFailed(why(reason))

    def close(self) -> None:
        """Ends the job."""
        self._pool.close()

    def __enter__(self) -> BenchJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
