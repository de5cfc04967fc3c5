"""The launcher's side of a job on several hosts, with a host that answers late or wrong."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hosts.quiet_loop import Loop
from lockstep import _run_files
from lockstep._config import Config
from lockstep.hosts.fleet import Fleet
from lockstep.hosts.host_list import Host, Placed
from lockstep.hosts.membership import Membership
from lockstep.hosts.remote_processes import RemoteProcesses
from lockstep.hosts.returning_hosts import ReturningHosts
from lockstep.processes.job_spec import LaunchSpec
from support import wait_until

AGENT = """
import os, time, zlib
from lockstep.system.channel import GREETING, Channel

channel = Channel(0, 1, after_greeting=False)
channel.send_raw(GREETING)
channel.send("hello")
os.set_blocking(0, True)
while not channel.closed:
    for message in channel.receive():
"""
LATE = (
    AGENT
    + """
        if message.kind == "facts":
            channel.send("facts")
        # First what belongs to the attempt before: it was asked for then.
        for attempt, text in ((0, b"of before"), (1, b"of now")):
            time.sleep(0.2 * attempt)
            body = zlib.compress(text)
            if message.kind == "sweep":
                left = {"killed": 8 - attempt, "notes": [], "continues_from": None}
                channel.send("swept", attempt=attempt, **left)
            if message.kind == "collect":
                channel.send("file", body, attempt=attempt, process=0, name="stacks.txt")
                number = message.head["number"]
                channel.send("collected", attempt=attempt, number=number)
"""
)


MALFORMED = (
    AGENT
    + """
        if message.kind == "start":
            values = dict(process=0, at=0, after_signal=False, was_killed=False)
            channel.send("exit", attempt=message.head["attempt"], exit={"exit_code": "3"}, **values)
"""
)


def processes(fleet: Fleet, folder: Path, loop: Loop) -> RemoteProcesses:
    """One process of attempt 1 on one host."""
    [connection] = fleet.connect([Host("late")])
    assert not connection.lost
    job = LaunchSpec(
        program=("x.py",),
        processes=1,
        config=Config(attempt=1),
        environ={},
        run_dir=folder,
    )
    places = [(connection, Placed(connection.host, 0, 1))]
    membership = Membership([placed for _, placed in places])
    watch = ReturningHosts(fleet, membership, lambda connection, facts: "", False, 10.0)
    made = RemoteProcesses(job, loop, fleet, places, {connection: {}}, {}, watch)
    made.listen()
    made.start()
    return made


@pytest.fixture
def start_fleet(fleet: Callable[..., Fleet]) -> Callable[[str], Fleet]:
    return lambda source: fleet(lambda host: [sys.executable, "-c", source])


def test_an_answer_of_the_attempt_before_counts_for_nothing(
    start_fleet: Callable[[str], Fleet], tmp_path: Path
) -> None:
    found = processes(start_fleet(LATE), tmp_path, Loop())
    assert found.sweep() == 7
    found.collect()
    folder = _run_files.process_dir(tmp_path, 1, 0)
    assert (folder / _run_files.STACKS).read_bytes() == b"of now"
    found.close()


def test_an_exit_that_is_none_ends_the_connection(
    start_fleet: Callable[[str], Fleet], tmp_path: Path
) -> None:
    """Instead of the report, which computes with it."""
    loop = Loop(may_fail=True)
    found = processes(start_fleet(MALFORMED), tmp_path, loop)
    [process] = found.members
    end = time.monotonic() + 30
    while process.lives and time.monotonic() < end:
        loop.turn()
    assert 'message (exit) that is not one: ValueError("not how' in process.connection.lost
    assert process.ended().status == 1
    found.close()


def test_a_host_that_returns_leaves_no_connection_of_before(
    start_fleet: Callable[[str], Fleet],
) -> None:
    fleet = start_fleet(LATE)
    [first] = fleet.connect([Host("late")])
    own = Membership([Placed(first.host, 0, 1)])
    watch = ReturningHosts(fleet, own, lambda connection, facts: "", False, 30.0)
    watch.agents["late"] = first
    loop = Loop()
    watch.listen(loop, lambda connection: None)
    first.lose("it is cut off")
    watch.lost(first)

    def has_returned() -> bool:
        watch.tick(time.monotonic())
        loop.turn(0.05)
        return bool(own.spares)

    wait_until(has_returned, "the host's return", 60)
    assert fleet.connections == [watch.agents["late"]] != [first]
    watch.close()
