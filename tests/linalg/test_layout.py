"""Index maps, as properties over sizes and meshes; no device is involved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.linalg import _cost_model
from lockstep.linalg._layout import RowMap, Sharded, exchange

SHARDED = st.sampled_from(
    [
        Sharded((("x", 3),), ("x",), ()),
        Sharded((("x", 4),), (), ("x",)),
        Sharded((("x", 2), ("y", 3)), ("y",), ("x",)),
        Sharded((("x", 2), ("y", 2)), ("y", "x"), ()),
        Sharded((("x", 2), ("y", 2)), ("x",), ()),
        Sharded((("x", 2), ("y", 2)), (), ()),
        Sharded((("x", 2), ("y", 2), ("z", 2)), ("z",), ("x",)),
    ]
)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[RowMap, RowMap]:
    """Two layouts of the same rows over the same devices."""
    sharded = draw(SHARDED)
    n = draw(st.integers(0, 30)) * sharded.size(sharded.row_axes)
    tiles = st.integers(1, 7)
    blocks = RowMap.in_blocks(sharded, n, draw(tiles))
    return blocks, RowMap.cyclic(n, sharded.devices, draw(tiles))


@settings(deadline=None)
@given(layouts())
def test_a_layout_is_a_permutation(pair: tuple[RowMap, RowMap]) -> None:
    for layout in pair:
        assert layout.padded >= layout.n
        assert layout.rows % layout.tile == 0
        assert sorted(layout.row_of_slot.ravel()) == list(range(layout.padded))
        slots = layout.slot_of_row
        assert (layout.row_of_slot.ravel()[slots] == np.arange(layout.padded)).all()


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(1, 300), st.sampled_from([16, 64]))
def test_a_layout_to_be_halved(n: int, devices: int, width: int) -> None:
    """Padding is at the end of the elimination, and less than the rows of many devices."""
    sharded = Sharded.over({"x": devices}, (), ())
    layout = RowMap.halving(sharded, n, width)
    assert layout.steps.bit_count() == 1
    if layout.padded > n:
        order = layout.elimination_order.ravel()[layout.slot_of_row[:n]]
        assert sorted(order) == list(range(n))
    assert layout.rows <= 1 + 1.5 * -(-n // devices)


@settings(deadline=None)
@given(layouts())
def test_an_exchange_brings_every_row_home(pair: tuple[RowMap, RowMap]) -> None:
    for source, target in (pair, pair[::-1]):
        tables = exchange(source, target)
        none = -1
        held = [[*map(int, rows), none] for rows in source.row_of_slot]
        for q in range(target.devices):
            received = [held[p][i] for p in range(source.devices) for i in tables.send[p, q]]
            got = [[*received, none][k] for k in tables.take[q]]
            wanted = [int(g) if g < target.n else none for g in target.row_of_slot[q]]
            assert got == wanted


@settings(deadline=None)
@given(layouts())
def test_an_exchange_is_a_small_factor_of_a_share(pair: tuple[RowMap, RowMap]) -> None:
    blocks, cyclic = pair
    share = -(-blocks.n // blocks.devices)
    width = exchange(blocks, cyclic).width
    assert width * blocks.devices <= 3 * share + cyclic.tile * blocks.devices


def test_cyclic_by_hand() -> None:
    layout = RowMap.cyclic(11, 2, 3)
    assert layout.steps == 2
    assert layout.row_of_slot.tolist() == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]


def test_blocks_by_hand() -> None:
    """Rows over y, columns over x: each of the two shards of rows is split between two devices."""
    sharded = Sharded((("x", 2), ("y", 2)), ("y",), ("x",))
    assert sharded.blocks(6) == ((0, 2), (3, 2), (2, 1), (5, 1))
    layout = RowMap.in_blocks(sharded, 6)
    assert layout.row_of_slot.tolist() == [[0, 1], [3, 4], [2, 6], [5, 7]]


def test_fewer_rows_than_devices() -> None:
    replicated = Sharded((("x", 4),), (), ())
    assert replicated.blocks(2) == ((0, 1), (1, 1), (2, 0), (2, 0))
    assert RowMap.in_blocks(replicated, 0).rows == 0


@pytest.mark.parametrize(("n", "devices"), [(4096, 4), (8192, 2), (8192, 8), (65536, 8)])
def test_what_large_matrices_gather_is_a_quarter_of_a_share(n: int, devices: int) -> None:
    tile = _cost_model.cholesky_tile(n, devices, n // devices, "cpu")
    assert devices * tile * n <= n * n / devices / 4
    assert n // devices // tile <= _cost_model.MAX_STEPS


@pytest.mark.parametrize(
    ("rows", "tile"), [(1, 1), (64, 1), (100, 2), (65, 2), (200, 4), (9000, 150)]
)
def test_tiles_of_a_grid_are_small_and_need_no_padding_if_they_can(rows: int, tile: int) -> None:
    assert _cost_model.grid_tile(rows) == tile
