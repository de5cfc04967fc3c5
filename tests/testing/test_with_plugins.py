"""The plug-in beside pytest-xdist, pytest-cov and the debugger."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_sessions import project, session

pytestmark = pytest.mark.full

TESTS = """
    import pytest
    from subject import branch

    @pytest.mark.lockstep(n=2, devices=1)
    def test_one(lockstep):
        value = branch(lockstep.rank)
        assert value == 5

    @pytest.mark.lockstep(n=2, devices=1)
    def test_two(lockstep):
        assert lockstep.size == 2
"""
SUBJECT = """
def branch(rank):
    if rank == 1:
        return 6
    if rank == 5:
        return 7
    return 5
"""


def subject(folder: Path) -> Path:
    (folder / "subject.py").write_text(SUBJECT)
    return project(folder, TESTS, "import sys; sys.path.insert(0, '.')")


def test_processes_of_xdist_have_pools_of_their_own(tmp_path: Path) -> None:
    status, text = session(subject(tmp_path), "-n", "2", xdist=True)
    assert status == 1
    assert "1 failed, 1 passed" in text
    assert "rank 1 of 2:" in text
    assert "assert 6 == 5" in text


def test_lines_that_ranks_execute_are_covered(tmp_path: Path) -> None:
    pytest.importorskip("pytest_cov")
    _, text = session(subject(tmp_path), "--cov=subject", "--cov-report=term-missing")
    assert re.search(r"^subject\.py +6 +1 +83% +6$", text, re.MULTILINE), text


def test_a_rank_that_fails_offers_a_debugger_on_the_terminal(tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    folder = subject(tmp_path)
    args = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--pdb", "-k", "one"]
    child = pexpect.spawn(sys.executable, args, cwd=str(folder), encoding="utf8", timeout=120)
    try:
        child.expect(r"rank 1 of 2: test_it.py::test_one")
        child.expect(r"\(rank 1\) ")
        child.sendline("p value * 7")
        child.expect("42")
        child.expect(r"\(rank 1\) ")
        child.sendline("c")
        child.expect("1 failed")
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)


def test_without_a_terminal_the_debugger_is_refused_in_words(tmp_path: Path) -> None:
    _, text = session(subject(tmp_path), "--pdb", "-k", "one", stdin=subprocess.DEVNULL)
    assert "--pdb with pytest.mark.lockstep needs a terminal" in text


EXAMPLES = """
    import hypothesis
    import pytest
    from hypothesis import strategies as st

    @pytest.mark.lockstep(n=2, devices=1)
    @hypothesis.settings(deadline=None, max_examples=20, database=None)
    @hypothesis.given(number=st.integers(0, 10**9))
    def test_ranks_draw_the_same(number):
        import lockstep
        lockstep.assert_same(number, "number")
"""


def test_hypothesis_gives_all_ranks_the_same_examples(tmp_path: Path) -> None:
    status, text = session(project(tmp_path, EXAMPLES))
    assert status == 0, text
