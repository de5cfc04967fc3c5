"""Sizes, cases, and how many bytes each has to move."""

from __future__ import annotations

import pytest

from lockstep.bench import cases
from lockstep.bench.cases import Case

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [("1KiB", KIB), ("64MiB", 64 * MIB), ("2GiB", 2 * GIB), ("4096", 4096), ("1.5KiB", 1536)],
)
def test_sizes(text: str, size: int) -> None:
    assert cases.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "1KB", "KiB", "-1KiB", "0", "0.3B", "1 KiB MiB"])
def test_an_invalid_size_is_an_error_that_shows_a_valid_one(text: str) -> None:
    with pytest.raises(ValueError, match="KiB, MiB or GiB"):
        cases.parse_size(text)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1KiB:64KiB", (KIB, 4 * KIB, 16 * KIB, 64 * KIB)),
        ("1KiB:32KiB", (KIB, 4 * KIB, 16 * KIB, 32 * KIB)),
        ("8:8", (8,)),
        ("1MiB,1KiB,1MiB", (KIB, MIB)),
    ],
)
def test_ranges_and_lists(text: str, sizes: tuple[int, ...]) -> None:
    assert cases.parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["2KiB:1KiB", "1KiB:2KiB:3KiB"])
def test_a_range_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="SMALLEST:LARGEST"):
        cases.parse_sizes(text)


def test_elements_divide_among_the_ranks() -> None:
    case = Case.of_size("reduce_scatter", KIB, 3, "f32")
    assert case.elements == 258
    assert case.bytes == 1032
    assert case.result_elements == 86


@pytest.mark.parametrize(
    ("op", "result", "bus", "traffic"),
    [
        ("all_reduce", 1024, 1.5 * 1024, 4 * 2048),
        ("all_gather", 4096, 3 * 1024, 4 * 5120),
        ("reduce_scatter", 256, 0.75 * 1024, 4 * 1280),
        ("all_to_all", 1024, 0.75 * 1024, 4 * 2048),
        ("permute", 1024, 1024, 4 * 2048),
    ],
)
def test_bytes_of_each_operation(op: str, result: int, bus: float, traffic: int) -> None:
    case = Case.of_size(op, KIB, 4, "f32")
    assert case.bytes == KIB
    assert case.result_bytes == result
    assert case.bus_bytes == bus
    assert case.least_traffic == traffic


def test_a_case_that_needs_too_much_memory_says_how_much() -> None:
    case = Case.of_size("all_gather", 64 * MIB, 8, "f32")
    # Per job 0.5 GiB in and 4 GiB out; two jobs, and two more results of the one whose turn it is.
    assert case.memory_needed(2) == 2 * (4 * GIB + GIB // 2) + 8 * GIB
    assert cases.fits(case, 2, 24 * GIB) is None
    reason = cases.fits(case, 2, 16 * GIB)
    assert reason is not None
    assert "needs 17 GiB" in reason
    assert "12.8 GiB may be used" in reason


def test_sizes_that_round_to_the_same_are_measured_once() -> None:
    planned = cases.plan(("permute",), (1, 2, 4, 8), 4, "f32")
    assert [case.bytes for case in planned] == [16]


@pytest.mark.parametrize(
    ("op", "bytes_"),
    [
        ("all_reduce", KIB),
        ("all_gather", 4 * KIB),
        ("reduce_scatter", KIB // 2),
        ("all_to_all", 2 * KIB),
        ("permute", KIB),
    ],
)
def test_what_has_to_cross_a_link_between_two_hosts_of_four_ranks(op: str, bytes_: int) -> None:
    assert Case.of_size(op, KIB, 8, "f32").crossing_bytes(2) == bytes_


@pytest.mark.parametrize("op", cases.OPS)
def test_nothing_has_to_leave_the_only_host(op: str) -> None:
    assert Case.of_size(op, KIB, 8, "f32").crossing_bytes(1) == 0
