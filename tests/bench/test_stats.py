"""Statistics, on numbers whose answer is known."""

from __future__ import annotations

import pytest

from lockstep.bench import stats
from lockstep.bench.stats import Spread


def test_spread() -> None:
    assert Spread.of([5, 1, 4, 2, 3]) == Spread(3, 2, 4)
    assert Spread.of([1, 2]) == Spread(1.5, 1.25, 1.75)
    assert Spread.of([7]) == Spread(7, 7, 7)


def test_no_values_have_no_spread() -> None:
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


def test_ratios_pair_blocks_that_both_have() -> None:
    other = [[10.0, 30.0, 20.0], [], [8.0], [1.0]]
    first = [[2.0], [1.0], [4.0]]
    assert stats.block_ratios(other, first) == [10.0, 2.0]


@pytest.mark.parametrize(
    ("seconds", "count"), [(1e-5, 2000), (0.02, 1), (3.0, 1), (1e-9, 8192), (0.0, 8192)]
)
def test_loop_count(seconds: float, count: int) -> None:
    assert stats.loop_count(seconds, 0.02) == count
