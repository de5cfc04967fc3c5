"""pytest under ``lockstep run``: one report of all ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from processes import captured
from pytest_sessions import project


def run_in_job(folder: Path, *args: str) -> str:
    command: Sequence[str] = ["run", "-n", "2", "--auto-init", "-m", "pytest", *args]
    ended = captured([sys.executable, "-m", "lockstep", *command], cwd=folder, timeout=120)
    return ended.stdout + ended.stderr


IN_JOB = """
    import jax
    import pytest

    def test_right():
        assert jax.process_count() == 2

    def test_wrong():
        assert 1 == 2

    def test_wrong_on_one():
        assert jax.process_index() == 0

    @pytest.mark.lockstep(n=2)
    def test_of_this_layout(lockstep):
        assert lockstep.size == 2

    @pytest.mark.lockstep(n=3)
    def test_of_another_layout():
        raise AssertionError
"""


def test_a_suite_under_lockstep_run_gets_one_report(tmp_path: Path) -> None:
    folder = project(tmp_path, IN_JOB)
    text = run_in_job(folder, "-p", "no:cacheprovider", "-rs", "--junitxml=out.xml")
    assert "rank 0: 1 failed, 3 passed, 1 skipped" in text
    assert "rank 1: 2 failed, 2 passed, 1 skipped; differs from rank 0:" in text
    assert "test_it.py::test_wrong_on_one: failed: assert 1 == 0" in text
    assert "the test is for 3 processes, and this job has 2" in text
    assert text.count("test session starts") == 1
    files = sorted(path.name for path in folder.glob("*.xml"))
    assert files == ["out.rank0.xml", "out.rank1.xml"]


@pytest.mark.full
def test_ranks_that_agree_are_one_line(tmp_path: Path) -> None:
    folder = project(tmp_path, IN_JOB)
    text = run_in_job(folder, "-p", "no:cacheprovider", "-k", "right or (wrong and not one)")
    assert "rank 1: 1 failed, 1 passed, the same on rank 0" in text
