"""Loops of different lengths that end together: one small agreement a step, beside the step.

The agreement is an all-gather of one number over all devices. It is dispatched before the batch is
handed to the program: XLA runs it behind the step that is in flight, and its result is there when
the program asks for the next batch. Where no step is in flight XLA runs it at once, in the thread
that dispatches, so that processes meet there once more in a step. The key-value store of JAX's
coordination service would do it without a collective, at a higher cost (benchmarks/equalize.py):
each process asks one server for the numbers of all, and each request takes Python's lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import jax
import numpy as np

from lockstep._errors import DataError
from lockstep._words import processes
from lockstep.data import _exchange, _spec
from lockstep.data._exchange import Counts

Stop = Literal["first", "last", "all"]
"""When the loops end: with the first that has run out, with the last, or all must at once."""
First = Callable[[list[Any]], None]
"""Gets the first window of this process, once all have theirs."""


def equalize(
    iterator: Iterable[Any], stop: Literal["first", "last"] = "first", every: int = 1
) -> Iterator[Any]:
    """Ends the loops of all processes together, however many batches each has.

    Every process iterates over it to the end. The processes agree on each step while the step
    before computes; one item (``every`` items) is taken from ``iterator`` ahead.

    Args:
      iterator: the batches of this process. With ``stop="last"``, pytrees of arrays that this
        process holds (NumPy), with a first axis of rows, alike on all processes; with "first",
        anything.
      stop: "first" ends with the process that has the fewest batches; what others have left is not
        used. "last" goes on until no process has a batch: processes that have run out repeat an
        empty one, whose arrays are zero and whose mask is False.
      every: how many steps one agreement is for. So many items are held.

    Yields:
      With "first" the items; with "last" pairs ``(item, mask)``: mask is bool[rows], the same in
      all its elements.

    Raises:
      DataError: on every process, when ``iterator`` has raised an error on one (which raises that
        error), or the batches of processes differ in structure, shape or dtype.
      ValueError: another ``stop``, or ``every`` below 1.
    """
    if stop not in ("first", "last"):
        raise ValueError(f"equalize: stop={stop!r}: expected 'first' or 'last'.")
    if every < 1:
        raise ValueError(f"equalize: every={every}: expected 1 or more.")
    if stop == "first":
        return agreed(iterator, "first", "lockstep.data.equalize", every)
    return _with_masks(iterator, every)


def _with_masks(iterator: Iterable[Any], every: int) -> Iterator[tuple[Any, np.ndarray]]:
    words = "lockstep.data.equalize"
    zeros: list[Any] = []

    def first(window: list[Any]) -> None:
        zeros.append(_spec.agree(words, window[0] if window else None, bool(window)))

    for item in agreed(iterator, "last", words, every, first=first):
        shown = zeros[0] if item is None else item
        rows = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(shown)}
        if len(rows) != 1:
            raise DataError(
                f"{words}: with stop='last' the arrays of a batch need the same number of rows in "
                f"their first axis; found {sorted(rows)}."
            )
        yield shown, np.full(rows.pop(), item is not None)


def agreed(
    items: Iterable[Any],
    stop: Stop,
    words: str,
    every: int = 1,
    first: First | None = None,
) -> Iterator[Any]:
    """The items of this process, as many as the processes agree on; None in place of missing ones.

    ``stop="all"`` raises `DataError` on all processes unless all have the same number of items.
    """
    source = iter(items)
    if jax.process_count() == 1:
        yield from _alone(source, first)
        return
    done = 0
    window, error, counts = _take(source, every, words)
    while True:
        found = counts.read()
        if error is not None:
            raise error
        steps = _steps(found, stop, words, done)
        if not done and first is not None:
            first(window)
        end = steps < every
        ahead: list[Any] = []
        if not end:
            ahead, error, counts = _take(source, every, words)
        yield from (window[i] if i < len(window) else None for i in range(steps))
        if end:
            return
        done += steps
        window = ahead


def _alone(source: Iterator[Any], first: First | None) -> Iterator[Any]:
    for step, item in enumerate(source):
        if not step and first is not None:
            first([item])
        yield item


def _take(
    source: Iterator[Any], every: int, words: str
) -> tuple[list[Any], Exception | None, Counts]:
    """The next items, and the agreement on their number, which is in flight.

    An error of the source is raised later, by all processes at the same step: the steps before it
    are collectives that the others run too.
    """
    try:
        window = list(itertools.islice(source, every))
    except Exception as error:
        _exchange.publish_failure(error)
        return [], error, Counts(_exchange.FAILED)
    return window, None, Counts(len(window))


def _steps(counts: list[int], stop: Stop, words: str, done: int) -> int:
    if failed := [process for process, n in enumerate(counts) if n == _exchange.FAILED]:
        raise _exchange.failure(words, failed)
    fewest, most = min(counts), max(counts)
    if stop == "all" and fewest < most:
        out = [process for process, n in enumerate(counts) if n == fewest]
        rest = [process for process, n in enumerate(counts) if n > fewest]
        raise DataError(
            f"{words}: {processes(out)} has no rows "
            f"left after {done + fewest} batches, and {processes(rest)} "
            "has. Give last='pad' to go on with masked rows, or last='drop' to end here."
        )
    return most if stop == "last" else fewest
