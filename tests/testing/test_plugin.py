"""The pytest plug-in: a session with tests of every kind, and what it says of them."""

from __future__ import annotations

import re
import textwrap

import pytest

from pytest_sessions import project, session, verdicts
from support import assert_unsaid

CONFTEST = """
    import os
    import pytest

    @pytest.fixture(scope="module")
    def of_module():
        yield os.getpid()
        print("module fixture ends")

    def pytest_assertrepr_compare(op, left, right):
        if left == "mine":
            return ["explained by conftest"]
"""
TESTS = """
    import os
    import time

    import numpy as np
    import pytest

    pytestmark = pytest.mark.lockstep(n=2, devices=2)
    seen = []


    def total():
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(np.ones(3)).sum()


    def test_fixtures_are_evaluated_in_the_ranks(lockstep, of_module, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert of_module == os.getpid()
        assert (lockstep.size, len(lockstep.devices)) == (2, 4)
        lockstep.assert_same(total())
        lockstep.barrier()
        (tmp_path / str(lockstep.rank)).touch()
        assert os.listdir() == [str(lockstep.rank)]
        seen.append(of_module)


    def test_the_processes_are_those_of_the_test_before(of_module):
        assert seen == [of_module]


    def test_equal(of_module):
        print("said by both")
        three = 3
        assert three == 4


    def test_unequal(lockstep):
        print(f"said by {lockstep.rank}")
        assert {"rank": lockstep.rank} == {"rank": 5}


    def test_not_the_same(lockstep):
        lockstep.assert_same(lockstep.rank)


    def test_explained():
        assert "mine" == "yours"


    @pytest.mark.xfail(strict=True)
    def test_expected_on_one_rank(lockstep):
        assert lockstep.rank == 0


    @pytest.mark.skip(reason="not today")
    def test_skipped():
        raise AssertionError


    def test_skipped_on_one_rank(lockstep):
        if lockstep.rank == 1:
            pytest.skip("not here")


    @pytest.mark.parametrize("number", [1, 2])
    def test_parameters(number):
        assert number != 2


    @pytest.fixture
    def broken():
        raise OSError("no fixture")


    def test_broken_fixture(broken):
        pass


    # What ends its processes comes last: others have to start for the next test.

    def test_one_fails_where_the_other_waits(lockstep):
        if lockstep.rank == 1:
            assert [1, 2] == [1, 3]
        total()


    def test_recovered():
        assert total() == 6


    def test_dies(lockstep):
        if lockstep.rank == 1:
            os.kill(os.getpid(), 9)
        total()


    @pytest.mark.lockstep(n=2, devices=2, timeout=1)
    def test_too_slow(lockstep):
        if lockstep.rank == 1:
            time.sleep(100)


    @pytest.mark.lockstep(n=2, devices=2, timeout=1)
    def test_hangs(lockstep):
        if lockstep.rank == 1:
            time.sleep(100)
        lockstep.barrier()


    @pytest.mark.lockstep(n=2, devices=2, timeout=1)
    def test_hangs_before_a_collective(lockstep):
        total()
        if lockstep.rank == 1:
            time.sleep(100)
        total()


    @pytest.mark.lockstep(n=2, devices=2, timeout=1)
    def test_leaves(lockstep):
        if lockstep.rank == 0:
            lockstep.barrier()
"""
FIRST = """
    import pytest

    @pytest.fixture(scope="module")
    def resource():
        yield 1

    def test_plain(resource):
        import sys
        assert "lockstep" not in sys.modules

    @pytest.mark.lockstep(n=[1, 2], devices=2)
    def test_layouts(lockstep, lockstep_layout, resource):
        assert lockstep.size == lockstep_layout.n == len(lockstep.devices) / 2

    @pytest.mark.lockstep(n=2, devices=2)
    def test_one_layout(lockstep_layout):
        assert (lockstep_layout.n, lockstep_layout.devices) == (2, 2)

    def test_no_layout(lockstep_layout):
        pass

    def test_plain_again(resource, lockstep):
        import jax
        assert (lockstep.rank, lockstep.size) == (0, 1)
        lockstep.assert_same(3)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = project(tmp_path_factory.mktemp("project"), TESTS, CONFTEST)
    (folder / "test_first.py").write_text(textwrap.dedent(FIRST))  # with the same processes
    status, text = session(
        folder, "-v", "--lockstep-preload=jax", "--junitxml=out.xml", "--durations=0"
    )
    assert status == 1, text
    (folder / "printed").write_text(text)
    return text


def part(text: str, test: str) -> str:
    """What pytest shows of one failure."""
    return re.split(r"\n_{3,} [^\n]* _{3,}\n|\n={3,} ", text.split(f" {test} __", 1)[1])[0]


def test_every_test_has_one_verdict(printed: str) -> None:
    assert verdicts(printed) == {
        "test_fixtures_are_evaluated_in_the_ranks": "PASSED",
        "test_the_processes_are_those_of_the_test_before": "PASSED",
        "test_equal": "FAILED",
        "test_unequal": "FAILED",
        "test_not_the_same": "FAILED",
        "test_explained": "FAILED",
        "test_one_fails_where_the_other_waits": "FAILED",
        "test_recovered": "PASSED",
        "test_dies": "FAILED",
        "test_too_slow": "FAILED",
        "test_hangs": "FAILED",
        "test_hangs_before_a_collective": "FAILED",
        "test_leaves": "FAILED",
        "test_expected_on_one_rank": "XFAIL",
        "test_skipped": "SKIPPED",
        "test_skipped_on_one_rank": "PASSED",
        "test_parameters[1]": "PASSED",
        "test_parameters[2]": "FAILED",
        "test_broken_fixture": "ERROR",
    }, printed


def test_plain_tests_beside_it_and_lists_of_layouts(printed: str) -> None:
    assert verdicts(printed, "test_first") == {
        "test_plain": "PASSED",
        "test_layouts[n1-d2]": "PASSED",
        "test_layouts[n2-d2]": "PASSED",
        "test_one_layout[n2-d2]": "PASSED",
        "test_no_layout": "ERROR",
        "test_plain_again": "PASSED",
    }, printed
    assert "the fixture lockstep_layout needs the mark lockstep" in part(printed, "test_no_layout")
    assert "Do not expect" not in printed  # argparse, of an argument that it has got twice


def test_equal_failures_are_shown_once_with_their_values_and_output(printed: str) -> None:
    shown = part(printed, "test_equal")
    assert shown.count("assert 3 == 4") == 1
    assert "ranks 0-1 of 2:" in shown
    assert "Captured stdout call (ranks 0-1 of 2)" in shown
    assert shown.count("said by both") == 2  # the source, and the output


def test_unequal_failures_and_their_output_are_shown_by_rank(printed: str) -> None:
    shown = part(printed, "test_unequal")
    for rank in range(2):
        assert f"rank {rank} of 2:" in shown
        assert f"{{'rank': {rank}}} == {{'rank': 5}}" in shown
        assert f"Captured stdout call (rank {rank} of 2)" in shown
        assert f"\nsaid by {rank}" in shown
    assert "explained by conftest" in part(printed, "test_explained")


def test_an_error_of_lockstep_is_shown_at_the_line_of_the_test(printed: str) -> None:
    shown = part(printed, "test_not_the_same").split("ranks 0-1 of 2:")[1]
    said = shown.split(
        ">       lockstep.assert_same(lockstep.rank)\nE       lockstep.DifferenceError: "
    )
    assert_unsaid("barrier.py", shown)
    assert re.search(r"E +process 1 \(pid \d+ on \S+\): 1\n\ntest_it.py:\d+: Diff", said[1]), shown


def test_the_rank_that_fails_comes_first_and_the_one_that_waits_is_short(printed: str) -> None:
    shown = part(printed, "test_one_fails_where_the_other_waits")
    assert shown.index("rank 1 of 2:") < shown.index("rank 0 of 2:")
    assert "assert [1, 2] == [1, 3]" in shown
    assert "process 1 left the function; the others wait for it" in shown
    assert_unsaid("multihost_utils.py", shown)


def test_a_death_and_a_deadline_are_told(printed: str) -> None:
    assert "process 1 died: killed by SIGKILL (signal 9)" in part(printed, "test_dies")
    slow = part(printed, "test_too_slow")
    assert "process 1 did not return and was stopped" in slow
    assert "in test_too_slow" in slow
    assert "_pytest" not in slow


@pytest.mark.parametrize("test", ["test_hangs", "test_hangs_before_a_collective"])
def test_the_rank_that_hangs_comes_before_the_one_that_waits(printed: str, test: str) -> None:
    shown = part(printed, test)
    culprit = shown.index("process 1 did not return and was stopped")
    assert culprit < shown.index("process 0 waited for process 1 and was stopped")
    assert re.search(rf"FAILED test_it.py::{test} - process 1 did not", printed), printed


def test_the_rank_that_has_left_comes_before_the_one_that_waits(printed: str) -> None:
    shown = part(printed, "test_leaves")
    assert "process 1 left the function; process 0 waited for it and was stopped" in shown
    assert "in test_leaves" in shown
    assert "lost_service.py" not in shown  # a thread of lockstep.barrier


def test_durations_have_the_start_and_the_tests_that_were_stopped(printed: str) -> None:
    found = re.findall(r"^([\d.]+)s (\w+) +test_it\.py::(\S+)$", printed, re.MULTILINE)
    seconds = {(phase, test): float(text) for text, phase, test in found}
    for test in ("test_too_slow", "test_hangs", "test_leaves"):
        assert 1 <= seconds["call", test] < 60, seconds
    assert seconds["setup", "test_leaves"] > 0.5, seconds  # those of the test before are gone
