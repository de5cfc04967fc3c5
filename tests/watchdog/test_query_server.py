"""What other hosts do, sent over a socket to a reader of the files of one."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from flight_recorder.test_format import record
from lockstep.flight_recorder.run_records import Process, Run
from lockstep.system import channel
from lockstep.watchdog import query_server


def process(index: int, nonce: int = 7) -> Process:
    return Process(index, dataclasses.replace(record(3), process=index, nonce=nonce))


@pytest.fixture
def one_host() -> Run:
    """Process 1 is elsewhere."""
    missing = Process(1, problems=("this process left no files",))
    return Run((process(0), missing), clock_error_ns=2000)


def tell(folder: Path, said: bytes) -> None:
    query_server.QueryServer(folder, lambda: said).start()


def test_processes_of_other_hosts_are_added(tmp_path: Path, one_host: Run) -> None:
    tell(tmp_path, query_server.pack([process(1)], 1500))
    for _ in range(2):  # as `lockstep top` asks again and again
        whole = query_server.complete(one_host, tmp_path)
        assert whole.processes == (process(0), process(1))
        assert whole.clock_error_ns == 3500


def test_a_directory_with_a_long_path_has_a_socket_too(tmp_path: Path, one_host: Run) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    tell(folder, query_server.pack([process(1)], 0))
    assert query_server.complete(one_host, folder).processes == (process(0), process(1))


def test_a_record_that_is_there_is_not_replaced(tmp_path: Path, one_host: Run) -> None:
    changed = dataclasses.replace(process(0), problems=("told",))
    tell(tmp_path, query_server.pack([changed, process(1)], 0))
    assert query_server.complete(one_host, tmp_path).processes[0] == process(0)


def test_records_of_other_jobs_are_not_believed(tmp_path: Path, one_host: Run) -> None:
    tell(tmp_path, query_server.pack([process(1, nonce=8)], 0))
    assert query_server.complete(one_host, tmp_path).processes == one_host.processes


@pytest.mark.parametrize(
    "said", [b"", b"no message", channel.encode("processes"), channel.encode("x", processes=[])]
)
def test_an_answer_that_cannot_be_read_is_none(tmp_path: Path, one_host: Run, said: bytes) -> None:
    tell(tmp_path, said)
    assert query_server.complete(one_host, tmp_path) == one_host


def test_a_agent_that_cannot_look_goes_on(tmp_path: Path, one_host: Run) -> None:
    answers = iter([None, query_server.pack([process(1)], 0)])

    def scan() -> bytes:
        if (answer := next(answers)) is None:
            raise OSError("the file is gone")
        return answer

    query_server.QueryServer(tmp_path, scan).start()
    assert query_server.complete(one_host, tmp_path) == one_host
    assert query_server.complete(one_host, tmp_path).processes == (process(0), process(1))


def test_no_host_is_queried_where_all_is_there_or_none_listens(
    tmp_path: Path, one_host: Run
) -> None:
    assert query_server.complete(one_host, tmp_path) == one_host
    asked = threading.Event()
    query_server.QueryServer(tmp_path, lambda: asked.set() or b"").start()
    whole = Run((process(0), process(1)))
    assert query_server.complete(whole, tmp_path) == whole
    assert not asked.is_set()
