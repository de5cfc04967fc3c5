"""``--nnodes MIN:MAX``, and what contradicts it."""

from __future__ import annotations

import pytest

from lockstep._errors import ConfigError
from lockstep.hosts.node_range import NodeRange, check, parse


def test_a_range_and_a_number() -> None:
    assert parse("2:4") == NodeRange(2, 4)
    assert parse("3") == NodeRange(3, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4:2", "a range: MIN, 4, is more than MAX, 2"),
        *((each, "MIN:MAX or N") for each in ("0:2", "", ":", "2:", "a:b", "1:2:3", "-1")),
    ],
)
def test_what_is_no_range(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


@pytest.mark.parametrize(
    ("text", "size", "local", "restarts", "grow", "words"),
    [
        (
            "2:8",
            4,
            1,
            3,
            False,
            "--nnodes 2:8: the launcher's variables say that the job has 4 pro",
        ),
        ("6:8", 4, 1, 3, False, "so MAX can be 4 at most"),
        ("2:4", 4, 2, 3, False, "the job has 4 processes, 2 on each node, so MAX can be 2 at most"),
        ("1:2", 5, 2, 3, False, "5 processes, of which 2 run on this node: all nodes have to have"),
        ("2", 4, 2, 3, True, "--grow needs --nnodes MIN:MAX"),
        ("2:4", 4, 1, 0, False, "--nnodes 2:4 needs --max-restarts"),
        (None, 4, 1, 3, True, "--grow needs --nnodes MIN:MAX"),
        ("4", 4, 1, 3, True, "--grow needs --nnodes MIN:MAX"),
    ],
)
def test_what_contradicts_the_job(
    text: str | None, size: int, local: int, restarts: int, grow: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check(parse(text) if text else None, size, local, restarts, grow)


def test_what_fits() -> None:
    check(None, 4, 4, 0, grow=False)
    check(parse("2:3"), 4, 1, 1, grow=True)
    check(parse("4"), 4, 1, 1, grow=False)
    check(parse("1:2"), 4, 2, 1, grow=True)
