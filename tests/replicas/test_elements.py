"""The first element that differs is found, whatever the size and the dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.replicas import elements


def first_difference(a: Any, b: Any) -> int | None:
    first, end = 0, a.size
    while end - first > 1 or (first, end) == (0, 1):
        told = [elements.digests(copy, first, end) for copy in (a, b)]
        differing = elements.differing(told)
        if not differing:
            return None
        first, end = elements.parts(first, end)[differing[0]]
        if end - first == 1:
            return first
    return None


@given(st.integers(0, 3_000_000), st.randoms())
def test_parts_cover_a_range_once(size: int, random: Any) -> None:
    first = random.randrange(1000)
    found = elements.parts(first, first + size)
    assert len(found) <= elements.PARTS
    assert [a for a, _ in found] == [first, *(b for _, b in found[:-1])][: len(found)]
    assert (found[-1][1] if found else first) == first + size


@given(st.integers(1, 5000), st.lists(st.integers(0, 10**6), min_size=1, max_size=3))
def test_the_first_of_several_is_found(size: int, drawn: list[int]) -> None:
    a = np.arange(size, dtype=np.float32)
    b = a.copy()
    places = {place % size for place in drawn}
    for place in places:
        b[place] += 0.5
    assert first_difference(a, b) == min(places)


NAMES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "bfloat16")


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16", *NAMES])
def test_nans_are_equal_and_zeros_have_a_sign(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    a = np.ones((2, 3)).astype(kind)
    b = a.copy()
    a[1, 2], b[1, 2] = np.nan, np.copysign(np.nan, -1)
    assert first_difference(a, b) is None
    if dtype != "float8_e4m3b11fnuz":  # it has no -0.0
        a[1, 1], b[1, 1] = 0.0, -0.0
        assert first_difference(a, b) == 4


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float4_e2m1fn", "bool", "int64", "uint8"])
def test_small_and_whole_numbers(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    a = (np.arange(12) % 2).astype(kind)
    b = a.copy()
    assert first_difference(a, b) is None
    b[7] = np.zeros(1, kind)[0]
    assert first_difference(a, b) == 7


def test_an_element_is_shown_with_its_bits() -> None:
    assert elements.shown(np.array([[0.0, 0.25]], np.float32), 1) == ("0.25", "0x3e800000")
    assert elements.shown(np.array([1 - 2j], np.complex64), 0)[1] == "0x3f800000 0xc0000000"
    assert elements.shown(np.array([True]), 0) == ("True", "0x01")
