"""Watchdogs of several hosts ask each other."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lockstep._run_files import Exit
from lockstep.flight_recorder.run_records import Process
from lockstep.watchdog import messages, record_reader, remote
from lockstep.watchdog.remote import RemoteHosts
from support import wait_until
from watchdog.two_hosts import LATER, Job


def told(job: Job, asking: int) -> dict[int, tuple[str, ...]]:
    found, clocks = job.answers[asking].scan(None)
    assert clocks.keys() == {process.index for process in found}
    return {process.index: process.problems for process in found}


def test_one_process_reports_all_of_its_host(job: Job) -> None:
    # Those of one host ask different ones.
    assert told(job, 0) == {1: ("told by 1",), 3: ("told by 1",)}
    assert told(job, 2) == {1: ("told by 3",), 3: ("told by 3",)}


def test_a_process_that_is_lost_is_not_queried_and_is_reported_by_another(job: Job) -> None:
    job.post.lost = {1}
    assert told(job, 0) == {1: ("told by 3",), 3: ("told by 3",)}


def test_a_process_that_does_not_answer_is_queried_last_from_then_on(job: Job) -> None:
    job.deaf = {1}
    assert told(job, 0) == {1: ("told by 3",), 3: ("told by 3",)}
    job.deaf = {3}
    time.sleep(1.0)  # what was read is told again for ten times as long as reading it took
    assert told(job, 0) == {1: ("told by 1",), 3: ("told by 1",)}, "after 3"
    job.looks = 0
    assert told(job, 0) == {1: ("told by 1",), 3: ("told by 1",)}, "3 is not asked"


def test_a_program_that_ends_tells_the_other_hosts_to_which_it_is_connected(job: Job) -> None:
    job.post.apart = {2}
    job.answers[1].tell_end("sys.exit() at a.py:7")
    wait_until(lambda: bool(job.answers[0].left), "the message has come", 30.0)
    assert job.answers[0].left == {1: "sys.exit() at a.py:7"}
    assert job.answers[2].left == {}


def test_a_quick_scan_makes_no_connections(job: Job) -> None:
    job.post.apart = {1, 3}
    found, _ = job.answers[0].scan(64)
    assert not found
    assert job.post.apart == {1, 3}
    job.post.apart = {1}
    found, _ = job.answers[0].scan(64)
    assert {process.index: process.problems for process in found} == {
        1: ("told by 3",),
        3: ("told by 3",),
    }
    assert job.post.apart == {1}


def test_a_request_waits_for_its_connection(job: Job) -> None:
    job.post.apart = {1, 3}
    assert told(job, 0) == {1: ("told by 1",), 3: ("told by 1",)}
    assert job.post.apart == {3}, "one connection is enough"
    job.post.apart = {1, 3}
    job.answers[0].hurry(range(4))
    assert job.woken[1].wait(30)
    assert job.woken[3].wait(30)
    assert not job.woken[2].is_set(), "it is of this host"


def test_a_process_that_cannot_be_connected_to_is_queried_last_from_then_on(job: Job) -> None:
    job.post.apart = job.post.unreachable = {1}
    assert told(job, 0) == {1: ("told by 3",), 3: ("told by 3",)}
    job.post.sought.clear()
    assert told(job, 0) == {1: ("told by 3",), 3: ("told by 3",)}
    assert job.post.sought == {3}


def test_stacks_are_taken_by_another_one_where_the_first_has_died(job: Job) -> None:
    job.post.apart = job.post.unreachable = {3}
    assert job.answers[0].stacks(job.peers[1]) == "stacks of 1 by 1"


def test_a_host_without_processes_is_not_waited_for(job: Job) -> None:
    job.post.lost = {1, 3}
    assert told(job, 0) == {}


def test_processes_of_another_host_than_the_queried_one_do_not_count(
    monkeypatch: pytest.MonkeyPatch, job: Job
) -> None:
    monkeypatch.setattr(job, "process", lambda index, by=-1: Process(0 if index == 1 else index))
    assert told(job, 0) == {3: ()}


def test_answers_that_cannot_be_read_count_as_none(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.post.boxes[0].put((1, b"no note"))
    job.post.boxes[0].put((1, b'{"kind": "answer"}\0'))
    job.post.boxes[0].put((1, b'{"kind": "something new"}\0'))
    assert set(told(job, 0)) == {1, 3}
    assert capsys.readouterr().err.count("lockstep: a message of process 1: JSONDecodeError") == 1


def test_an_agent_is_queried_before_the_processes_of_its_host(job: Job) -> None:
    """Process 3 plays it."""
    agent = dataclasses.replace(job.peers[3], agent_of=1)
    asking = RemoteHosts([*job.peers[:3], agent], 0, job.local(0), job.post.of(0))
    job.answers[0].stop()
    asking.start()
    try:
        found, _ = asking.scan(None)
        assert {process.problems for process in found} == {("told by 3",)}
        assert asking.stacks(job.peers[1]) == "stacks of 1 by 3"
        asking.hurry(range(4))
        assert job.woken[1].wait(30)
        assert not job.woken[3].is_set(), "it has no lines"
        job.post.lost = {3}
        found, _ = asking.scan(None)
        assert {process.problems for process in found} == {("told by 1",)}
    finally:
        asking.stop()


def test_a_process_is_reported_by_its_host_alone(job: Job) -> None:
    told_of_3 = job.answers[0].report_of(job.peers[3], 0.3)
    assert told_of_3 is not None
    assert (told_of_3.index, told_of_3.problems) == (3, ("told by 1",))
    job.deaf = {1, 3}
    time.sleep(1.0)  # what was read is told again for ten times as long as reading it took
    assert job.answers[0].report_of(job.peers[3], 0.1) is None
    job.post.lost = {1, 3}
    assert not job.answers[0].reaches(job.peers[3])
    assert job.answers[0].report_of(job.peers[3], 0.1) is None


def test_only_those_whose_lines_are_missing_are_hurried(job: Job) -> None:
    job.post.apart = {1, 3}
    job.answers[0].hurry([2, 3])
    assert job.woken[3].wait(30)
    assert not job.woken[1].is_set()
    assert job.post.apart == {1}, "it needs no connection"


def test_stacks_are_taken_by_a_neighbour_or_by_itself(job: Job) -> None:
    def asked(process: int) -> str:
        return job.answers[0].stacks(job.peers[process])

    assert asked(1) == "stacks of 1 by 3"
    job.post.lost = {3}
    assert asked(1) == "stacks of 1 by 1"
    job.post.lost = {1, 3}
    assert "neither it nor another process of b answers" in asked(1)


def test_watchdogs_that_query_each_other_at_once_all_get_answers(job: Job) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda process: set(told(job, process)), range(4))
    assert list(found) == [{1, 3}, {0, 2}, {1, 3}, {0, 2}]


def test_an_answer_of_a_process_that_was_not_queried_is_dropped(job: Job) -> None:
    job.answers[0]._requests[0] = remote._Request(0, {1})
    head = {"kind": "answer", "number": 0, "asked": 0, "answered": 0, "processes": []}
    job.post.boxes[0].put((3, messages.pack(head)))
    job.post.boxes[0].put((1, messages.pack(head)))
    wait_until(lambda: bool(job.answers[0]._requests[0].responses), "the answer")
    assert set(job.answers[0]._requests[0].responses) == {1}


def test_expired_requests_are_not_answered() -> None:
    job = Job()
    for number in range(50):
        for asking in (0, 2):
            head = {"kind": "scan", "latest": None, "number": number}
            job.post.boxes[1].put((asking, messages.pack(head)))
    job.answers[1].start()
    try:
        for asking in (0, 2):
            head, _ = messages.unpack(job.post.boxes[asking].get(timeout=60)[1])
            assert head["number"] == 49
        assert job.looks == 1, "it was told to both"
        assert job.post.boxes[0].empty()
        assert job.post.boxes[2].empty()
    finally:
        job.answers[1].stop()


def test_the_times_of_another_host_become_those_of_this_one(job: Job) -> None:
    found, clocks = job.answers[0].scan(None)
    assert {process.index for process in found} == {1, 3}
    for process in record_reader.on_one_clock([job.process(0)], found, clocks):
        assert process.record is not None
        # What is added to its times to have those of host a, whose realtime is 10**18 at 10**15.
        shift = process.record.realtime_ns - process.record.monotonic_ns
        error = clocks[process.index].error
        assert abs(shift - (10**18 - 10**15 - LATER)) <= error + 1
        assert 0 < error < LATER / 4


def test_the_exit_of_a_process_is_told_by_the_wall_clock_of_this_host(job: Job) -> None:
    """A wall clock may be wrong by hours: the exit would come after all that it has caused."""
    found, clocks = job.answers[0].scan(None)
    hour = 3600 * 10**9
    wrong = []
    for process in found:
        assert process.record is not None
        there = process.record.realtime_ns + 3 * hour
        record = dataclasses.replace(process.record, realtime_ns=there)
        ended = Exit(exit_code=1, realtime_ns=there + 5)
        wrong.append(dataclasses.replace(process, record=record, exit=ended))
    for process in record_reader.on_one_clock([job.process(0)], wrong, clocks):
        assert process.record is not None
        assert process.exit is not None
        assert process.exit.realtime_ns == process.record.realtime_ns + 5
        assert abs(process.record.realtime_ns - 10**18) < hour
