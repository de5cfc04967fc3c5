"""The plug-in with subtests, classes of unittest, marks of parameters, and a parent without jax."""

from __future__ import annotations

import re

import pytest

from pytest_sessions import project, session

CONFTEST = """
    import sys

    def say(when, names):
        sys.__stderr__.write(f"{when}: {[name for name in names if name in sys.modules]}\\n")

    def pytest_collection_finish(session):
        say("at collection", ["jax", "jaxlib", "lockstep"])

    def pytest_unconfigure():
        say("at the end", ["jax", "jaxlib"])
"""
TESTS = """
    import unittest
    import pytest

    two = pytest.mark.lockstep(n=2, devices=1)

    @two
    class TestOfUnittest(unittest.TestCase):
        def setUp(self):
            import jax
            self.rank = jax.process_index()

        def test_right(self):
            self.assertIn(self.rank, (0, 1))

        def test_wrong(self):
            self.assertEqual(self.rank, 0)

    @pytest.mark.parametrize(
        "size",
        [
            pytest.param(1, marks=pytest.mark.lockstep(n=1, devices=1)),
            pytest.param(2, marks=two),
            pytest.param(3, marks=pytest.mark.lockstep(n=[1, 2], devices=1)),
        ],
    )
    def test_marks_of_parameters(lockstep, lockstep_layout, size):
        assert lockstep.size == size == lockstep_layout.n
"""
SUBTESTS = """
    @two
    def test_subtests(lockstep, subtests):
        for i in range(3):
            with subtests.test("number", i=i):
                assert i != 2 or lockstep.rank == 0

    @two
    class TestSubtestsOfUnittest(unittest.TestCase):
        def test_it(self):
            for i in range(2):
                with self.subTest(i=i):
                    self.assertEqual(i, 0)
"""
has_subtests = int(pytest.__version__.partition(".")[0]) >= 9


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = project(tmp_path_factory.mktemp("project"), TESTS + SUBTESTS * has_subtests, CONFTEST)
    status, text = session(folder, "-v", "--lockstep-preload=jax")
    assert status == 1, text
    return text


@pytest.mark.full
def test_classes_of_unittest_and_marks_of_parameters(printed: str) -> None:
    found = dict(re.findall(r"^test_it\.py::(?!\S*[Ss]ubtests)(\S+) ([A-Z]+)", printed, re.M))
    assert found == {
        "TestOfUnittest::test_right": "PASSED",
        "TestOfUnittest::test_wrong": "FAILED",
        "test_marks_of_parameters[1]": "PASSED",
        "test_marks_of_parameters[2]": "PASSED",
        "test_marks_of_parameters[3]": "ERROR",
    }, printed
    assert "asks for 2 layouts (n1-d1, n2-d1), and a parameter is one test" in printed


def test_neither_collection_nor_tests_bring_jax_into_the_parent(printed: str) -> None:
    assert "\nat collection: []" in printed, printed
    assert "\nat the end: []" in printed, printed


@pytest.mark.skipif(not has_subtests, reason="pytest before 9 has no subtests")
def test_each_subtest_has_a_verdict_and_none_is_lost(printed: str) -> None:
    summary = printed.split("short test summary info")[1]
    assert summary.count("SUBFAILED") == 2, printed
    assert "SUBFAILED[number] (i='2') test_it.py::test_subtests" in summary
    assert "FAILED test_it.py::test_subtests - contains 1 failed subtest" in summary
    assert "SUBFAILED(i='1') test_it.py::TestSubtestsOfUnittest::test_it" in summary
    shown = printed.split("test_subtests [number] (i='2') __")[1]
    assert "rank 1 of 2:" in shown[:400]
