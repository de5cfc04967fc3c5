"""A correct program raises nothing, however unlike its processes are in what is their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from faults.harness import PROGRAMS
from lanes import full
from of_this_jax import without_warnings
from support import assert_unsaid, run_lockstep

SOUND = PROGRAMS / "sound.py"


@pytest.mark.parametrize(
    ("n", "d", "options"),
    [
        (2, 2, []),
        full(4, 1, []),
        pytest.param(3, 1, [], marks=pytest.mark.slow),
        pytest.param(4, 2, [], marks=pytest.mark.slow),
        full(2, 2, ["--strict"]),
        pytest.param(2, 1, ["--strict"], marks=pytest.mark.slow),
    ],
)
def test_a_correct_program_raises_nothing(n: int, d: int, options: list[str]) -> None:
    args = ["", "strict"] if "--strict" in options else [""]
    result = run_lockstep(options, SOUND, n=n, d=d, program_args=args, timeout=120, forked=True)
    assert result.by_process == {i: ["finished"] for i in range(n)}, result
    assert_unsaid("lockstep", "".join(without_warnings(result.stderr)))


@pytest.mark.full
def test_a_compilation_cache_that_is_warm_on_one_process_only(tmp_path: Path) -> None:
    # Programs from the cache carry the numbers of the run that compiled them.
    for _ in range(2):
        result = run_lockstep(
            [], SOUND, d=2, program_args=[str(tmp_path)], timeout=120, forked=True
        )
        assert result.by_process == {0: ["finished"], 1: ["finished"]}, result
        assert_unsaid("lockstep:", "".join(without_warnings(result.stderr)))
        assert list((tmp_path / "0").iterdir())
        shutil.rmtree(tmp_path / "1")
