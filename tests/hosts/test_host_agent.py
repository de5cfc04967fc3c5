"""The agent of a host, spoken to by messages: it answers while it works."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.system.channel import Channel, Message
from processes import clean_environ

TIMEOUT = 60.0
PROCESSES = 5


class Agent:
    """A real agent, and the messages that it has sent."""

    def __init__(self, folder: Path, code: str = "") -> None:
        """``code``: what it executes first."""
        start = f"{code}\nimport sys\nfrom lockstep.hosts import host_agent\n"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"{start}sys.exit(host_agent.main())"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environ(TMPDIR=str(folder)),
        )
        assert self.process.stdin
        assert self.process.stdout
        fds = (os.dup(self.process.stdout.fileno()), os.dup(self.process.stdin.fileno()))
        self.channel = Channel(*fds, after_greeting=True)
        self.received: list[Message] = []

    def until(self, kind: str) -> list[str]:
        """The kinds of all messages received, once there is one of ``kind``."""
        end = time.monotonic() + TIMEOUT
        while kind not in [each.kind for each in self.received]:
            assert time.monotonic() < end, self.received
            assert not self.channel.closed, self.received
            self.received += self.channel.receive()
            time.sleep(0.001)
        return [each.kind for each in self.received]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with started(tmp_path) as made:
        yield made


@contextlib.contextmanager
def started(tmp_path: Path, code: str = "") -> Iterator[Agent]:
    made = Agent(tmp_path, code)
    try:
        made.until("hello")
        yield made
    finally:
        made.channel.close()
        with made.process as process:
            assert process.stdin
            process.stdin.close()
            process.wait(TIMEOUT)
        assert not list(tmp_path.glob("lockstep-run-*"))


def order(folder: Path, attempt: int = 0) -> dict[str, Any]:
    (folder / "program.py").write_text("import time; time.sleep(300)")
    return {
        "program": [str(folder / "program.py")],
        "first": 0,
        "count": PROCESSES,
        "total": PROCESSES,
        "max_restarts": 0,
        "preload": [],
        "config": {"LOCKSTEP_ATTEMPT": str(attempt)},
        "environ": {},
        "directory": str(folder),
        "devices": None,
        "platform": None,
        "bind": "none",
        "oversubscribe": False,
        "key": "00",
        "network": False,
        "relayed": [],
    }


def test_it_answers_while_it_starts_processes(agent: Agent, tmp_path: Path) -> None:
    agent.channel.send("start", attempt=0, **order(tmp_path))
    agent.channel.send("ping", t=1)
    agent.channel.send("signal", attempt=0, number=9)
    kinds = agent.until("not_started")
    assert "pong" in kinds
    # The signal has come while they were being started, so the rest is not.
    assert kinds.count("started") < PROCESSES
    whys = [message.head["why"] for message in agent.received if "why" in message.head]
    assert whys[-1] == "" or "exit" in kinds


def test_it_answers_while_it_waits_for_another_host(agent: Agent) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        peer = {"name": "b", "address": "127.0.0.1", "port": silent.getsockname()[1]}
        agent.channel.send("probe", key="00", peers=[peer], seconds=3.0)
        agent.channel.send("ping", t=1)
        assert "probed" not in agent.until("pong")
    agent.until("probed")
    assert agent.received[-1].head["results"]["b"]["reason"]


def test_what_concerns_another_attempt_is_not_done(agent: Agent, tmp_path: Path) -> None:
    agent.channel.send("start", attempt=1, **order(tmp_path, 1))
    agent.channel.send("sweep", attempt=0)
    agent.channel.send("ping", t=1)
    agent.until("pong")
    agent.channel.send("signal", attempt=1, number=9)
    agent.channel.send("sweep", attempt=1)
    kinds = agent.until("swept")
    assert kinds.count("swept") == 1
    assert {each.head.get("attempt") for each in agent.received} == {None, 1}


SUSPENDED = """
import os, time
real = time.clock_gettime

def clock_gettime(clock):
    ahead = 100 * (clock == time.CLOCK_BOOTTIME and os.path.exists({file!r}))
    return real(clock) + ahead

time.clock_gettime = clock_gettime
"""


def test_a_machine_that_was_suspended_runs_no_processes_any_more(tmp_path: Path) -> None:
    """The clock that counts this time is another one than that of timers."""
    awake = tmp_path / "awake"
    with started(tmp_path, SUSPENDED.format(file=str(awake))) as agent:
        agent.channel.send("ping", t=1)
        agent.until("pong")
        agent.channel.send("ping", t=2, heard=1)
        agent.channel.send("start", attempt=0, **order(tmp_path))
        agent.until("started")
        awake.touch()
        end, question = time.monotonic() + TIMEOUT, 3
        while "leaving" not in [each.kind for each in agent.received]:
            assert time.monotonic() < end, agent.received
            heard = max(each.head["t"] for each in agent.received if each.kind == "pong")
            agent.channel.send("ping", t=question, heard=heard)
            question += 1
            time.sleep(0.1)
            agent.received += agent.channel.receive()
        whys = [each.head["why"] for each in agent.received if each.kind == "leaving"]
        assert "has confirmed no answer of this host for 9 s" in whys[0]
