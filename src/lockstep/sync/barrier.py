"""Waits of the application's own: a barrier that says who is missing, and a check that all
processes have the same value.

All over the key-value store of JAX's coordination service, so they work with every implementation
of the collectives and before the first of them. Each process notes in one key where it waits;
whoever waits in vain reads all the notes. That all go on together, or all give up, is the service's
doing: it decides on each barrier once.
"""

from __future__ import annotations

import collections
import threading
import time
from pathlib import Path
from typing import Any

from lockstep import _config, _jax_compat, _run_files
from lockstep._errors import DifferenceError, MissingProcessError
from lockstep.bootstrap import engine_start, service_loss
from lockstep.job import kv_store
from lockstep.sync import value_digest
from lockstep.system import stack_dump

_NO_DEADLINE = 10.0**6
_LOOK_SECONDS = 0.2
"""How often a wait looks whether somebody it waits for has ended."""
_MAX_STACKS = 2
_STACK_LINES = 12
_NOTES = "lockstep/waits"

_uses: collections.Counter[str] = collections.Counter()
_uses_lock = threading.Lock()


def barrier(name: str, timeout: float | None = None) -> None:
    """Waits until every process of the job has called this with the same name as often.

    Args:
      name: says in errors what the wait is for. One name may be used again and again.
      timeout: seconds; None means ``--collective-timeout``, 0 no deadline.

    Raises:
      MissingProcessError: on every process that came, with who is missing, where each of those was
        last seen, and how it ended if it has. Raised as soon as a missing process is seen to have
        ended, else after ``timeout``.
    """
    _wait(f"barrier({name!r})", f"barrier/{name}", timeout)


@service_loss.as_reason()
def assert_same(value: Any, name: str, timeout: float | None = None) -> None:
    """Checks that all processes of the job have the same value; every process calls it.

    Args:
      value: a number, a text, an array, or a pytree of these. Arrays are the same when dtype, shape
        and all bits are; a `jax.Array` must be whole on each process (local, or replicated).
        Anything else is compared by its ``repr``.
      name: says in errors what is compared.
      timeout: as in `barrier`.

    Raises:
      DifferenceError: on every process, with who differs and the values.
      MissingProcessError: as in `barrier`.
      ValueError: an array is spread over processes, so that none of them has a value to compare.
    """
    own = _leaves(value)
    service_loss.raise_if_lost()
    client = _jax_compat.distributed_client()
    if client is None:
        return
    process, count = _jax_compat.distributed_place()
    words = f"assert_same(..., {name!r})"
    key = f"lockstep/same/{name}"
    use = _use(key)
    shared = kv_store.of_application(client)
    said = {place: [leaf.digest, leaf.text] for place, leaf in own.items()}
    shared.put(f"{key}/{use}/{process}", said)
    _wait(words, f"same/{name}", timeout)
    found = {**shared.values(f"{key}/{use}"), str(process): said}
    if process == 0 and use > 1:
        # All have left the check before this one, or they would not be here.
        client.key_value_delete(f"{key}/{use - 1}/")
    leaves = [
        {place: value_digest.Leaf(*leaf) for place, leaf in found[str(i)].items()}
        for i in range(count)
    ]
    differences = value_digest.differences(leaves, engine_start.labels(count))
    if differences is not None:
        raise DifferenceError(f"{words}: the processes differ\n{differences}")


def _use(key: str) -> int:
    """How often this process has come to ``key``, this time included."""
    with _uses_lock:
        _uses[key] += 1
        return _uses[key]


@service_loss.as_reason()
def _wait(words: str, name: str, timeout: float | None) -> None:
    service_loss.raise_if_lost()
    client = _jax_compat.distributed_client()
    if client is None:
        return
    process, _ = _jax_compat.distributed_place()
    if timeout is None:
        timeout = _config.current().collective_timeout
    seconds = timeout or _NO_DEADLINE
    use = _use(name)
    note = [name, use, words]
    shared = kv_store.of_application(client)
    shared.put(f"{_NOTES}/{process}", note, overwrite=True)
    failed = _Waiting(client, f"lockstep/{name}/{use}", seconds)
    while not failed.over(_LOOK_SECONDS):
        service_loss.raise_if_lost()
        missing = _missing(shared, note)
        if any(_ended(other) for other in missing):
            break
    else:
        if failed.error is None:
            return
        service_loss.raise_if_lost(_LOOK_SECONDS)
        missing = _missing(shared, note)
    if not missing:
        raise MissingProcessError(
            f"{words}: the others waited {seconds:g} s for process {process} and gave up. "
            f"The coordination service says: {failed.error}"
        ) from failed.error
    raise MissingProcessError(_words(shared, words, failed.waited, missing)) from failed.error


class _Waiting:
    """The service's barrier, waited for in a thread, so that the caller can look around."""

    def __init__(self, client: Any, key: str, seconds: float) -> None:
        self.error: Exception | None = None
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(client, key, seconds), daemon=True)
        self._thread.start()

    def _run(self, client: Any, key: str, seconds: float) -> None:
        try:
            client.wait_at_barrier(key, max(1, int(seconds * 1000)))
        except Exception as error:
            self.error = error

    def over(self, seconds: float) -> bool:
        """Whether the wait has ended, after at most ``seconds`` more."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def waited(self) -> float:
        return time.monotonic() - self._started


def _missing(shared: kv_store.Store, note: list[Any]) -> list[int]:
    """The processes that are not where ``note`` is."""
    _, count = _jax_compat.distributed_place()
    notes = _notes(shared)
    return [other for other in range(count) if notes.get(other) != note]


def _notes(shared: kv_store.Store) -> dict[int, list[Any]]:
    return {int(process): note for process, note in shared.values(_NOTES).items()}


def _ended(process: int) -> str | None:
    """How the launcher has seen ``process`` end; None while it runs, or when nobody knows."""
    config = _config.current()
    if config.run_dir is None:
        return None
    folder = _run_files.process_dir(Path(config.run_dir), config.attempt, process)
    record = _run_files.ExitRecord.read(folder)
    is_its = record is not None and engine_start.local_pid(process) in (None, record.pid)
    return record.manner if record and is_its else None


def _words(shared: kv_store.Store, words: str, waited: float, missing: list[int]) -> str:
    process, count = _jax_compat.distributed_place()
    labels = engine_start.labels(count)
    notes = _notes(shared)
    lines = [
        f"{words}: {labels[process]} waited {waited:.1f} s. Missing: {len(missing)} of {count} "
        "processes:"
    ]
    shown = 0
    for other in missing:
        ended = _ended(other)
        last = f"; last seen in {notes[other][2]}" if other in notes else ""
        state = ended or "has not come"
        lines.append(f"  {labels[other]} {state}{last}")
        if ended is None and shown < _MAX_STACKS and (text := _stack(other)):
            shown += 1
            lines += [f"    {line}" for line in text.splitlines()[:_STACK_LINES]]
    return "\n".join(lines)


def _stack(process: int) -> str | None:
    config = _config.current()
    pid = engine_start.local_pid(process)
    if config.run_dir is None or pid is None:
        return None
    folder = _run_files.process_dir(Path(config.run_dir), config.attempt, process)
    return stack_dump.ask(pid, folder / stack_dump.FILE)


def _leaves(value: Any) -> dict[str, value_digest.Leaf]:
    """The leaves of ``value`` by their places."""
    import jax

    pairs, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is None)
    return {jax.tree_util.keystr(path): _leaf(leaf, path) for path, leaf in pairs}


def _leaf(leaf: Any, path: Any) -> value_digest.Leaf:
    import jax
    import numpy as np

    if isinstance(leaf, jax.Array):
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            raise ValueError(
                f"assert_same: the array{f' at {jax.tree_util.keystr(path)}' if path else ''} is "
                f"spread over processes ({leaf.sharding}): no process has all of it. Compare what "
                "each process has: a replicated array, or one that was made from local data."
            )
        leaf = leaf.addressable_data(0) if leaf.is_fully_replicated else leaf
        return value_digest.of_array(np.asarray(leaf))
    if isinstance(leaf, np.ndarray | np.generic):
        return value_digest.of_array(np.asarray(leaf))
    return value_digest.of_object(leaf)
