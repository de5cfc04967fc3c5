"""One difference is planted in one of two random programs: the explanation names its place."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from lockstep.flight_recorder.program_difference import (
    ARGUMENTS,
    DTYPES,
    FLAGS,
    OTHER,
    SHARDING,
    Difference,
)
from lockstep.flight_recorder.program_difference import (
    MESH as MESH_OF,
)
from lockstep.programs.difference import Lowered, explain
from programs.planted import MESH, STATEMENTS, Statement, argument, line_of, lowered

GROUPS = ((1,), (0, 2))


def assert_names(
    found: Difference, statement: Statement, choices: tuple[str, str], at: Collection[int]
) -> None:
    few, many = found.sides
    assert found.culprits == (1,)
    assert found.kind in statement.kinds, found
    places = {side.at.partition(": ")[0] for side in found.sides if side.at}
    assert places
    assert places <= {f"train.py:{line}" for line in at}, found
    assert few.what or many.what
    if statement.words:
        for side, choice in zip((few, many), choices, strict=True):
            assert statement.words.replace("{}", choice) in side.what, found


ALONE = [
    pytest.param(name, *pair, id=f"{name}: {' or '.join(pair)}")
    for name, one in STATEMENTS.items()
    for pair in itertools.permutations(one.choices, 2)
]


@pytest.mark.parametrize("axes", [("1", "0"), ("0", "1")])
def test_the_first_of_two_alike_calls_is_named(axes: tuple[str, str]) -> None:
    """JAX makes a function of the program for each, or one for both."""
    statement = STATEMENTS["an axis of cumsum"]
    planted, other = axes
    again = statement.line(other, "v", "w")
    one, two = (lowered([statement.line(axis, "v", "w"), again]) for axis in axes)
    assert_names(explain(one, two, GROUPS), statement, (planted, other), {line_of(0)})


def test_a_difference_in_a_jitted_lambda_is_named() -> None:
    """MLIR prints its name in quotes, here behind another function of the program."""
    statement = STATEMENTS["a static argument"]
    before = STATEMENTS["a backward rule"].line("clipped", "v", "w")
    one, two = (lowered([before, statement.line(n, "v", "w")]) for n in ("3.0", "2.0"))
    assert_names(explain(one, two, GROUPS), statement, ("3.0", "2.0"), {line_of(1)})


@functools.cache
def alone(name: str, choice: str) -> Lowered:
    """A program with one statement of the table: several differences are planted in each."""
    return lowered(["v = v + w", STATEMENTS[name].line(choice, "v", "w"), "w = w * v"])


@pytest.mark.parametrize(("name", "planted", "other"), ALONE)
def test_a_difference_of_each_kind_is_named(name: str, planted: str, other: str) -> None:
    found = explain(alone(name, planted), alone(name, other), GROUPS)
    assert_names(found, STATEMENTS[name], (planted, other), {line_of(1)})


Line = tuple[str, str, bool]
"""A statement's name, what it has in its place, and whether it changes ``w`` and not ``v``."""


@st.composite
def lines(draw: st.DrawFn) -> Line:
    name = draw(st.sampled_from(sorted(STATEMENTS)))
    return name, draw(st.sampled_from(STATEMENTS[name].choices)), draw(st.booleans())


def written(program: list[Line]) -> list[str]:
    return [
        STATEMENTS[name].line(choice, *("wv" if turned else "vw"))
        for name, choice, turned in program
    ]


programs = st.lists(lines(), min_size=1, max_size=8)


@settings(deadline=None)
@given(programs, st.data())
def test_a_difference_in_a_random_program_is_named(
    program: list[Line], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(program) - 1), label="where")
    name, own, turned = program[at]
    statement = STATEMENTS[name]
    choice = data.draw(st.sampled_from([c for c in statement.choices if c != own]), label="planted")
    other = [*program[:at], (name, choice, turned), *program[at + 1 :]]
    one, two = (lowered(written(each)) for each in (other, program))
    like = [i for i, line in enumerate(program) if statement.is_traced_once and line[0] == name]
    places = {line_of(i) for i in (at, *like)}
    assert_names(explain(one, two, GROUPS), statement, (choice, own), places)


@dataclasses.dataclass(frozen=True)
class Outer:
    """What differs in the program as a whole: what `jax.jit` is given, or what stands beside it."""

    planted: dict[str, Any]
    words: str
    kind: str
    own: dict[str, Any] = dataclasses.field(default_factory=dict)


X = argument()
ROWS, COLUMNS = (argument((4, 4), "float32", axis) for axis in ("x", "y"))
BY_X, BY_Y = (NamedSharding(MESH, PartitionSpec(axis)) for axis in ("x", "y"))
OUTER = {
    "donation": Outer(
        {"donate_argnums": 1},
        "argument w is donated on process 1, not donated on processes 0, 2",
        ARGUMENTS,
    ),
    "shape": Outer(
        {"arguments": (X, argument((1, 4)))},
        "argument w is f32[1,4] on process 1, f32[4,4] on processes 0, 2",
        ARGUMENTS,
    ),
    "dtype": Outer(
        {"arguments": (argument((4, 4), "uint32"), X)},
        "argument v is u32[4,4] on process 1, f32[4,4] on processes 0, 2",
        DTYPES,
    ),
    "sharding of an argument": Outer(
        {"arguments": (ROWS, X)},
        "the sharding of argument v is P('x', None) on process 1, P('y', None) on processes 0, 2",
        SHARDING,
        {"arguments": (COLUMNS, X)},
    ),
    "sharding of a result": Outer(
        {"out_shardings": (BY_X, None)},
        "the sharding of result [0] is P('x', None) on process 1, P('y', None) on processes 0, 2",
        SHARDING,
        {"out_shardings": (BY_Y, None)},
    ),
    "order of the devices": Outer(
        {"devices": (1, 0, 2, 3)},
        "the mesh is devices 1, 0, 2, 3 on process 1, devices 0, 1, 2, 3 on processes 0, 2",
        MESH_OF,
    ),
    "devices": Outer({"devices": (4, 5, 6, 7)}, "the mesh is devices 4-7 on process 1", MESH_OF),
    "flag": Outer({"flags": "--xla_a=1"}, "XLA_FLAGS is --xla_a=1 on process 1, not set on", FLAGS),
    "one of two flags": Outer(
        {"flags": "--xla_a=1 --xla_b=2"},
        "XLA_FLAGS is --xla_b=2 on process 1, --xla_b=3 on processes 0, 2",
        FLAGS,
        {"flags": "--xla_a=1 --xla_b=3"},
    ),
    "function": Outer({"title": "evaluate (b.py:9)"}, "evaluate (b.py:9) and not step", OTHER),
}


def assert_names_outer(pair: Sequence[Lowered], planted: Outer) -> None:
    one, two = pair
    found = explain(one, two, GROUPS)
    assert (found.kind, found.culprits) == (planted.kind, (1,)), found
    assert planted.words in str(found)


def both(statements: list[str], planted: Outer) -> list[Lowered]:
    return [lowered(statements, **each) for each in (planted.planted, planted.own)]


@pytest.mark.parametrize("planted", OUTER.values(), ids=OUTER)
def test_what_differs_in_the_whole_of_a_program_is_named(planted: Outer) -> None:
    assert_names_outer(both(["v = v + w.astype(v.dtype)", "w = w + 1"], planted), planted)


@settings(deadline=None)
@given(programs, st.sampled_from(sorted(OUTER)))
def test_what_differs_in_the_whole_of_a_random_program_is_named(
    program: list[Line], name: str
) -> None:
    statements = [*written(program), "v = v + w.astype(v.dtype).sum(); w = w + v"]
    try:
        pair = both(statements, OUTER[name])
    except (TypeError, ValueError):  # a statement that takes no such argument
        reject()
    assert_names_outer(pair, OUTER[name])
