"""How processes that differ are told apart."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.sync.value_digest import MAX_LEAVES, Leaf, differences, of_array, of_object

LABELS = ["process 0", "process 1", "process 2", "process 3"]


def said(*values: object) -> list[dict[str, Leaf]]:
    return [{"": of_object(value)} for value in values]


def test_equal_values_are_no_difference() -> None:
    assert differences(said(0.1, 0.1, 0.1), LABELS) is None
    assert differences([{}, {}], LABELS) is None


def test_the_odd_one_is_marked_and_the_others_are_named_together() -> None:
    text = differences(said(0.1, 0.1, 0.5, 0.1), LABELS)
    assert text == "  processes 0-1, 3: 0.1\n  process 2: 0.5 <- differs"


def test_of_two_neither_is_the_odd_one() -> None:
    assert differences(said("a", "b"), LABELS) == "  process 0: 'a'\n  process 1: 'b'"


def test_the_place_in_a_tree_is_told_and_a_missing_leaf_is_nothing() -> None:
    trees = [{"['w']": of_object(1), "['b']": of_object(2)}, {"['w']": of_object(1)}]
    text = differences(trees, LABELS)
    assert text == "at ['b']:\n  process 0: 2\n  process 1: nothing"


def test_many_differences_are_counted() -> None:
    trees = [{f"[{i}]": of_object(i + p) for i in range(MAX_LEAVES + 2)} for p in range(2)]
    text = differences(trees, LABELS) or ""
    assert text.endswith("and 2 more places")
    assert text.count("at [") == MAX_LEAVES


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.zeros(3, np.float32), np.zeros(3, np.float64)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.zeros(100), np.r_[np.zeros(99), 1e-300]),
        (np.zeros(2), -np.zeros(2)),
    ],
    ids=["dtype", "shape", "one element", "sign of zero"],
)
def test_arrays_differ_in_dtype_shape_or_any_bit(a: np.ndarray, b: np.ndarray) -> None:
    assert of_array(a).digest != of_array(b).digest
    assert of_array(a).digest == of_array(a.copy()).digest


def test_memory_layout_and_nan_make_no_difference() -> None:
    a = np.arange(6.0).reshape(2, 3)
    a[0, 0] = np.nan
    assert of_array(a).digest == of_array(np.asfortranarray(a)).digest


def test_arrays_are_told_by_their_beginning() -> None:
    assert of_array(np.arange(20, dtype=np.int32)).text == (
        "[0, 1, 2, 3, 4, 5, 6, 7, ...] (int32[20])"
    )
    assert of_array(np.array(2.5)).text == "2.5 (float64[])"


def test_a_set_has_no_order_and_long_texts_are_cut() -> None:
    assert of_object({"b", "a"}) == of_object({"a", "b"})
    a, b = of_object("x" * 1000 + "a"), of_object("x" * 1000 + "b")
    assert a.digest != b.digest
    assert len(a.text) < 300
