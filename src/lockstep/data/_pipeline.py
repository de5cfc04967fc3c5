"""The Grain pipelines below `lockstep.data.batches`: reading, batching, prefetch and their state.

All of it is local work in Grain's threads: rows are read, padded and put on this process's devices.
Nothing here starts a collective, because JAX does not order what several threads dispatch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import grain
import jax
import numpy as np
from grain.experimental import RebatchIterDataset, ThreadPrefetchIterDataset

from lockstep._errors import DataError
from lockstep.data import _spec
from lockstep.data._layout import BatchLayout, as_numpy, checked, leaf_name, padded
from lockstep.data._sources import WORDS, Indexed, Stream, stacked

AHEAD = 2
"""Batches that are prepared while the program computes; each holds memory."""

Place = Callable[[Any, int], Any]
"""Local rows and how many of them are real -> the batch."""


def of_indexed(
    source: Indexed, layout: BatchLayout, first_row: int, count: int, place: Place
) -> Iterator[Any]:
    """``count`` batches from the row ``first_row`` on."""
    # All processes compare their rows with the same one.
    alike = _Alike("row 0", lambda: checked(WORDS, source.read(np.arange(1))))

    def batch(number: int) -> Any:
        rows = first_row + number * layout.size + layout.rows
        real = rows[rows < source.length]
        # A process without a row of the last batch reads one, for structure and types.
        block = checked(WORDS, source.read(real if len(real) else np.array([source.length - 1])))
        alike.check(f"from row {rows[0]} on", block)
        return place(padded(block, len(real), len(rows)), len(real))

    dataset = grain.MapDataset.range(count).map(batch)
    options = grain.ReadOptions(num_threads=AHEAD, prefetch_buffer_size=AHEAD)
    return iter(dataset.to_iter_dataset(options))


def of_stream(source: Stream, layout: BatchLayout, last: str, place: Place) -> Any:
    """A Grain iterator with state over all local batches."""
    local = len(layout.rows)
    rows: Any = source.items
    if isinstance(rows, grain.MapDataset):
        rows = rows.to_iter_dataset()
    if not isinstance(rows, grain.IterDataset):
        rows = _Items(rows, source.batched)
    drop = last == "drop"
    alike = _Alike(f"the first ones of process {jax.process_index()}")
    if source.batched:
        batched: Any = RebatchIterDataset(rows.map(_block), local, drop_remainder=drop)
    else:
        words = f"rows of a batch of process {jax.process_index()}"
        batched = rows.batch(
            local, drop_remainder=drop, batch_fn=lambda found: stacked(found, words)
        )

    def finish(block: Any) -> Any:
        block = checked(WORDS, block)
        alike.check("later", block)
        count = len(jax.tree.leaves(block)[0])
        if count < local and last == "error":
            raise DataError(
                f"{WORDS}: the last batch of process {jax.process_index()} has {count} of {local} "
                "rows. Give last='pad' to fill it with masked rows, or last='drop' to leave it out."
            )
        return place(padded(block, count, local), count)

    return iter(ThreadPrefetchIterDataset(batched.map(finish), prefetch_buffer_size=AHEAD))


class _Alike:
    """Holds blocks of rows against the first one: in structure, shape and dtype of a row.

    Without it, processes with rows of another shape would make arrays of which each believes
    another shape.
    """

    def __init__(self, words: str, first: Callable[[], Any] | None = None) -> None:
        """``first`` reads rows to hold the others against, when there is a block; by default the
        first block is such."""
        self._words = words
        self._read_first = first
        self._first: Any = None

    def check(self, words: str, block: Any) -> None:
        found = _spec.row_of(block)
        if self._first is None:
            self._first = _spec.row_of(self._read_first()) if self._read_first else found
        if found != self._first:
            first, other = (_spec.text(_spec.spec_of(each)) for each in (self._first, found))
            raise DataError(
                f"{WORDS}: the rows of the source differ in structure, shape or dtype: "
                f"{self._words} {first}, {words} {other}. Pad rows of different lengths first."
            )


def _block(item: Any) -> Any:
    """The arrays of a batch, copied: many loaders write the next batch into the same memory."""

    def copied(path: Any, leaf: Any) -> np.ndarray:
        array = as_numpy(leaf)
        if not array.ndim:
            raise DataError(
                f"{WORDS}: {leaf_name(path)} of a batch has no axis of rows: it is {leaf!r:.60}. A "
                "batch has arrays alone. A torch DataLoader makes lists of texts: leave them out, "
                "or give it a collate_fn that makes numbers of them."
            )
        return array

    return jax.tree_util.tree_map_with_path(copied, item)


class _Items(grain.IterDataset):
    """Any iterable as a Grain dataset."""

    def __init__(self, items: Any, batched: bool) -> None:
        super().__init__()
        self._items = items
        self._batched = batched

    def __iter__(self) -> _ItemsIterator:
        return _ItemsIterator(self._items, self._batched)


class _ItemsIterator(grain.DatasetIterator):
    """Counts the items; its state is that number, and the source's own where it has one.

    ``get_state``/``set_state`` is Grain's interface, ``state_dict``/``load_state_dict`` that of
    torchdata and Hugging Face.
    """

    def __init__(self, items: Any, batched: bool) -> None:
        super().__init__()
        self._items = items
        self._batched = batched
        self._iterator: Any = None
        self._done = 0

    def __next__(self) -> Any:
        item = next(self._started())
        self._done += 1
        return item if self._batched else jax.tree.map(as_numpy, item)

    def _started(self) -> Iterator[Any]:
        if self._iterator is None:
            self._iterator = iter(self._items)
        return self._iterator

    def get_state(self) -> dict[str, Any]:
        return {"items": self._done, "source": self._state_of_source()}

    def _state_of_source(self) -> Any:
        for holder in (self._iterator, self._items):
            if hasattr(holder, "get_state"):
                state = holder.get_state()
                return {"bytes": state.decode()} if isinstance(state, bytes) else state
            if hasattr(holder, "state_dict"):
                return holder.state_dict()
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        if state["source"] is None:
            self._skip(state["items"])
        elif hasattr(self._items, "load_state_dict"):
            self._items.load_state_dict(state["source"])
            self._iterator = None
        else:
            self._iterator = iter(self._items)
            own = state["source"]
            is_text = own.keys() == {"bytes"}
            setter: Any = self._iterator
            setter.set_state(own["bytes"].encode() if is_text else own)
        self._done = state["items"]

    def _skip(self, count: int) -> None:
        """Takes ``count`` items of a source that begins anew."""
        # No call of iter(): that of a torch DataLoader draws from its generator.
        if self._done and hasattr(self._items, "__next__"):
            raise DataError(
                f"{WORDS}: an iterator that has yielded rows cannot go back to a checkpoint. Pass "
                "a new one, or a source that can be iterated over again."
            )
        self._iterator = None
        for done in range(count):
            try:
                next(self._started())
            except StopIteration:
                raise DataError(
                    f"{WORDS}: the checkpoint was made after {count} items of this source, which "
                    f"now has {done}."
                ) from None

    def close(self) -> None:
        super().close()
        with contextlib.suppress(AttributeError):
            self._iterator.close()
