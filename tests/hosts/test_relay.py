"""Streams between sockets of two hosts, with two relays and their messages in one process."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.hosts.relay import WINDOW, Relay
from lockstep.system.channel import Message

TIMEOUT = 30.0
NAME = "service"
STREAMS = 2
LENGTH = 1 << 24
"""Bytes; more than the kernel's buffers of a connection take."""


class Line:
    """Both sides of a connection, whose messages are delivered on request."""

    def __init__(self, folder: Path, connect: Callable[[], socket.socket]) -> None:
        self.selector = selectors.PollSelector()
        self.messages: collections.deque[tuple[Relay, Message]] = collections.deque()
        self.in_flight: dict[str, int] = collections.Counter()
        self.agent = Relay(self.selector, self._sender("up"), {})
        self.launcher = Relay(self.selector, self._sender("down"), {NAME: connect})
        self.agent.listen(folder, [NAME])
        self._folder = folder

    def _sender(self, way: str) -> Callable[..., None]:
        def send(kind: str, body: bytes = b"", **values: object) -> None:
            to = self.launcher if way == "up" else self.agent
            self.messages.append((to, Message(kind, {"kind": kind, **values}, body)))
            self.in_flight[way] += len(body)
            if kind == "stream_taken":
                self.in_flight["down" if way == "up" else "up"] -= int(str(values["bytes"]))
            assert max(self.in_flight.values()) <= STREAMS * WINDOW

        return send

    def connect(self) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(TIMEOUT)
        connected.connect(str(self._folder / NAME))
        return connected

    def turn(self) -> None:
        for key, _ in self.selector.select(0.01):
            key.data()
        while self.messages:
            to, message = self.messages.popleft()
            to.on_message(message)

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + TIMEOUT
        while not done():
            assert time.monotonic() < end
            self.turn()


@pytest.fixture
def service() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(TIMEOUT)
        yield listener


@pytest.fixture
def line(tmp_path: Path, service: socket.socket) -> Iterator[Line]:
    def connect() -> socket.socket:
        return socket.create_connection(service.getsockname(), TIMEOUT)

    made = Line(tmp_path, connect)
    yield made
    made.agent.close()
    made.launcher.close()
    assert not made.selector.get_map()


def accepted(line: Line, service: socket.socket) -> tuple[socket.socket, socket.socket]:
    """A process's end of a new stream, and the service's end; they do not block."""
    process = line.connect()
    line.turn()
    served, _ = service.accept()
    for each in (process, served):
        each.setblocking(False)
    return process, served


def received(from_: socket.socket, into: bytearray) -> bool:
    """Reads what there is; whether the stream has ended."""
    with contextlib.suppress(BlockingIOError):
        while data := from_.recv(1 << 16):
            into += data
        return True
    return False


def test_bytes_pass_in_both_directions_and_no_more_than_a_window_is_in_flight(
    line: Line, service: socket.socket
) -> None:
    process, served = accepted(line, service)
    other, served_other = accepted(line, service)
    sent = {process: os.urandom(LENGTH + 17), served: os.urandom(LENGTH + 1)}
    there = {process: served, served: process}
    left = {each: memoryview(data) for each, data in sent.items()}
    found = {process: bytearray(), served: bytearray()}

    def push() -> bool:
        for each in sent:
            with contextlib.suppress(BlockingIOError):
                while left[each]:
                    left[each] = left[each][each.send(left[each][: 1 << 16]) :]
        return not any(left.values())

    # Nothing is read, so these wait in the kernel's buffers and in a window; others go on.
    for _ in range(50):
        push()
        line.turn()
    assert not push()
    other.send(b"beside")
    beside = bytearray()
    line.until(lambda: received(served_other, beside) or beside == b"beside")

    def passed() -> bool:
        push()
        for each in sent:
            received(there[each], found[each])
        return all(len(found[each]) == len(sent[each]) for each in sent)

    line.until(passed)
    assert all(found[each] == sent[each] for each in sent)
    process.shutdown(socket.SHUT_WR)
    line.until(lambda: received(served, bytearray()))
    served.send(b"still")  # one direction has ended
    line.until(lambda: received(process, found[served]) or found[served].endswith(b"still"))
    served.close()
    line.until(lambda: received(process, bytearray()))
    for each in (other, served_other, process):
        each.close()


def test_an_end_of_one_side_by_force_is_the_end_of_the_other(
    line: Line, service: socket.socket
) -> None:
    process, served = accepted(line, service)
    served.close()
    line.until(lambda: received(process, bytearray()))

    def refused() -> bool:
        try:
            process.send(b"x" * 1000)
        except BrokenPipeError:
            return True
        return False

    line.until(refused)
    process.close()
    process, served = accepted(line, service)
    line.launcher.close()  # the host is lost
    assert received(served, bytearray())
    process.close()
    served.close()


def test_without_a_service_a_process_reads_the_end(line: Line, service: socket.socket) -> None:
    service.close()
    process = line.connect()
    process.setblocking(False)
    line.until(lambda: received(process, bytearray()))
    process.close()
