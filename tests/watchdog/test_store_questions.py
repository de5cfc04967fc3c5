"""Questions through JAX's key-value store in a job of many processes: what process 0 has to serve.

The store is a dictionary that counts; all processes are here, and look when the asker looks.
"""

from __future__ import annotations

import collections
import threading

import pytest

from fake_job import Client
from lockstep.flight_recorder.format import ProcessRecord
from lockstep.job.kv_store import Store
from lockstep.job.topology import this_process
from lockstep.watchdog import store_questions
from lockstep.watchdog.question_turns import AT_ONCE
from lockstep.watchdog.store_questions import Questions
from lockstep.watchdog.store_state import ProcessState
from lockstep.watchdog.store_watch import poll_seconds

STACK = "x" * 5000
"""Makes a state as large as a real one."""


class Service(Client):
    """Counts requests, and bytes by folder."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: collections.Counter[str] = collections.Counter()
        self.read: collections.Counter[str] = collections.Counter()

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        self.requests["put"] += 1
        super().key_value_set(key, value, allow_overwrite)

    def key_value_dir_get(self, prefix: str) -> list[tuple[str, str]]:
        self.requests[prefix] += 1
        found = super().key_value_dir_get(prefix)
        self.read[prefix] += sum(len(key) + len(text) for key, text in found)
        return found


def state(process: int, count: int) -> ProcessState:
    record = ProcessRecord(process, count, 1000 + process, "vm", f"process {process}")
    return ProcessState(process, record, {}, STACK, "train.py:7")


def job(service: Service, count: int) -> list[Questions]:
    def questions(process: int) -> Questions:
        own = this_process(process, None, "", 0)
        return Questions(Store(service), own, count, None, lambda: state(process, count))

    return [questions(process) for process in range(count)]


class Others(threading.Event):
    """Instead of a pause of the asker, the others look."""

    def __init__(self, others: list[Questions]) -> None:
        super().__init__()
        self._others = others

    def wait(self, timeout: float | None = None) -> bool:
        # In pieces: an answer takes until the next look.
        for _ in range(max(1, len(self._others) // 4)):
            if self._others:
                self._others.pop().read_news()
        return False


@pytest.mark.parametrize("count", [4, 64, 256])
def test_an_asker_reads_each_state_once(count: int) -> None:
    service = Service()
    first, *others = job(service, count)
    states, verdict = first.ask(Others(others))
    assert (sorted(states), verdict) == (list(range(count)), "")
    assert states[count - 1].record.pid == 1000 + count - 1
    assert service.read["lockstep/watch/states/"] < count * (len(STACK) + 2500)
    assert service.requests["lockstep/watch/states/"] == 1
    short = service.read["lockstep/watch/answered/"] / service.requests["lockstep/watch/answered/"]
    assert short < 150 * count


def test_one_that_has_ended_answers_by_what_it_left() -> None:
    service = Service()
    first, second, third = job(service, 3)
    second.leave()
    states, _ = first.ask(Others([third]))
    assert sorted(states) == [0, 1, 2]


def test_one_that_does_not_answer_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_questions, "ANSWER_SECONDS", 0.2)
    service = Service()
    first, second, _ = job(service, 3)
    states, _ = first.ask(Others([second]))
    assert sorted(states) == [0, 1]


@pytest.mark.full
def test_few_of_many_processes_ask_where_one_does_not_come() -> None:
    """Process 40 of 1,024 died, the others wait: each looks twice, in the order of its phase."""
    service, count = Service(), 1024
    all_of_them = job(service, count)
    waiting = [each for each in all_of_them if each is not all_of_them[40]]
    order = waiting[512:] + waiting[:512]
    rounds = []
    for _ in range(2):
        asking = []
        for each in order:
            each.read_news()
            if each.is_my_turn():
                asking.append(each)
        rounds.append([all_of_them.index(each) for each in asking])
    # Who looks first sees few notes; afterwards only the lowest ask.
    assert len(rounds[0]) == 2 * AT_ONCE
    assert len(rounds[1]) <= 2 * AT_ONCE
    assert set(range(AT_ONCE)) <= set(rounds[1])
    assert service.requests["lockstep/watch/waits/"] == 2 * (count - 1)
    assert service.read["lockstep/watch/waits/"] < 2 * count * count * 50


def test_a_process_that_goes_on_takes_its_note_back() -> None:
    service = Service()
    every = job(service, 30)
    assert [each.is_my_turn() for each in every] == [True] * AT_ONCE + [False] * (30 - AT_ONCE)
    assert not every[29].is_my_turn()
    for each in every[:22]:
        each.end_wait()
    assert every[29].is_my_turn()


def test_a_small_job_makes_no_notes() -> None:
    service = Service()
    every = job(service, AT_ONCE)
    assert all(each.is_my_turn() for each in every)
    every[0].end_wait()
    assert not service.requests


def test_a_record_of_a_stranger_is_no_question() -> None:
    service = Service()
    first, second = job(service, 2)
    service.said["lockstep/watch/news/x"] = '{"value": 3}'
    service.said["lockstep/watch/news/1"] = '{"value": "three"}'
    assert first.read_news() == ""
    assert second.is_my_turn()


def test_many_processes_look_less_often() -> None:
    assert poll_seconds(2) == poll_seconds(256) == 1.0
    assert [count / poll_seconds(count) for count in (512, 1024)] == [256.0, 256.0]
    assert poll_seconds(100_000) == 4.0
