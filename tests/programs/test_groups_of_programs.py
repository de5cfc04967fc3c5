"""Which processes are said to run another program than the others."""

from __future__ import annotations

import pytest

from lockstep.programs.compilations import Program, explain


def program(digest: str, *, executable: str = "", is_loaded: bool = False) -> Program:
    return Program(
        "jit_step", "a.py:3", digest, (0, 1, 2), "", executable=executable, is_loaded=is_loaded
    )


def loaded(digest: str, executable: str = "") -> Program:
    return program(digest, executable=executable, is_loaded=True)


COMPILED, ODD = program("m"), program("odd")
LOADED, ODD_LOADED = loaded("e"), loaded("odd")
MADE, ODD_MADE = program("m", executable="e"), program("odd", executable="o")
MADE_LOADED = loaded("e", "e")


@pytest.mark.parametrize(
    ("programs", "odd", "most"),
    [
        ([COMPILED, COMPILED, ODD], [2], [0, 1]),
        ([COMPILED, LOADED, ODD], [2], [0]),
        ([LOADED, COMPILED, ODD_LOADED], [2], [0]),
        ([LOADED, LOADED, COMPILED, ODD], [3], [2]),
        ([MADE, MADE_LOADED, ODD_MADE], [2], [0, 1]),
        ([MADE_LOADED, MADE, ODD_MADE], [2], [0, 1]),
        ([ODD_MADE, MADE_LOADED, MADE], [0], [1, 2]),
    ],
)
def test_the_odd_process_is_named(programs: list[Program], odd: list[int], most: list[int]) -> None:
    found = explain(dict(enumerate(programs)))
    assert found is not None
    assert [list(side.processes) for side in found.sides] == [odd, most]
    assert "was loaded" not in str(found), "an executable and a program that it was made of"


def test_one_executable_of_two_modules_is_one_program() -> None:
    assert explain({0: MADE, 1: MADE_LOADED}) is None


def test_an_executable_and_another_program_are_told_by_their_origin() -> None:
    assert "an executable that was loaded on process 1" in str(explain({0: COMPILED, 1: LOADED}))
