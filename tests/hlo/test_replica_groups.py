"""The forms of replica groups that XLA prints."""

from __future__ import annotations

import pytest

from lockstep.hlo import replica_groups


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("{{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[4,2]<=[2,2,2]T(2,0,1)", ((0, 2), (4, 6), (1, 3), (5, 7))),
        ("mesh['x'=2,'y'=4] {'y'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['x'=2,'y'=4] {'x'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=2,'y'=4] {'y','x'}", ((0, 4, 1, 5, 2, 6, 3, 7),)),
        ("mesh['y'=8] {'y':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['y'=8] {'y':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=1,'b'=4] {'b'}", ((0, 1, 2, 3),)),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", ((0, 2), (1, 3))),
        (
            "mesh['a'=2,'b'=4], device_ids=([2,2,2]T(1,0,2)) {'b'}",
            ((0, 1, 4, 5), (2, 3, 6, 7)),
        ),
    ],
)
def test_each_form_gives_its_groups(text: str, groups: replica_groups.Groups) -> None:
    assert replica_groups.parse(text, 8) == groups


def test_an_unknown_form_is_an_error_that_shows_it() -> None:
    with pytest.raises(ValueError, match=r"unknown form: 'grid\[2\]'"):
        replica_groups.parse("grid[2]", 8)
