"""Waits of the application's own: a barrier that names missing processes, and a check that all
processes have the same value.

All over the key-value store of JAX's coordination service, so they work with every implementation
of the collectives and before the first of them. Each process publishes in one key where it
waits; a process that waits in vain reads all these keys. The service decides on each barrier once:
all processes go on together, or all give up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from lockstep import _config, _jax_compat, _run_files
from lockstep._errors import DifferenceError, MissingProcessError
from lockstep.bootstrap import engine_start, service_loss
from lockstep.callsites import frames
from lockstep.flight_recorder.diagnosis_headline import BARRIER_DEADLOCK
from lockstep.flight_recorder.run_records import Caller
from lockstep.flight_recorder.waits import Barrier
from lockstep.job import current_job, kv_store
from lockstep.job.call_numbers import CallNumbers
from lockstep.sync import value_digest
from lockstep.system import stack_dump
from lockstep.watchdog import watchdogs
from lockstep.watchdog.own_waits import Deadlock, OwnWaits

_NO_DEADLINE = 10.0**6
_CHECK_SECONDS = 0.2
"""How often a wait checks whether a process that it waits for has ended."""
_MAX_STACKS = 2
_STACK_LINES = 12
_POSITIONS = "lockstep/waits"


def barrier(name: str, timeout: float | None = None) -> None:
    """Waits until every process of the job has called this with the same name as often.

    A process that is in no job returns at once.

    Args:
      name: a text that names the wait in errors. A name may be used again.
      timeout: seconds; 0 means no deadline. Default: None, which means ``--collective-timeout``
        (600).

    Raises:
      MissingProcessError: on every process that has arrived, with the missing processes, where each
        was last seen, and how it ended if it has. Raised as soon as a missing process is seen to
        have ended, or is proved to wait for this one in a collective or another barrier, else after
        ``timeout``.
      InitializationError: JAX's coordination service, which the wait needs, is lost.
    """
    _wait(f"barrier({name!r})", f"barrier/{name}", timeout)


@service_loss.as_reason()
def assert_same(value: Any, name: str, timeout: float | None = None) -> None:
    """Checks that all processes of the job have the same value; every process calls it.

    A process that is in no job returns at once.

    Args:
      value: a number, a text, an array, or a pytree of these. Arrays are the same when dtype, shape
        and all bits are; a `jax.Array` must be whole on each process (local, or replicated).
        Anything else is compared by its ``repr``.
      name: a text that names in errors what is compared. A name may be used again.
      timeout: seconds that a process waits for the others, as in `barrier`.

    Raises:
      DifferenceError: on every process, with the processes that differ and their values.
      MissingProcessError: as in `barrier`.
      InitializationError: JAX's coordination service, which the check needs, is lost.
      ValueError: an array is spread over processes, so that no process has all of it.
    """
    own = _leaves(value)
    service_loss.raise_if_lost()
    if _jax_compat.distributed_client() is None:
        return
    words = f"assert_same(..., {name!r})"
    published = {place: [leaf.digest, leaf.text] for place, leaf in own.items()}
    found = exchange(
        f"lockstep/same/{name}", published, lambda: _wait(words, f"same/{name}", timeout)
    )
    leaves = [{place: value_digest.Leaf(*leaf) for place, leaf in one.items()} for one in found]
    differences = value_digest.differences(leaves, engine_start.labels(len(leaves)))
    if differences is not None:
        raise DifferenceError(f"{words}: the processes differ\n{differences}")


def exchange(folder: str, value: Any, wait: Callable[[], None]) -> list[Any]:
    """The ``value`` of every process of a job, by its index, through its key-value store.

    ``wait`` is a barrier of all processes.
    """
    client = _jax_compat.distributed_client()
    process, count = _jax_compat.distributed_place()
    use = current_job.part(CallNumbers).next(folder)
    shared = kv_store.of_application(client)
    shared.put(f"{folder}/{use}/{process}", value)
    wait()
    found = shared.values(f"{folder}/{use}")
    if process == 0 and use > 1:
        # All have left the exchange before this one, or they would not be here.
        client.key_value_delete(f"{folder}/{use - 1}/")
    return [found[str(other)] for other in range(count)]


@service_loss.as_reason()
def _wait(words: str, name: str, timeout: float | None) -> None:
    service_loss.raise_if_lost()
    client = _jax_compat.distributed_client()
    if client is None:
        return
    own_timeout = bool(timeout)
    if timeout is None:
        timeout = _config.current().collective_timeout
    seconds = timeout or _NO_DEADLINE
    use = current_job.part(CallNumbers).next(name)
    line = frames.innermost() or Caller("", 0, "")
    try:
        with current_job.part(OwnWaits).inside(
            Barrier(name, use, words, line.file, line.line, own_timeout)
        ):
            _await(client, [name, use, words], seconds)
    except Deadlock as error:
        raise MissingProcessError(str(error)) from None


def _await(client: Any, position: list[Any], seconds: float) -> None:
    """Waits until all processes are at ``position``: the barrier, its use, and its words."""
    process, _ = _jax_compat.distributed_place()
    name, use, words = position
    shared = kv_store.of_application(client)
    shared.put(f"{_POSITIONS}/{process}", position, overwrite=True)
    earlier = watchdogs.abort_text()
    failed = _Waiting(client, f"lockstep/{name}/{use}", seconds)
    while not failed.over(_CHECK_SECONDS):
        service_loss.raise_if_lost()
        missing = _missing(shared, position)
        has_ended = any(_ended(other) for other in missing)
        # The others may have raised what the deadlock is, and ended. A program that has caught it
        # earlier may go on to barriers.
        text = watchdogs.abort_text()
        if text != earlier and text.startswith(f"lockstep: {BARRIER_DEADLOCK}"):
            raise Deadlock(text)
        if has_ended:
            break
        watchdogs.scan()
    else:
        if failed.error is None:
            return
        service_loss.raise_if_lost(_CHECK_SECONDS)
        missing = _missing(shared, position)
    if not missing:
        raise MissingProcessError(
            f"{words}: the others waited {seconds:g} s for process {process} and gave up. "
            f"The coordination service says: {failed.error}"
        ) from None
    raise MissingProcessError(_words(shared, words, failed.waited, missing)) from None


class _Waiting:
    """The service's barrier, waited for in a thread, so that the caller can check others."""

    def __init__(self, client: Any, key: str, seconds: float) -> None:
        self.error: Exception | None = None
        self._started = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(client, key, seconds), name="lockstep-barrier", daemon=True
        )
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


def _missing(shared: kv_store.Store, position: list[Any]) -> list[int]:
    """The processes that are not where ``position`` is."""
    _, count = _jax_compat.distributed_place()
    positions = _positions(shared)
    return [other for other in range(count) if positions.get(other) != position]


def _positions(shared: kv_store.Store) -> dict[int, list[Any]]:
    return {int(process): position for process, position in shared.values(_POSITIONS).items()}


def _ended(process: int) -> str | None:
    """How the launcher has seen ``process`` end; None while it runs, or when that is not known."""
    folder = _config.current().process_dir(process)
    found = _run_files.Exit.read(folder, engine_start.local_pid(process)) if folder else None
    return found.words() if found else None


def _words(shared: kv_store.Store, words: str, waited: float, missing: list[int]) -> str:
    """The first line, which reports show alone, has the first of the ``missing``: one that has
    ended, if there is one. The others follow."""
    process, count = _jax_compat.distributed_place()
    labels = engine_start.labels(count)
    positions = _positions(shared)
    ended = {other: how for other in missing if (how := _ended(other))}
    blocks = []
    for i, other in enumerate(sorted(missing, key=lambda other: other not in ended)):
        stack = _stack(other) if other not in ended and i < _MAX_STACKS else None
        place = stack_dump.outside_libraries(stack) if stack else ""
        last = f"; last seen in {positions[other][2]}" if other in positions else ""
        state = ended.get(other) or f"has not come{f': {place}' if place else ''}"
        shown = (stack or "").splitlines()[:_STACK_LINES]
        blocks.append("\n".join([f"{labels[other]} {state}{last}", *(f"    {x}" for x in shown)]))
    head = f"{words}: {labels[process]} waited {waited:.1f} s. Missing: {len(missing)} of {count} "
    return head + "processes: " + "\n  ".join(blocks)


def _stack(process: int) -> str | None:
    folder, pid = _config.current().process_dir(process), engine_start.local_pid(process)
    if folder is None or pid is None:
        return None
    return stack_dump.main_thread(stack_dump.request(pid, folder / stack_dump.FILE))


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
