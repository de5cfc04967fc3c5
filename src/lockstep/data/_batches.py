"""`batches`: any source of rows as global batches, the same number on every process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from lockstep._errors import DataError
from lockstep._words import processes
from lockstep.data import _layout, _sources, _spec
from lockstep.data._equalize import Stop, agreed
from lockstep.data._exchange import require_same_batches
from lockstep.data._sources import WORDS, Indexed, Stream

Last = Literal["pad", "drop", "error"]
_STOP: dict[str, Stop] = {"pad": "last", "drop": "first", "error": "all"}


class Batch(NamedTuple):
    """A global batch: a pytree, so a jitted function takes it whole."""

    rows: Any
    """A pytree of global arrays [batch_size, ...], in the structure of the source's rows."""
    mask: Any
    """bool[batch_size], False for rows that are padding; None unless ``last="pad"``."""


def batches(
    source: Any,
    batch_size: int,
    sharding: Any,
    last: Last = "pad",
    *,
    local: bool | None = None,
    batched: bool | None = None,
    every: int = 1,
) -> Batches:
    """Cuts a source of rows into global arrays, the same number of batches on every process.

    Every process calls this with the same arguments and iterates to the same batch. The next two
    batches are read, padded and put on this process's devices by Grain's threads while the program
    computes; these threads start no collective.

    A source that every process can read by row number (an array, a pytree of arrays with the same
    first axis, a list of rows that are pytrees, a Grain `MapDataset`, a Hugging Face `Dataset`, any
    object with a length and rows) is *one* source: batch k has its rows ``k * batch_size`` and
    following, on any number of processes, and each process reads only those that its devices hold.
    No communication is needed: an error in a row is raised by the process that reads it, and the
    others fail with its end.

    Any other source (a Grain `IterDataset` or `DataLoader`, a torch `DataLoader`, an iterator) has
    rows of this process alone. Processes may have different numbers of them; they agree on each
    step while the step before computes, as in `equalize`. An error of one process's source is
    raised on all.

    Args:
      source: where the rows come from.
      batch_size: rows of a global batch, over all processes.
      sharding: a `NamedSharding` of the batch, whose first entry divides the rows, or a pytree of
        them that is a prefix of a row's.
      last: what to do where rows do not fill a batch on every process. "pad": masked rows of
        zeros, until no process has a row. "drop": leave them out. "error": raise `DataError` on all
        processes, for a source that can be indexed before the first batch.
      local: whether the source has rows of this process alone. Default: as above; True makes, for
        instance, an array of a file that only this process has read a local source.
      batched: whether an item is a batch, whose arrays have a first axis of rows (of any length),
        not a row. Default: True for a torch `DataLoader` that makes batches, False for others.
      every: for a local source, how many batches one agreement is for; so many are held. Default:
        1.

    Returns:
      An iterator of `Batch`, with ``get_state`` and ``set_state``: see `CheckpointSave`.

    Raises:
      DataError: sizes, types or structure do not fit, or differ between processes.
      TypeError: ``source`` or ``sharding`` is of no known kind.
      ImportError: Grain is missing: ``pip install 'lockstep-jax[data]'``.
    """
    _require_grain()
    if last not in _STOP:
        raise ValueError(f"{WORDS}: last={last!r}: expected 'pad', 'drop' or 'error'.")
    if every < 1:
        raise ValueError(f"{WORDS}: every={every}: expected 1 or more.")
    found = _sources.recognize(source, local, batched)
    layout = _layout.layout(WORDS, batch_size, sharding)
    length = found.length if isinstance(found, Indexed) else "as many as each process has"
    settings = {"rows": length, "batch_size": batch_size, "last": last, "every": every}
    require_same_batches(WORDS, settings)
    if isinstance(found, Indexed):
        return _IndexedBatches(found, layout, last)
    if layout.held_twice and jax.process_count() > 1:
        raise DataError(
            f"{WORDS}: {processes(layout.held_twice)} hold the same rows of a batch "
            f"({layout.rows_sharding.spec} divides the rows into "
            f"{_layout.row_parts(layout.rows_sharding)} parts), but each would read its own from a "
            "source of local rows. Use a source that every process can index (an array, a Grain "
            "MapDataset, a Hugging Face Dataset), or divide the rows over all processes."
        )
    return _StreamBatches(found, layout, last, every)


def _require_grain() -> None:
    try:
        import grain  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{WORDS} reads with Grain, which is not installed: pip install 'lockstep-jax[data]'"
        ) from error


class Batches(Iterator[Batch]):
    """The iterator of `batches`. Only one thread uses it at a time."""

    def __init__(self, layout: _layout.BatchLayout, last: Last) -> None:
        self._layout = layout
        self._last: Last = last
        self._iterator: Any = None

    def __iter__(self) -> Batches:
        return self

    def get_state(self) -> dict[str, Any]:
        """Where the program is: after the last batch that was yielded. For JSON."""
        raise NotImplementedError

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on after the batch at which ``state`` was taken; every process calls this."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the threads that read ahead."""

    def _place(self, block: Any, count: int) -> Batch:
        mask = self._layout.mask(count) if self._last == "pad" else None
        return Batch(self._layout.place(block), mask)


class _IndexedBatches(Batches):
    def __init__(self, source: Indexed, layout: _layout.BatchLayout, last: Last) -> None:
        super().__init__(layout, last)
        self._source = source
        self._row = 0
        rest = source.length % layout.size
        if last == "error" and rest:
            raise DataError(
                f"{WORDS}: {source.length} rows make {source.length // layout.size} batches of "
                f"{layout.size}, and {rest} are left. Give last='pad' to fill the last batch with "
                "masked rows, or last='drop' to leave them out."
            )

    def __next__(self) -> Batch:
        from lockstep.data import _pipeline

        if self._iterator is None:
            left = max(0, self._source.length - self._row)
            size = self._layout.size
            count = left // size if self._last == "drop" else -(-left // size)
            self._iterator = _pipeline.of_indexed(
                self._source, self._layout, self._row, count, self._place
            )
        batch = next(self._iterator)
        self._row = min(self._row + self._layout.size, self._source.length)
        return batch

    def get_state(self) -> dict[str, Any]:
        return {"kind": "indexed", "next_row": self._row, "length": self._source.length}

    def set_state(self, state: dict[str, Any]) -> None:
        _check_kind(state, "indexed")
        if state["length"] != self._source.length:
            raise DataError(
                f"{WORDS}: the checkpoint is of a source with {state['length']} rows, and this one "
                f"has {self._source.length}. Rows would be lost or come twice."
            )
        self.close()
        self._row = state["next_row"]

    def close(self) -> None:
        if self._iterator is not None:
            self._iterator.close()
        self._iterator = None


class _StreamBatches(Batches):
    def __init__(self, source: Stream, layout: _layout.BatchLayout, last: Last, every: int) -> None:
        from lockstep.data import _pipeline

        super().__init__(layout, last)
        self._local = _pipeline.of_stream(source, layout, last, self._place)
        self._state = self._local.get_state()
        self._every = every
        self._empty: Batch | None = None
        self._done = 0

    def __next__(self) -> Batch:
        if self._iterator is None:
            self._iterator = agreed(
                self._with_states(), _STOP[self._last], WORDS, self._every, self._learn_empty
            )
        item = next(self._iterator)
        self._done += 1
        if item is None:
            assert self._empty is not None
            return self._empty
        batch, self._state = item
        return batch

    def _with_states(self) -> Iterator[tuple[Batch, Any]]:
        """The agreement takes a batch ahead, so each has the state of the time after it."""
        for batch in self._local:
            yield batch, self._local.get_state()

    def _learn_empty(self, window: list[Any]) -> None:
        rows = len(self._layout.rows)
        local = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype),
            window[0][0].rows if window else None,
        )
        # Local numbers of rows may differ between processes; the rest may not.
        row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), local)
        zeros = _spec.agree(WORDS, row, bool(window))
        block = jax.tree.map(lambda x: np.zeros((rows, *x.shape), x.dtype), zeros)
        if zeros is not None:
            self._empty = self._place(block, 0)

    def get_state(self) -> dict[str, Any]:
        process, count = jax.process_index(), jax.process_count()
        state = {"kind": "stream", "process": process, "processes": count, "batches": self._done}
        return {**state, "source": self._state}

    def set_state(self, state: dict[str, Any]) -> None:
        _check_kind(state, "stream")
        if state["processes"] != jax.process_count() or state["process"] != jax.process_index():
            raise DataError(
                f"{WORDS}: the checkpoint has the rows of process {state['process']} of "
                f"{state['processes']}, and this is process {jax.process_index()} of "
                f"{jax.process_count()}. A source of local rows is divided by the program, so only "
                "the same process of as many can go on. A source that every process can index (an "
                "array, a Grain MapDataset, a Hugging Face Dataset) goes on with any number."
            )
        self._iterator = None
        self._local.set_state(state["source"])
        self._state = state["source"]
        self._done = state["batches"]

    def close(self) -> None:
        self._local.close()


def _check_kind(state: dict[str, Any], kind: str) -> None:
    if state.get("kind") != kind:
        raise DataError(
            f"{WORDS}: the checkpoint is of a source of kind {state.get('kind')!r}, and this one "
            f"is of kind {kind!r} ('indexed': every process can read every row by its number; "
            "'stream': rows of one process)."
        )
