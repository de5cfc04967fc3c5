"""What is a source of rows, and how it is read: in this process, without a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import lockstep
from lockstep import data
from lockstep.data import _sources
from processes import python


class TorchLoader:
    """The attributes by which torch's DataLoader is recognized; the real one was tried by hand."""

    def __init__(self, batch_size: int | None) -> None:
        self.dataset, self.batch_sampler, self.batch_size = [], None, batch_size

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Table:
    """Rows by number, without being an array."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> tuple[int, list[float]]:
        return row, [row / 2]


def real(values: jax.Array, mask: jax.Array | None) -> list[Any]:
    """The values of the rows that are no padding."""
    assert mask is not None
    return np.asarray(values)[np.asarray(mask)].tolist()


@pytest.fixture
def rows() -> NamedSharding:
    return NamedSharding(jax.make_mesh((1,), ("data",)), P("data"))


def test_arrays_and_tables_are_read_by_row_number() -> None:
    for source in ({"x": np.arange(6).reshape(3, 2)}, np.arange(3), Table()):
        found = _sources.recognize(source, None, None)
        assert isinstance(found, _sources.Indexed)
        assert found.length == 3
        [first, *_] = jax.tree.leaves(found.read(np.array([2, 0])))
        assert len(first) == 2
    number, half = found.read(np.array([2, 0]))
    assert number.tolist() == [2, 0]
    assert half[0].tolist() == [1.0, 0.0]


def test_a_list_of_pytrees_has_a_row_in_each() -> None:
    images = [{"image": np.full((4, 4), i), "label": np.int32(i)} for i in range(3)]
    for source in (images, [(row["image"], row["label"]) for row in images]):
        found = _sources.recognize(source, None, None)
        assert isinstance(found, _sources.Indexed)
        assert found.length == 3
        image, label = jax.tree.leaves(found.read(np.array([2, 0])))
        assert image.shape == (2, 4, 4)
        assert label.tolist() == [2, 0]


def test_what_is_read_is_no_view_of_the_source() -> None:
    source = np.zeros(4)
    found = _sources.recognize(source, None, None)
    assert isinstance(found, _sources.Indexed)
    block = found.read(np.arange(2))
    source[:] = 1
    assert block.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("source", "batched"),
    [(iter([1]), False), (TorchLoader(4), True), (TorchLoader(None), False), (range, None)],
)
def test_streams_of_rows_and_of_batches(source: Any, batched: bool | None) -> None:
    if batched is None:
        with pytest.raises(TypeError, match=r"a builtins\.type is no source of rows"):
            _sources.recognize(source, None, None)
        return
    found = _sources.recognize(source, None, None)
    assert isinstance(found, _sources.Stream)
    assert found.batched is batched
    with pytest.raises(TypeError, match=r"local=False needs a source with rows that can be read"):
        _sources.recognize(source, False, None)


class IterableDataset:
    """As torch's: it has a length, and a ``__getitem__`` that raises."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class OwnDataset(IterableDataset):
    """What a program makes of it."""


@pytest.mark.full
def test_an_iterable_dataset_of_torch_is_a_stream(rows: NamedSharding) -> None:
    found = _sources.recognize(OwnDataset(), None, None)
    assert isinstance(found, _sources.Stream)
    assert not found.batched
    [first, second] = data.batches(OwnDataset(), 2, rows)
    assert (first.rows.tolist(), second.rows.tolist()) == ([0, 1], [2, 3])


@pytest.mark.full
def test_datasets_and_loaders_of_torch(rows: NamedSharding) -> None:
    """Needs torch, which is no dependency: ``uv pip install torch`` into the environment first."""
    torch_data = pytest.importorskip("torch.utils.data")

    class Stream(torch_data.IterableDataset):
        def __len__(self) -> int:
            return 5

        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

    for source, batched in (
        (Stream(), False),
        (torch_data.DataLoader(Stream(), batch_size=3), True),
        (torch_data.DataLoader(Stream(), batch_size=None), False),
    ):
        found = _sources.recognize(source, None, None)
        assert isinstance(found, _sources.Stream)
        assert found.batched is batched
        batches = list(data.batches(source, 2, rows))
        assert [real(x.rows, x.mask) for x in batches] == [[0, 1], [2, 3], [4]]

    torch = pytest.importorskip("torch")
    halves = torch.arange(6.0).to(torch.bfloat16)
    for source in (halves, torch_data.DataLoader(halves, batch_size=4)):
        [first, *_] = data.batches(source, 4, rows)
        assert (first.rows.dtype, first.rows.tolist()) == ("bfloat16", [0, 1, 2, 3])


@pytest.mark.full
def test_datasets_of_hugging_face(rows: NamedSharding) -> None:
    """Needs ``datasets``, which is no dependency: ``uv pip install datasets`` first."""
    hugging = pytest.importorskip("datasets")
    table = hugging.Dataset.from_dict({"x": np.arange(10).reshape(5, 2), "y": np.arange(5)})
    for source in (table, table.with_format("torch"), table.to_iterable_dataset(num_shards=2)):
        found = list(data.batches(source, 2, rows))
        assert [real(x.rows["y"], x.mask) for x in found] == [[0, 1], [2, 3], [4]]
        assert found[1].rows["x"].tolist() == [[4, 5], [6, 7]]
    made = data.batches(table.to_iterable_dataset(num_shards=2), 2, rows)
    next(made)
    resumed = data.batches(table.to_iterable_dataset(num_shards=2), 2, rows)
    resumed.set_state(made.get_state())
    assert next(resumed).rows["y"].tolist() == [2, 3]
    with pytest.raises(TypeError, match=r"several datasets: pass one, \['train'\]"):
        data.batches(hugging.DatasetDict({"train": table}), 2, rows)


def test_a_list_of_rows_is_one_source_for_all(rows: NamedSharding) -> None:
    found = list(data.batches([{"id": i, "x": [i, i]} for i in range(3)], 2, rows))
    assert [real(x.rows["id"], x.mask) for x in found] == [[0, 1], [2]]
    assert isinstance(_sources.recognize([1, 2], None, None), _sources.Indexed)
    assert isinstance(_sources.recognize([1, 2], True, None), _sources.Stream)


@pytest.mark.parametrize("make", [list, iter])
def test_rows_of_different_shapes_are_refused(rows: NamedSharding, make: Any) -> None:
    """Each process would believe another shape of the same global array."""
    source = [{"id": i, "x": np.zeros(size)} for i, size in enumerate((2, 2, 3))]
    batches = data.batches(make(source), 1, rows)
    assert next(batches).rows["x"].shape == (1, 2)
    with pytest.raises(lockstep.DataError, match=r"float64\[2\].*float64\[3\]}\. Pad rows"):
        list(batches)
    with pytest.raises(lockstep.DataError, match=r"rows .* differ in structure or shape"):
        list(data.batches(make(source), 3, rows))


def test_text_in_a_batch_is_named(rows: NamedSharding) -> None:
    batch = {"id": np.zeros(2), "text": ["a", "b"]}
    with pytest.raises(lockstep.DataError, match=r"\['text'\]\[0\] of a batch has no axis.*'a'"):
        list(data.batches(iter([batch]), 2, rows, batched=True))


def test_errors_name_what_does_not_fit(rows: NamedSharding) -> None:
    def fails(error: type[Exception], *arguments: Any, **options: Any) -> str:
        with pytest.raises(error) as caught:
            list(data.batches(*arguments, **options))
        return str(caught.value)

    x = np.zeros((4, 2))
    assert "different numbers of rows" in fails(lockstep.DataError, {"a": x, "b": x[1:]}, 2, rows)
    assert "has no axis of rows" in fails(lockstep.DataError, {"a": x, "b": np.int32(1)}, 2, rows)
    text = np.array(["a", "b"])
    assert "['name'] has dtype <U1" in fails(lockstep.DataError, {"name": text}, 2, rows)
    assert "SingleDeviceSharding; expected a NamedSharding" in fails(
        TypeError, x, 2, SingleDeviceSharding(jax.devices()[0])
    )
    assert "last='keep': expected" in fails(ValueError, x, 2, rows, last="keep")
    assert "every=0" in fails(ValueError, x, 2, rows, every=0)
    assert "Take a multiple of 1: 1" in fails(lockstep.DataError, x, 0, rows)
    with pytest.raises(ValueError, match=r"stop='never': expected 'first' or 'last'"):
        data.equalize([], "never")  # pyright: ignore[reportArgumentType]
    with pytest.raises(lockstep.DataError, match="need the same number of rows"):
        list(data.equalize([{"a": x, "b": x[1:]}], "last"))


def test_an_iterator_is_not_restored_after_its_rows_are_gone(rows: NamedSharding) -> None:
    state = data.batches(iter(np.arange(4)), 2, rows).get_state()
    spent = iter(np.arange(4))
    batches = data.batches(spent, 2, rows)
    next(batches)
    batches.close()
    with pytest.raises(lockstep.DataError, match="cannot go back to a checkpoint"):
        batches.set_state(state)
    state["source"]["items"] = 9
    fresh = data.batches(iter(np.arange(4)), 2, rows)
    with pytest.raises(lockstep.DataError, match="after 9 items of this source, which now has 4"):
        fresh.set_state(state)


@pytest.mark.full
def test_without_grain_the_error_names_the_extra() -> None:
    ended = python(
        """
        import sys, lockstep
        sys.modules["grain"] = None
        from lockstep import data
        try:
            data.batches([], 1, None)
        except ImportError as error:
            print(error)
        """
    )
    assert "not installed: pip install 'lockstep-jax[data]'" in ended.stdout, ended
