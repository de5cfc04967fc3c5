"""The launcher's side of a job on several hosts, with a host that answers late."""

from __future__ import annotations

import selectors
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep import _run_files
from lockstep._config import Config
from lockstep.hosts.fleet import Fleet
from lockstep.hosts.host_list import Host, Placed
from lockstep.hosts.host_watch import HostWatch
from lockstep.hosts.membership import Membership
from lockstep.hosts.remote_processes import RemoteProcesses
from lockstep.processes.console import Console
from lockstep.processes.job_spec import LaunchSpec

LATE = """
import os, time, zlib
from lockstep.system.channel import GREETING, Channel

channel = Channel(0, 1, after_greeting=False)
channel.send_raw(GREETING)
channel.send("hello")
os.set_blocking(0, True)
while not channel.closed:
    for message in channel.receive():
        # First what belongs to the attempt before: it was asked for then.
        for attempt, text in ((0, b"of before"), (1, b"of now")):
            time.sleep(0.2 * attempt)
            body = zlib.compress(text)
            if message.kind == "sweep":
                channel.send("swept", attempt=attempt, killed=8 - attempt, notes=[])
            if message.kind == "collect":
                channel.send("file", body, attempt=attempt, process=0, name="stacks.txt")
                number = message.head["number"]
                channel.send("collected", attempt=attempt, number=number)
"""


class Loop:
    """What `RemoteProcesses` needs of a supervisor, without signals."""

    is_stopping = False
    stopping_at = float("inf")

    def __init__(self) -> None:
        self.selector = selectors.PollSelector()
        self.console = Console(self.selector)

    def turn(self, longest: float = 1.0) -> None:
        for key, _ in self.selector.select(longest):
            key.data()

    def failed(self) -> None:
        raise AssertionError("no process has failed")

    def grow(self) -> bool:
        raise AssertionError("no host returns")

    def could_not_start(self, process_id: int, why: str) -> None:
        raise AssertionError(why)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet(lambda host: [sys.executable, "-c", LATE])
    yield made
    made.end()


def test_an_answer_of_the_attempt_before_counts_for_nothing(fleet: Fleet, tmp_path: Path) -> None:
    [connection] = fleet.connect([Host("late")])
    assert not connection.lost
    job = LaunchSpec(
        program=("x.py",),
        processes=1,
        config=Config(attempt=1),
        environ={},
        run_dir=tmp_path,
    )
    loop = Loop()
    places = [(connection, Placed(connection.host, 0, 1))]
    membership = Membership([placed for _, placed in places])
    watch = HostWatch(fleet, membership, lambda connection, facts: "", False, 10.0)
    processes = RemoteProcesses(job, loop, fleet, places, {connection: {}}, {}, watch)
    processes.listen()
    processes.start()
    assert processes.sweep() == 7
    processes.collect()
    folder = _run_files.process_dir(tmp_path, 1, 0)
    assert (folder / _run_files.STACKS).read_bytes() == b"of now"
    processes.close()
