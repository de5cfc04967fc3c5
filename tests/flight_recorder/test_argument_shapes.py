"""The arguments in which two programs of one function differ."""

from __future__ import annotations

from lockstep.flight_recorder.argument_shapes import Differing, differing


def test_arguments_are_compared_by_name() -> None:
    mine = ["w: f32[8]", "batch['x']: f32[100,8]", "only mine: s32[]"]
    theirs = ["batch['x']: f32[96,8]", "w: f32[8]"]
    assert differing(mine, theirs) == (Differing("batch['x']", "f32[100,8]", "f32[96,8]"),)
    assert differing(mine, mine) == differing(mine, ()) == ()


def test_the_axis_that_differs() -> None:
    rows = Differing("x", "f32[100,8]", "f32[96,8]")
    assert (rows.sizes, rows.is_first_axis, rows.is_dtype) == ((100, 96), True, False)
    columns = Differing("x", "f32[100,8]", "f32[100,9]")
    assert (columns.sizes, columns.is_first_axis) == ((8, 9), False)
    assert Differing("x", "f32[100,8]", "f32[96,9]").sizes is None
    assert Differing("x", "f32[100]", "f32[100,1]").sizes is None
    other = Differing("x", "f32[100]", "f64[96]")
    assert (other.is_dtype, other.sizes) == (True, None)
