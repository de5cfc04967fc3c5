"""What a source of rows is: one that every process can index, or a stream of this process's rows.

Torch and Hugging Face are recognized by their methods, and are not imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from lockstep._errors import DataError
from lockstep.data._layout import as_numpy, leaf_name

WORDS = "lockstep.data.batches"
_BLOCK = 256
"""Rows that are read at once from a local source that can be indexed."""


@dataclasses.dataclass(frozen=True)
class Indexed:
    """All rows can be read by number, the same on every process."""

    length: int
    read: Callable[[np.ndarray], Any]
    """int[n] of row numbers -> pytree of arrays [n, ...]."""


@dataclasses.dataclass(frozen=True)
class Stream:
    """Rows, or batches of rows, of this process alone, one after the other."""

    items: Iterable[Any]
    batched: bool
    """Whether an item is a batch: its arrays have a first axis of rows."""


def recognize(source: Any, local: bool | None, batched: bool | None) -> Indexed | Stream:
    """Raises TypeError for what is no source of rows, DataError for arrays that do not fit."""
    indexed = None if batched or isinstance(source, type) else _indexed(source)
    if indexed is not None and not local:
        return indexed
    if local is False:
        raise TypeError(
            f"{WORDS}: local=False needs a source with rows that can be read by number and a "
            f"length; {_name(source)} has none."
        )
    if indexed is not None:
        return Stream(_blocks_of(indexed), True)
    if hasattr(source, "__iter__") and not isinstance(source, str | bytes | dict | type):
        if _is_hugging_face(source):
            source = source.with_format("numpy")  # else a column of lists is a list of columns
        return Stream(source, _is_batched(source) if batched is None else batched)
    raise TypeError(
        f"{WORDS}: {_name(source)} is no source of rows. Expected an array, a pytree of arrays "
        "with the same first axis, a Grain dataset or loader, a torch DataLoader, a Hugging Face "
        "dataset, or an iterator of rows."
    )


def _name(source: Any) -> str:
    return f"a {type(source).__module__}.{type(source).__qualname__}"


def _blocks_of(indexed: Indexed) -> Any:
    import grain

    def block(number: int) -> Any:
        first = number * _BLOCK
        return indexed.read(np.arange(first, min(first + _BLOCK, indexed.length)))

    return (
        grain.MapDataset.range(-(-indexed.length // _BLOCK))
        .map(block)
        .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=1))
    )


def _is_batched(source: Any) -> bool:
    """Torch's DataLoader yields batches, unless its ``batch_size`` and ``batch_sampler`` are None.

    Grain's loader has none of these, and all others yield rows.
    """
    if not (hasattr(source, "dataset") and hasattr(source, "batch_sampler")):
        return False
    return source.batch_size is not None or source.batch_sampler is not None


def _indexed(source: Any) -> Indexed | None:
    if _is_hugging_face(source):
        if isinstance(source, dict):
            raise TypeError(
                f"{WORDS}: {_name(source)} has several datasets: pass one, {list(source)}."
            )
        return _of_columns(source) if hasattr(source, "__len__") else None
    if type(source).__module__.partition(".")[0] == "grain":
        is_map = hasattr(source, "__getitem__") and hasattr(source, "__len__")
        return Indexed(len(source), _reader_by_row(source)) if is_map else None
    if _is_tree_of_arrays(source):
        return _of_arrays(source)
    if any(each.__name__ == "IterableDataset" for each in type(source).__mro__):
        return None  # torch's has a __getitem__, which raises
    is_no_table = isinstance(source, dict | str | bytes)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not is_no_table:
        return Indexed(len(source), _reader_by_row(source))
    return None


def _is_hugging_face(source: Any) -> bool:
    return hasattr(source, "column_names") and hasattr(source, "with_format")


def _is_tree_of_arrays(source: Any) -> bool:
    import jax

    is_array = hasattr(source, "shape")
    if not (is_array or isinstance(source, dict | list | tuple) or not hasattr(source, "__iter__")):
        return False  # an iterator is no pytree
    if isinstance(source, list) and any(isinstance(row, dict | list | tuple) for row in source):
        return False  # a list of rows, each of which is a pytree
    leaves = jax.tree.leaves(source)
    return bool(leaves) and all(
        hasattr(leaf, "shape") and hasattr(leaf, "dtype") and hasattr(leaf, "__getitem__")
        for leaf in leaves
    )


def _of_arrays(source: Any) -> Indexed:
    import jax

    lengths: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(source)[0]:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            raise DataError(
                f"{WORDS}: {leaf_name(path)} is a global array already, of which this process "
                "holds a part. A source has the rows as NumPy, on every process or (local=True) "
                "those of this process."
            )
        if not len(leaf.shape):
            raise DataError(f"{WORDS}: {leaf_name(path)} has no axis of rows: its shape is ().")
        lengths[leaf_name(path)] = int(leaf.shape[0])
    if len(set(lengths.values())) > 1:
        raise DataError(f"{WORDS}: the arrays have different numbers of rows: {lengths}.")

    def read(rows: np.ndarray) -> Any:
        return jax.tree.map(lambda leaf: _read_array(leaf, rows), source)

    return Indexed(next(iter(lengths.values())), read)


def _read_array(leaf: Any, rows: np.ndarray) -> np.ndarray:
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        # An array of a file (HDF5, zarr) reads a slice at once. The program may write to the copy.
        return as_numpy(leaf[int(rows[0]) : int(rows[-1]) + 1])
    return as_numpy(leaf[rows])


def _of_columns(dataset: Any) -> Indexed:
    dataset = dataset.with_format("numpy")
    return Indexed(len(dataset), lambda rows: dict(dataset[rows.tolist()]))


def stacked(rows: Sequence[Any], words: str) -> Any:
    """The arrays of several rows; ``words`` names them in the `DataError` if they do not fit."""
    import jax

    try:
        return jax.tree.map(lambda *xs: np.stack([as_numpy(x) for x in xs]), *rows)
    except ValueError as error:
        raise DataError(
            f"{WORDS}: {words} differ in structure or shape ({error}). Pad rows of different "
            "lengths first."
        ) from None


def _reader_by_row(source: Any) -> Callable[[np.ndarray], Any]:
    def read(rows: np.ndarray) -> Any:
        found = [source[int(row)] for row in rows]
        if missing := [int(row) for row, x in zip(rows, found, strict=True) if x is None]:
            raise DataError(
                f"{WORDS}: the source has no row {missing[0]}. A Grain MapDataset that was "
                "filtered has holes: pass dataset.to_iter_dataset(), of this process's rows."
            )
        return stacked(found, f"rows {rows[0]} to {rows[-1]} of the source")

    return read
