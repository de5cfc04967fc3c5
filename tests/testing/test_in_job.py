"""pytest under ``lockstep run``: one report of all ranks."""

from __future__ import annotations

import sys
from pathlib import Path

from lockstep.testing.in_job import compared
from processes import captured
from pytest_sessions import project

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
    command = [sys.executable, "-m", "lockstep", "run", "-n", "2", "--auto-init", "-m", "pytest"]
    options = ["-p", "no:cacheprovider", "-rs", "--junitxml=out.xml"]
    ended = captured([*command, *options], cwd=folder, timeout=120)
    text = ended.stdout + ended.stderr
    assert "rank 0: 1 failed, 3 passed, 1 skipped" in text
    assert "rank 1: 2 failed, 2 passed, 1 skipped; differs from rank 0:" in text
    assert "test_it.py::test_wrong_on_one: failed: assert 1 == 0" in text
    assert "the test is for 3 processes, and this job has 2" in text
    assert text.count("test session starts") == 1
    files = sorted(path.name for path in folder.glob("*.xml"))
    assert files == ["out.rank0.xml", "out.rank1.xml"]


def test_ranks_that_agree_are_one_line() -> None:
    first = {"test_right": "passed", "test_wrong": "failed: assert 1 == 2"}
    agrees = "ranks 1-2: 1 failed, 1 passed, the same on rank 0"
    assert compared(first, {1: first, 2: first})[1:] == [agrees]
