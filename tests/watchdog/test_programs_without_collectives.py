"""When programs without collectives, which no process waits for, count as different."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fake_job import Client
from lockstep import _jax_compat
from lockstep.job.kv_store import Store
from lockstep.programs import compilations, modules
from lockstep.programs.compilations import Program
from lockstep.watchdog import without_collectives
from lockstep.watchdog.without_collectives import Comparison, Kinds, differing, of_each

A, B, C, D = (("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"))
ALSO_A = ("a'", "1")
"""Another module, of which the compiler has made the same."""
OWNER = {0: 0, 1: 0, 2048: 1, 4096: 2}


@pytest.mark.parametrize(
    ("own", "theirs", "found"),
    [
        ({0: [A]}, {0: [B]}, 0),
        ({0: [A, C], 1: [A]}, {0: [C, A], 1: [B]}, None),  # the others may come to B, or not
        ({0: [A], 3: [C]}, {0: [A], 3: [D]}, 3),
        ({0: [A]}, {0: [A]}, None),
        ({0: [A]}, {0: [ALSO_A]}, None),
        ({0: [A]}, {0: [A, B]}, None),  # one logs what the others do not
        ({0: [A]}, {1: [B]}, None),  # they were compiled at other places
        ({5: [A], 6: [B]}, {6: [A], 7: [B]}, None),  # one has compiled a program more
    ],
)
def test_each_must_have_one_that_the_other_has_not(own: Any, theirs: Any, found: Any) -> None:
    expected = None if found is None else ("kind", found)
    assert differing({"kind": own}, {"kind": theirs}) == expected
    assert differing({"kind": theirs}, {"kind": own}) == expected
    assert differing({"kind": own}, {"other": theirs}) is None


def test_the_program_that_not_all_have_is_that_of_a_process() -> None:
    assert of_each({0: [C, A], 1: [C, B], 2: [A, C]}) == {0: A, 1: B, 2: A}
    assert of_each({0: [C], 1: [C, B]}) == {0: C, 1: B}


class Job:
    """Three processes that compile programs, each of which looks when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = Client()
        store = Store(self.client)
        self._queue: list[Any] = []
        texts = {b"with": "all-reduce"}
        self._compared = [
            Comparison(store, p, lambda: OWNER, lambda print_: print_ == b"known") for p in range(3)
        ]
        monkeypatch.setattr(without_collectives, "_OTHERS_SECONDS", 0.0)
        monkeypatch.setattr(compilations, "made", lambda: self._queue)
        monkeypatch.setattr(
            _jax_compat, "text_of_executable", lambda e: texts.get(e.fingerprint, f"text {e}")
        )
        monkeypatch.setattr(_jax_compat, "has_collectives", lambda text: text == "all-reduce")
        monkeypatch.setattr(compilations, "identity", lambda e, text, devices: str(e.made))
        monkeypatch.setattr(
            modules, "explain", lambda _, found: {p: one.digest for p, one in found.items()}
        )

    def looks(self, process: int, *digests: str, at: str = "a.py:7", is_last: bool = False) -> Any:
        """``+step``: a program with collectives."""
        self._queue = []
        for digest in digests:
            name = digest.removeprefix("+")
            program = Program("jit_step", at, name, tuple(OWNER), "")
            print_ = b"known" if digest == "+known" else b"with" if digest != name else b""
            if digest != name:
                program = Program(f"jit_{name}", at, name, tuple(OWNER), "")
            self._queue.append((program, SimpleNamespace(fingerprint=print_, made=f"e {name}")))
        return self._compared[process].difference(is_last)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


def test_a_difference_is_found_when_both_have_gone_on(job: Job) -> None:
    assert job.looks(0, "two", "+sum") is None
    assert job.looks(2, "two", "+sum") is None
    assert job.looks(1, "three", "+known") == {0: "two", 1: "three", 2: "two"}
    assert job.looks(1) is None, "said twice"


def test_a_difference_at_the_last_place_is_looked_at_twice(job: Job) -> None:
    assert job.looks(0, "two") is None
    assert job.looks(1, "three") is None
    assert job.looks(1) == {0: "two", 1: "three"}


def test_a_difference_is_none_where_the_other_comes_to_the_same(job: Job) -> None:
    assert job.looks(0, "two") is None
    assert job.looks(1, "three") is None
    assert job.looks(0, "three") is None
    assert job.looks(1, "two") is None
    assert job.looks(1, is_last=True) is None


def test_the_first_process_looks_at_all_at_its_end(job: Job) -> None:
    job.looks(1, "three")
    assert job.looks(0, "two") is None
    assert job.looks(0, is_last=True) == {0: "two", 1: "three"}


def test_programs_of_other_lines_are_of_other_kinds(job: Job) -> None:
    job.looks(0, "two", "+sum")
    assert job.looks(1, "three", "+sum", at="a.py:8") is None
    assert job.looks(1, is_last=True) is None


def test_the_others_are_looked_at_less_often_after_a_while(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Kinds] = []
    monkeypatch.setattr(without_collectives, "differing", lambda _, theirs: looked.append(theirs))
    job.looks(0, "two")
    job.looks(1, "two")
    for _ in range(1000):
        job.looks(1)
    assert 60 <= len(looked) <= 60 + 1000 / 10


def test_nothing_is_published_where_nothing_is_new(job: Job) -> None:
    job.looks(1, "two")
    job.client.said.clear()
    job.looks(1, "+sum")
    job.looks(1)
    assert not job.client.said
