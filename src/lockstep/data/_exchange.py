"""What processes tell each other about their data: small values, of all processes at once.

`exchange` goes through JAX's key-value store and waits for all processes. `Counts` is one
all-gather of a number, dispatched by the main thread and read later, so that it runs beside the
program's own step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lockstep import _jax_compat
from lockstep._errors import DataError
from lockstep._words import grouped, processes
from lockstep.job import current_job, kv_store
from lockstep.sync import barrier

FAILED = -1
"""Published in place of a count by a process whose source has raised an error."""
_FOLDER = "lockstep/data"


def exchange(words: str, value: Any) -> list[Any]:
    """The ``value`` of every process, by its index; every process calls this.

    Args:
      words: the call of the user for which this is, in errors.
      value: anything that JSON can hold, some KB at most.

    Raises:
      MissingProcessError: as `lockstep.barrier`.
    """
    if _jax_compat.distributed_client() is None:
        return [value]
    return barrier.exchange(_FOLDER, value, lambda: barrier.barrier(words))


def require_same_batches(words: str, value: Any) -> None:
    """Raises `DataError` on every process if ``value``, what it cuts into batches, differs."""
    found = exchange(words, value)
    if any(other != found[0] for other in found):
        groups = grouped((str(value), process) for process, value in enumerate(found))
        lines = [f"  {processes(same)}: {json_text}" for json_text, same in groups.items()]
        head = f"{words}: the processes differ in what they cut into batches:\n"
        raise DataError(head + "\n".join(lines))


class _Gathers(current_job.Part):
    """The all-gather of a number of each device, and its inputs, each of which is made once.

    To put a number on a device takes longer than to gather it, and most steps agree on the same
    one. All devices take part: a program over one device of each process could overtake the
    program's own.
    """

    def __init__(self) -> None:
        mesh = Mesh(np.array(jax.devices()), ("all",), axis_types=(AxisType.Auto,))
        self.devices: Any = mesh.devices
        self._sharding = NamedSharding(mesh, PartitionSpec("all"))
        self._inputs: dict[int, jax.Array] = {}
        self.gather = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def input(self, value: int) -> jax.Array:
        """int[devices], ``value`` on those of this process."""
        if value not in self._inputs:
            own = np.array([value], np.int32)
            local = jax.local_devices()
            parts = [jax.device_put(own, device) for device in local]
            shape = (self._sharding.mesh.size,)
            self._inputs[value] = jax.make_array_from_single_device_arrays(
                shape, self._sharding, parts
            )
        return self._inputs[value]


class Counts:
    """One number of each process, of a few: dispatched when it is made, waited for in `read`.

    Only the main thread makes one: JAX does not order what several threads dispatch.
    """

    def __init__(self, value: int) -> None:
        gathers = current_job.part(_Gathers)
        self._devices = gathers.devices
        self._found = gathers.gather(gathers.input(value))

    def read(self) -> list[int]:
        """The numbers by the index of the process."""
        found = np.asarray(self._found.addressable_data(0))
        of = {device.process_index: int(n) for device, n in zip(self._devices, found, strict=True)}
        return [of[process] for process in range(jax.process_count())]


def publish_failure(error: BaseException) -> None:
    """Lets the others name the reason; best effort, because their error comes without it too."""
    with contextlib.suppress(Exception):
        process, _ = _jax_compat.distributed_place()
        store = kv_store.of_application(_jax_compat.distributed_client())
        text = f"{type(error).__name__}: {error}"[:2000]
        store.put(f"{_FOLDER}/failed/{process}", text, overwrite=True)


def failure(words: str, failed: Sequence[int]) -> DataError:
    """The error for processes whose peers have failed."""
    reasons: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        store = kv_store.of_application(_jax_compat.distributed_client())
        reasons = store.values(f"{_FOLDER}/failed")
    lines = [f"  process {p}: {reasons.get(str(p), 'see its own output')}" for p in failed]
    return DataError(
        f"{words}: the source of {processes(failed)} raised an error, so no "
        f"process gets another batch:\n" + "\n".join(lines)
    )
