"""NCCL's RAS port, asked over TCP, and what its answers prove."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.flight_recorder.format import ProcessRecord
from lockstep.job import topology
from lockstep.nccl import ras_port, ras_report
from lockstep.nccl.ras_polls import NEEDED, RasPolls
from lockstep.watchdog import store_watch
from lockstep.watchdog.library_counts import Lag, Place
from lockstep.watchdog.source import Source
from lockstep.watchdog.store_watch import Watch
from nccl.ras_stand_in import RasPort, answer, missing, rank, sends, slowly
from support import wait_until

REAL = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu.json"
PLACES = {process: Place(100 + process, ("127.0.0.1", "192.0.2.2")) for process in range(3)}


def even(count: int = 4, ranks: int = 3) -> bytes:
    return answer(([rank(n, 100 + n, AllReduce=count) for n in range(ranks)], []))


def lagging(late: int = 1, ranks: int = 3) -> bytes:
    counts = [3 if n == late else 4 for n in range(ranks)]
    return answer(([rank(n, 100 + n, AllReduce=counts[n]) for n in range(ranks)], []))


def judged(*answers: bytes, places: dict[int, Place] = PLACES) -> Lag | None:
    return ras_report.lag([ras_report.parse(each) for each in answers], places, NEEDED)


# The port


def test_the_port_is_asked_as_nccl_wants_it() -> None:
    with RasPort(sends(even())) as port:
        assert ras_port.ask(port.address, 5) == even()
        assert port.asked == [b"CLIENT PROTOCOL 2\nSET FORMAT json\nTIMEOUT 2\nSTATUS\n"]


def test_a_stopped_process_of_the_host_is_passed_over() -> None:
    with RasPort(None, None, sends(even())) as port:
        assert ras_port.ask(port.address, 10) == even()
        assert port.connections == 3


def test_an_answer_that_never_ends_is_given_up() -> None:
    begun = time.monotonic()
    with RasPort(slowly(even())) as port, pytest.raises(OSError, match=r"does not end|timed out"):
        ras_port.ask(port.address, 1.5)
    assert time.monotonic() - begun < 60  # `even` takes longer than that


def test_an_answer_of_any_length_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras_port, "MAX_BYTES", 1 << 20)
    with RasPort(sends(b"x" * (3 << 20))) as port, pytest.raises(OSError, match="more than"):
        ras_port.ask(port.address, 10)


@pytest.mark.parametrize("hello", [b"SSH-2.0-OpenSSH_9.2\n", b"SERVER PROTOCOL " + 200 * b"2"])
def test_another_service_on_the_port_is_left_alone(hello: bytes) -> None:
    with RasPort(sends(even()), hello=hello) as port, pytest.raises(ras_port.Unsupported):
        ras_port.ask(port.address, 5)


def test_an_older_nccl_is_told_from_one_that_is_slow() -> None:
    refusal = b"ERROR: Unknown command SET FORMAT json\n"
    port = RasPort(sends(b"NCCL version 2.26.2\n"), acknowledges=refusal)
    with port, pytest.raises(ras_port.Unsupported, match=r"2\.28\.7"):
        ras_port.ask(port.address, 5)


def test_no_more_lines_are_dropped_than_commands_were_sent() -> None:
    """Each is dropped by a copy of all that follows: millions of lines would take hours."""
    assert ras_port._json(b"OK\nERROR: no\n{}") == b"{}"
    assert ras_port._json(5 * b"OK\n") == 3 * b"OK\n"


def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            ras_port.ask(bound.getsockname(), 5)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", ("localhost", 28028)),
        ("10.0.0.7:99", ("10.0.0.7", 99)),
        ("[::1]:99", ("::1", 99)),
        ("[fe80::1%eth0]:99", ("fe80::1", 99)),
        ("no port", ("localhost", 28028)),
        ("host:0", ("localhost", 28028)),
        ("host:123456", ("localhost", 28028)),
    ],
)
def test_the_address_is_that_of_nccl(text: str, where: tuple[str, int]) -> None:
    assert ras_port.address({"NCCL_RAS_ADDR": text}) == where


# What the answers say


def test_a_real_answer_of_an_h200_names_the_process_that_lags() -> None:
    texts = json.loads(REAL.read_text())["ras"]["json"]
    answers = [ras_port._json(text.encode()) for text in texts]
    assert len(answers) == 2
    places = {0: Place(4707, ("192.0.2.2",)), 1: Place(4708, ("192.0.2.2",))}
    found = ras_report.lag([ras_report.parse(each) for each in answers], places, 2)
    assert found == Lag(
        (1,),
        (0,),
        "NCCL counts on 2 GPUs (2 equal answers of its RAS): 3 all-reduces of process 1, "
        "4 of process 0",
    )


def test_equal_answers_with_a_lag_are_a_proof_and_one_is_none() -> None:
    assert judged(lagging()) is None
    assert judged(lagging(), lagging()) is None
    found = judged(lagging(), lagging(), lagging())
    assert found
    assert (found.behind, found.waiting) == ((1,), (0, 2))
    assert found.text.endswith("3 all-reduces of process 1, 4 of processes 0, 2")


def test_a_job_that_goes_on_is_none() -> None:
    moving = [
        answer(([rank(0, 100, AllReduce=k + 1), rank(1, 101, AllReduce=k)], [])) for k in range(3)
    ]
    assert judged(*moving) is None
    assert judged(even(), even(), even()) is None
    assert judged(lagging(), even(), lagging()) is None


def test_answers_of_another_job_do_not_count() -> None:
    other = answer(([rank(0, 900, AllReduce=1), rank(1, 901, AllReduce=2)], []))
    assert judged(other, other, other) is None
    assert judged(lagging(), other, lagging(), lagging()) is not None
    elsewhere = answer(([rank(n, 100 + n, "203.0.113.9", AllReduce=n) for n in range(2)], []))
    assert judged(elsewhere, elsewhere, elsewhere) is None


def test_processes_with_one_number_are_told_apart_by_their_hosts() -> None:
    places = {0: Place(7, ("10.0.0.1",)), 1: Place(7, ("10.0.0.2",))}
    one = answer(([rank(0, 7, "10.0.0.1", AllReduce=4), rank(1, 7, "10.0.0.2", AllReduce=3)], []))
    found = judged(one, one, one, places=places)
    assert found
    assert found.behind == (1,)


@pytest.mark.parametrize("version", ["2.28.9", "2.30.7"])
@pytest.mark.parametrize(
    ("dead", "words"), [(False, "no answer from process 1"), (True, "process 1 taken for dead")]
)
def test_a_rank_without_an_answer_is_named(version: str, dead: bool, words: str) -> None:
    ranks = [rank(n, 100 + n, AllReduce=4) for n in (0, 2)]
    one = answer((ranks, [missing(1, 101, dead=dead)]), version=version)
    if version == "2.28.9":  # which forgets this comma
        one = one.replace(b'"nvml_dev": 0,\n          "status": {\n            "unresp',
                          b'"nvml_dev": 0\n          "status": {\n            "unresp')  # fmt: skip
        with pytest.raises(ValueError):
            json.loads(one)
    found = judged(one, one, one)
    assert found
    assert (found.behind, found.waiting) == ((1,), (0, 2))
    assert words in found.text


def test_a_rank_that_has_left_its_communicator_is_not_missed() -> None:
    ranks = [rank(n, 100 + n, AllReduce=4) for n in (0, 2)]
    one = answer((ranks, [missing(1, 101, silent=False)]))
    assert judged(one, one, one) is None


def test_other_operations_are_told() -> None:
    one = answer(([rank(0, 100, AllReduce=4), rank(1, 101, AllReduce=3, AllGather=1)], []))
    found = judged(one, one, one)
    assert found
    assert (found.behind, found.waiting) == ((), (0, 1))
    assert "3 all-reduces of process 1, 4 of process 0" in found.text
    assert "0 all-gathers of process 0, 1 of process 1" in found.text


def test_512_ranks() -> None:
    places = {n: Place(100 + n % 8, (f"10.0.0.{n // 8}",)) for n in range(512)}
    counts = [3 if n in (77, 78, 300) else 4 for n in range(512)]
    ranks = [rank(n, 100 + n % 8, f"10.0.0.{n // 8}", AllReduce=counts[n]) for n in range(512)]
    one = answer((ranks, []), (ranks[:8], []))
    found = judged(one, one, one, places=places)
    assert found
    assert found.behind == (77, 78, 300)
    assert "3 all-reduces of processes 77-78, 300, 4 of processes 0-76, 79-299, 301-511" in (
        found.text
    )
    assert len(one) > 200_000


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no json",
        b"[]",
        b"7",
        b'{"communicators": 7}',
        b'{"communicators": [7]}',
        b'{"communicators": [{"hash": 1, "secondary_hash": 2, "ranks": [{"rank": "x"}]}]}',
        even()[:-40],
        even().replace(b'"pid": 101', b'"pid": "me"'),
        even().replace(b'"AllReduce": 4', b'"AllReduce": [4]'),
        even().replace(b'"AllReduce": 4', b'"AllReduce": ' + 9000 * b"9"),
        even().replace(b'"pid": 101', b'"pid": 1e999'),
        100_000 * b"[",
        b"\xff\xfe\x00",
    ],
)
def test_what_is_no_answer_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        ras_report.parse(text)


# Polls


def test_polls_end_with_a_proof_and_forget_it_when_the_job_goes_on() -> None:
    with RasPort(sends(lagging())) as port:
        polls = RasPolls(lambda: ras_port.ask(port.address, 5), pause=0.02)
        assert not polls.is_settled
        assert polls.lag(PLACES) is None
        polls.begin()
        wait_until(lambda: polls.is_settled, "three answers")
        assert polls.lag(PLACES) == judged(lagging(), lagging(), lagging())
        polls.begin()  # it has begun: nothing is asked twice
        polls.end()
        assert polls.lag(PLACES) is None
        asked = port.connections
        polls.begin()
        wait_until(lambda: port.connections >= asked + NEEDED, "asked again")
        polls.end()


@pytest.mark.parametrize("text", [b"garbage", even()[: len(even()) // 2], b""])
def test_polls_of_a_hostile_port_find_nothing(text: bytes) -> None:
    with RasPort(sends(text)) as port:
        polls = RasPolls(lambda: ras_port.ask(port.address, 5), pause=0.02)
        polls.begin()
        wait_until(lambda: polls.is_settled, "a failed answer")
        assert polls.lag(PLACES) is None
        polls.end()


def test_polls_leave_another_service_alone() -> None:
    with RasPort(sends(even()), hello=b"HTTP/1.1 400\n") as port:
        polls = RasPolls(lambda: ras_port.ask(port.address, 5), pause=0.02)
        polls.begin()
        wait_until(lambda: polls.is_settled, "one answer")
        polls.end()
        polls.begin()
        assert port.connections == 1


def test_polls_end_with_the_watch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store_watch, "_POLL_SECONDS", 0.01)
    polls = RasPolls(even, pause=0.02)

    def read(_: int | None) -> ProcessRecord:
        polls.begin()  # something stands still
        raise OSError("the record cannot be read")

    nowhere: Any = None
    own = topology.this_process(0, None, "", 0)
    Watch(nowhere, own, 1, Source("NCCL", read, counts=polls), None).run()
    assert "the record cannot be read" in capsys.readouterr().err
    wait_until(
        lambda: "lockstep-ras" not in {each.name for each in threading.enumerate()},
        "the end of the polls",
    )


def test_polls_without_a_thread_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch goes on, and judges the launches alone."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    polls = RasPolls(even)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    polls.begin()
    assert polls.is_settled
    assert polls.lag(PLACES) is None
