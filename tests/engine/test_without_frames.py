"""A jaxlib whose communicator requests cannot be read: an error that says what to do instead."""

from __future__ import annotations

from pathlib import Path

import jaxlib.version
import pytest

from lanes import sample
from lockstep import _jax_compat
from support import run_lockstep

PROGRAM = Path(__file__).parent / "programs" / "without_frames.py"


@sample(("n", "d"), [(1, 2), (2, 2)], 1)
def test_every_collective_is_an_error_that_names_a_way_out(n: int, d: int) -> None:
    result = run_lockstep([], PROGRAM, n=n, d=d, timeout=150, forked=True)
    assert result.by_process.keys() == set(range(n)), result
    for [text] in result.by_process.values():
        assert "cannot tell which devices form the group that starts with" in text, result
        assert f"requests of jaxlib {jaxlib.version.__version__} cannot be read" in text
        assert "--collectives gloo" in text
        assert _jax_compat.pin() in text


@pytest.mark.full
def test_gloo_works_all_the_same() -> None:
    result = run_lockstep(["--collectives", "gloo"], PROGRAM, d=1, timeout=150)
    assert [lines[-1] for lines in result.by_process.values()] == ["no error"] * 2, result
