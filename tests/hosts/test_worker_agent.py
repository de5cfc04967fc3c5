"""The agent's side of the connection to the supervisor of its job, over loopback."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from lockstep._errors import LaunchError
from lockstep._run_files import ErrorRecord, Exit
from lockstep.hosts import agent_messages, lease
from lockstep.hosts.agent_messages import Ended
from lockstep.system.channel import Channel
from worker.supervised import Line

TIMEOUT = 60.0
SMALL = 4096
"""Bytes; the kernel doubles it."""


def small_pair() -> tuple[socket.socket, socket.socket]:
    """A connection of which each side holds little."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        client.settimeout(TIMEOUT)
        client.connect(server.getsockname())
        return socket.socket(fileno=client.detach()), server.accept()[0]


def test_a_long_traceback_has_been_sent_when_the_report_returns() -> None:
    """Nothing else writes the rest: the agent waits for the decision, or leaves."""
    ours, theirs = small_pair()
    line = Line(ours, 1)
    found: list[object] = []

    def read() -> None:
        time.sleep(0.5)  # until the sockets are full
        channel = Channel.of(theirs)
        if message := channel.next(TIMEOUT):
            found.append(agent_messages.read(message, 0.0))
        channel.close()

    reader = threading.Thread(target=read)
    reader.start()
    record = ErrorRecord(time.monotonic(), 1, "ValueError: no data", "x" * (1 << 18) + "the end")
    line.ended(Exit.of(1), record, False, False)
    line.close()
    reader.join(TIMEOUT)
    [ended] = found
    assert isinstance(ended, Ended)
    assert ended.record
    assert ended.record.traceback.endswith("xthe end")


def test_a_supervisor_that_is_gone_does_not_hold_its_agent() -> None:
    ours, theirs = small_pair()
    line = Line(ours, 1)
    theirs.close()
    record = ErrorRecord(time.monotonic(), 1, "ValueError: no data", "x" * (1 << 18))
    line.ended(Exit.of(1), record, False, False)
    assert line.decision(TIMEOUT) is False
    line.close()


def test_an_agent_waits_for_its_start_as_long_as_signs_of_life_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others may come much later than it, and the supervisor has not forgotten it meanwhile."""
    monkeypatch.setattr(lease, "IDLE_SECONDS", 1.0)
    ours, theirs = small_pair()
    line = Line(ours, 1)

    def supervise() -> None:
        channel = Channel.of(theirs)
        for question in range(30):
            channel.send("ping", t=question, heard=question - 1 if question else None)
            time.sleep(0.1)
        channel.send("start", attempt=2, coordinator="a:1", process_id=1, num_processes=2)
        channel.next(TIMEOUT)
        channel.close()

    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    begun = line.wait_for_start()
    line.close()
    supervisor.join(TIMEOUT)
    assert begun == (2, "a:1", 1, 2)


def test_an_agent_ends_its_wait_where_no_signs_of_life_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "IDLE_SECONDS", 0.5)
    ours, theirs = small_pair()
    line = Line(ours, 1)
    with theirs, pytest.raises(LaunchError, match="process 1 was not started: it received nothing"):
        line.wait_for_start()
    line.close()
