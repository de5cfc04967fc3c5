"""The PMI-1 server: the protocol as data, and over sockets."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.quiet_loop import Loop
from lockstep._config import Config
from lockstep.processes.job_spec import LaunchSpec
from lockstep.processes.local_processes import LocalProcesses
from lockstep.processes.pmi import Board, PmiServer


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        ("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init rc=0 pmi_version=1"),
        ("cmd=get_maxes", "vallen_max=1024"),
        ("cmd=get_appnum", "appnum=0"),
        ("cmd=get_universe_size", "size=3"),
        ("cmd=get_my_kvsname", "kvsname=job"),
        ("cmd=finalize", "finalize_ack rc=0"),
        ("cmd=spawn", "cmd=spawn rc=-1 msg=not_supported"),
        ("nonsense", "rc=-1"),
        ("cmd=get kvsname=x key=PMI_process_mapping", "value=(vector,(0,1,3))"),
    ],
)
def test_a_request_has_one_answer(request_: str, reply: str) -> None:
    [(to, text)] = Board(3, "job").answer(1, request_)
    assert to == 1
    assert reply in text


def test_what_one_puts_all_get() -> None:
    board = Board(2, "job")
    value = r"fabric#a=b\ c(1,2)"
    assert board.answer(0, f"cmd=put kvsname=x key=addr-0 value={value}")[0][1].endswith("success")
    [(_, found)] = board.answer(1, "cmd=get kvsname=x key=addr-0")
    assert found == f"cmd=get_result rc=0 msg=success value={value}"
    [(_, missing)] = board.answer(1, "cmd=get kvsname=x key=addr-1")
    assert "rc=-1 msg=key_not_found" in missing


def test_a_barrier_answers_when_the_last_has_come() -> None:
    board = Board(3, "job")
    for _ in range(2):
        assert board.answer(2, "cmd=barrier_in") == []
        assert board.answer(0, "cmd=barrier_in") == []
        assert board.answer(1, "cmd=barrier_in") == [
            (rank, "cmd=barrier_out rc=0") for rank in range(3)
        ]


def test_an_abort_has_no_answer() -> None:
    assert Board(2, "job").answer(0, "cmd=abort exitcode=3") == []


def test_no_two_jobs_have_the_same_name() -> None:
    names = set()
    for _ in range(2):
        server = PmiServer(1)
        with socket.socket(fileno=os.dup(server.inherited(0))) as end:
            end.sendall(b"cmd=get_my_kvsname\n")
            server.serve(0)
            names.add(end.recv(100))
        server.close()
    assert len(names) == 2


@pytest.fixture
def server() -> Iterator[PmiServer]:
    server = PmiServer(2)
    yield server
    server.close()


def test_over_sockets(server: PmiServer) -> None:
    ends = [socket.socket(fileno=os.dup(server.inherited(rank))) for rank in range(2)]
    for end in ends:
        end.settimeout(10)
    assert server.environ(1) == {
        "PMI_FD": str(server.inherited(1)),
        "PMI_RANK": "1",
        "PMI_SIZE": "2",
    }
    for rank in range(2):
        server.started(rank)
    assert server.serve(0), "nothing to read is no end"
    ends[0].sendall(b"cmd=get_app")
    assert server.serve(0)
    ends[0].sendall(b"num\ncmd=barrier_in\n")
    assert server.serve(0)
    assert ends[0].recv(100) == b"cmd=appnum rc=0 appnum=0\n"
    ends[1].sendall(b"cmd=barrier_in\n")
    assert server.serve(1)
    assert [end.recv(100) for end in ends] == [b"cmd=barrier_out rc=0\n"] * 2
    for end in ends:
        end.close()
    assert not server.serve(0)
    assert not server.serve(1)


def test_the_end_of_a_process_is_readable(server: PmiServer) -> None:
    server.started(0)
    with selectors.PollSelector() as selector:
        selector.register(server.fd(0), selectors.EVENT_READ)
        assert selector.select(10)
    assert not server.serve(0)


def test_a_process_that_never_ends_its_line_is_cut_off(server: PmiServer) -> None:
    with socket.socket(fileno=os.dup(server.inherited(0))) as end:
        end.setblocking(False)
        alive = True
        for _ in range(1000):
            end.send(b"x" * 1000)
            alive = server.serve(0)
            if not alive:
                break
        assert not alive


def test_an_attempt_closes_its_sockets(tmp_path: Path) -> None:
    """A job that starts again has others each time."""
    before = os.listdir("/proc/self/fd")
    job = LaunchSpec(("x.py",), 2, Config(collectives="mpi"), {}, tmp_path)
    loop = Loop()
    processes = LocalProcesses(job, loop)
    processes.listen()
    processes.close()
    loop.selector.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)
