"""The supervisor of ``lockstep worker --max-restarts`` as a process, and what its agents do."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep._run_files import ErrorRecord, Exit
from lockstep.hosts import joining
from lockstep.hosts.worker_agent import Attempt, WorkerAgent
from lockstep.launch import worker_job
from processes import free_port
from support import Run, marked, wait_until

TIMEOUT = 120.0
KEY = b"k" * 32

SUPERVISES = """
import sys, time
from pathlib import Path
from lockstep._config import Config
from lockstep.launch import worker_job
from lockstep.processes.job_spec import LaunchSpec
address, name, folder, restarts, timeout, own, fault = sys.argv[1:]
exec(fault)
config = Config(start_timeout=float(timeout))
job = LaunchSpec(
    (), 2, config, {}, Path(folder), grace=1.0, max_restarts=int(restarts), agents_keep_records=True
)
worker_job.start(job, address, name, b"k" * 32)
Path(own, "started").touch()
while not Path(own, "end").exists():
    time.sleep(0.02)
"""
NO_WAIT = """
from lockstep.hosts import lease
lease.Answers.may_run_until = property(lambda answers: 0.0)
"""


class Line(WorkerAgent):
    """An agent without a program, which notes the signals that one would get."""

    got: Sequence[int] = ()

    def on_signal(self, number: int) -> None:
        self.got = [*self.got, number]

    def signals(self) -> Sequence[int]:
        """The signals that have arrived."""
        self.turn(0.0)
        return self.got

    def close(self) -> None:
        """The supervisor takes this agent for lost."""
        assert self.channel
        self.channel.close()


class Job:
    """The supervisor of two processes, as a child of a process that stands for an agent."""

    def __init__(
        self,
        folder: Path,
        restarts: int = 1,
        timeout: float = 30.0,
        name: str = "job",
        port: int = 0,
        fault: str = "",
        waits: bool = False,
    ) -> None:
        """``fault``: what its process executes first; ``waits``: for the leases of lost agents."""
        self.port = port or free_port()
        self._own = Path(tempfile.mkdtemp(dir=folder))
        words = [f"127.0.0.1:{self.port}", name, str(folder), str(restarts), str(timeout)]
        words += [str(self._own), fault if waits else f"{NO_WAIT}\n{fault}"]
        command = [sys.executable, "-c", SUPERVISES, *words]
        self._run = Run(command, os.environ, self._own, forked=True)
        started = self._own / "started"
        wait_until(
            lambda: started.exists() or self._run.process.poll() is not None, "a start", TIMEOUT
        )
        self.has_started = started.exists()

    def line(self, process: int, key: bytes = KEY, timeout: float = 30.0) -> Line:
        made = worker_job.reach(f"127.0.0.1:{self.port}", "job", key, process, timeout)
        return Line(made, process, joining.same_on_all(None))

    def begun(self) -> list[Line]:
        """Its two agents, told to start."""
        lines = [self.line(0), self.line(1)]
        begin(lines)
        return lines

    def end(self) -> str:
        """What it has reported."""
        (self._own / "end").touch()
        wait_until(lambda: not marked(self._run.mark), "the supervisor's end", TIMEOUT)
        return self._run.finish(TIMEOUT).stderr


Start = Callable[..., Job]


def started(line: Line) -> Attempt:
    """The attempt, once it starts, as all processes have it: without the number of this one."""
    attempt = line.wait_for_start()
    assert attempt
    return attempt._replace(process_id=0)


def begin(lines: list[Line]) -> list[Attempt]:
    """All wait for the start at the same time."""
    found: list[Attempt] = []
    threads = [
        threading.Thread(target=lambda line=line: found.append(started(line))) for line in lines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    return found


def ended(
    line: Line, status: int, stopped: bool = False, record: ErrorRecord | None = None
) -> None:
    line.ended(Exit.of(status), record, stopped, False)


def finish_well(lines: list[Line]) -> None:
    """The job ends without a failure."""
    for line in lines:
        ended(line, 0)
    assert [line.decision(TIMEOUT) for line in lines] == [False] * len(lines)


def last_attempt(lines: list[Line]) -> None:
    begin(lines)
    finish_well(lines)


def wait_for_signal(line: Line) -> None:
    """The supervisor has the program of ``line`` stopped, since another one has failed."""
    wait_until(lambda: signal.SIGINT in line.signals(), "SIGINT")
    assert not line.is_lost
