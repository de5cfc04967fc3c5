"""Watchdogs of four processes on two hosts, over a post that is none."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Sequence

from fake_job import peer
from flight_recorder.test_format import record
from lockstep.engine import bindings
from lockstep.flight_recorder.run_records import Process
from lockstep.watchdog.remote import LocalHost, RemoteHosts

AHEAD = 3_600_000_000_000
"""Nanoseconds that host b's realtime clock is fast."""
LATER = 7_000_000_000
"""That its monotonic clock is ahead: it has been up for longer."""


class Post:
    """Carries notes between the processes of this test."""

    def __init__(self, count: int) -> None:
        self.boxes = [queue.Queue[tuple[int, bytes]]() for _ in range(count)]
        self.lost: set[int] = set()
        self.apart: set[int] = set()
        """To which connections are yet to be made: by the first call, unless `unreachable`."""
        self.unreachable: set[int] = set()
        self.sought: set[int] = set()
        """To which somebody wanted a connection."""

    def of(self, process: int) -> End:
        return End(self, process)


@dataclasses.dataclass
class End:
    post: Post
    process: int

    def connect(self, process: int) -> bool | None:
        assert process % 2 != self.process % 2, "to a process of its own host"
        if process in self.post.lost:
            return None
        connected = self.is_connected(process)
        self.post.sought.add(process)
        self.post.apart -= {process} - self.post.unreachable
        return connected

    def is_connected(self, process: int) -> bool:
        return process not in self.post.apart | self.post.lost

    def send_message(self, process: int, note: bytes, timeout: float) -> bool:
        assert process % 2 != self.process % 2, "to a process of its own host"
        assert process not in self.post.apart, "before there is a connection"
        if process in self.post.lost:
            return False
        self.post.boxes[process].put((self.process, note))
        return True

    def next_message(self, timeout: float) -> tuple[int, bytes] | None:
        if self.process in self.post.lost:
            raise bindings.NoMoreMessages
        try:
            return self.post.boxes[self.process].get(timeout=min(timeout, 0.05))
        except queue.Empty:
            return None

    def is_lost(self, process: int) -> bool:
        return process in self.post.lost


class Job:
    """Four processes, 0 and 2 on host a, 1 and 3 on host b. Each tells all records of its host."""

    def __init__(self) -> None:
        self.peers = [peer(process) for process in range(4)]
        self.post = Post(4)
        self.woken = [threading.Event() for _ in range(4)]
        self.answers = [
            RemoteHosts(self.peers, p, self.local(p), self.post.of(p)) for p in range(4)
        ]
        for process in (1, 3):
            self.answers[process]._now = lambda: time.monotonic_ns() + LATER
        self.deaf: set[int] = set()
        self.looks = 0

    def local(self, process: int) -> LocalHost:
        def processes(latest: int | None) -> Sequence[Process]:
            self.looks += 1
            time.sleep(0.01)  # and so it is told for 0.1 s
            if process in self.deaf:
                raise OSError("it cannot look")
            return [self.process(p, process) for p in range(4) if p % 2 == process % 2]

        wake = self.woken[process].set
        return LocalHost(processes, lambda of: f"stacks of {of} by {process}", wake)

    def process(self, index: int, by: int = -1) -> Process:
        real = 10**18 + AHEAD * (index % 2)
        made = record(3, monotonic_ns=10**15, realtime_ns=real)
        made = dataclasses.replace(made, process=index, host="ab"[index % 2])
        return Process(index, made, problems=(f"told by {by}",))
