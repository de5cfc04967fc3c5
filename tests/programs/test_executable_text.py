"""The first difference between two executables, of texts that XLA has made."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from lockstep.flight_recorder.program_difference import CONSTANT, OPERATIONS, OTHER, Difference
from lockstep.programs.difference import Lowered, explain
from lockstep.programs.executable_text import first_difference


def executable(function: Any) -> Lowered:
    made: Any = jax.jit(function).lower(jnp.ones(4)).compile().runtime_executable()
    text = made.hlo_modules()[0].to_string()
    return Lowered("step (a.py:3)", (0, 1), "", text, is_executable=True)


def explained(one: Lowered, other: Lowered) -> Difference:
    return explain(one, other, ((1,), (0, 2)))


def triple(x: Any) -> Any:
    return jnp.sin(x) * 3.0  # TRIPLE


def double(x: Any) -> Any:
    return jnp.sin(x) * 2.0  # DOUBLE


def added(x: Any) -> Any:
    return jnp.sin(x) + 2.0  # ADDED


def test_a_constant_has_its_values_and_the_line_that_uses_it() -> None:
    found = explained(executable(triple), executable(double))
    assert found.kind == CONSTANT
    assert "a constant is 3 on process 1, 2 on processes 0, 2" in str(found)
    assert "# TRIPLE" in found.sides[0].at, found
    assert "# DOUBLE" in found.sides[1].at, found


@pytest.mark.parametrize(("other", "words"), [(added, "# ADDED"), (jnp.sin, "on processes 0, 2")])
def test_an_instruction_is_named(other: Any, words: str) -> None:
    found = explained(executable(triple), executable(other))
    assert found.kind in (OPERATIONS, CONSTANT)
    assert words in str(found), found


def test_names_and_lines_make_no_difference() -> None:
    text = executable(triple).text
    assert first_difference(text, text.replace("%", "%of_another_")) is None


def test_an_executable_and_a_compiled_program_are_said_to_be_such() -> None:
    loaded = executable(triple)
    compiled = Lowered("step (a.py:3)", (0, 1), "", "module @jit_step {}")
    found = explained(loaded, compiled)
    assert found.kind == OTHER
    assert "an executable that was loaded on process 1" in str(found)
    assert "a program that was compiled on processes 0, 2" in str(found)
