"""The files that a process and its launcher exchange in the private directory of a run.

RUN_DIR/doorbell                            a FIFO: a byte says that an error was recorded
RUN_DIR/secret                              the key of this run's processes on this host
RUN_DIR/stopping                            exists as soon as the launcher has sent a signal
RUN_DIR/attempt_0/coordination.pid          the process that serves JAX's key-value store
RUN_DIR/attempt_0/coordination.log          what it says
RUN_DIR/attempt_0/process_1/error.json      the error that ended process 1
RUN_DIR/attempt_0/process_1/interrupted     exists if the launcher's SIGINT has reached it
RUN_DIR/attempt_0/process_1/stacks.txt      its Python stacks, once per request (`stack_dump`)
RUN_DIR/attempt_0/process_1/programs_vary    exists if its programs' numbers may differ from others'
RUN_DIR/attempt_0/process_1/joined          exists once JAX has connected it to a job's service
RUN_DIR/attempt_0/process_1/alone           exists if it has used JAX and has never joined a job
RUN_DIR/attempt_0/process_1/exit.json       how process 1 ended, as its launcher or agent saw it
RUN_DIR/attempt_0/process_1/stays           exists while its agent waits for the end of the others
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from pathlib import Path

DOORBELL = "doorbell"
SECRET = "secret"
STOPPING = "stopping"
ERROR = "error.json"
EXIT = "exit.json"
RECORDER = "recorder.bin"
PROGRAMS_VARY = "programs_vary"
OF_PROCESS = (
    RECORDER,
    "sites.jsonl",
    "perhaps.jsonl",
    "callers.jsonl",
    PROGRAMS_VARY,
    ERROR,
    EXIT,
    "stacks.txt",
)
"""The files of a process that are kept when the run has failed."""
COORDINATION_PID = "coordination.pid"
COORDINATION_LOG = "coordination.log"
INTERRUPTED = "interrupted"
JOINED = "joined"
STAYS = "stays"
ALONE = "alone"
_MAX_TRACEBACK = 1 << 18


def attempt_dir(top: Path, attempt: int) -> Path:
    """Where the files of one attempt lie."""
    return top / f"attempt_{attempt}"


def process_dir(top: Path, attempt: int, process_id: int) -> Path:
    """Where the files of one process lie, below the run's directory or below ``--log-dir``."""
    return attempt_dir(top, attempt) / f"process_{process_id}"


@dataclasses.dataclass(frozen=True)
class ErrorRecord:
    """The error that ended a process."""

    time: float
    """``time.monotonic()``, which all processes of a host share."""
    exit_code: int
    summary: str
    """One line, such as ``ValueError: no such thing``."""
    traceback: str

    def write(self, folder: Path) -> None:
        """Leaves the record in ``folder``, whole or not at all."""
        values = dataclasses.asdict(self)
        values["traceback"] = self.traceback[-_MAX_TRACEBACK:]
        _write(folder / ERROR, values)

    @classmethod
    def read(cls, folder: Path) -> ErrorRecord | None:
        """The record in ``folder``; None when there is none that can be read."""
        try:
            values = json.loads((folder / ERROR).read_text("utf-8"))
            return cls(
                float(values["time"]),
                int(values["exit_code"]),
                str(values["summary"]),
                str(values["traceback"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


STOPPED = "the launcher stopped the job"
"""The reason of an end that was the launcher's doing."""


@dataclasses.dataclass(frozen=True)
class ExitRecord:
    """How a process ended, written by the launcher the moment it knows."""

    process: int
    pid: int
    exit_code: int | None
    """None when a signal ended it."""
    signal: int | None
    realtime_ns: int
    reason: str | None
    """What is known beside the signal, such as ``out of memory``."""

    @classmethod
    def of(cls, process: int, pid: int, exit_code: int, reason: str | None) -> ExitRecord:
        """One of now; an ``exit_code`` below 0 is a signal."""
        killed = exit_code < 0
        return cls(
            process=process,
            pid=pid,
            exit_code=None if killed else exit_code,
            signal=-exit_code if killed else None,
            realtime_ns=time.time_ns(),
            reason=reason,
        )

    def write(self, folder: Path) -> None:
        """Leaves the record in ``folder``, whole or not at all."""
        _write(folder / EXIT, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path) -> ExitRecord | None:
        """The record in ``folder``; None when there is none that can be read."""
        try:
            return cls(**json.loads((folder / EXIT).read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    @property
    def manner(self) -> str:
        """``was killed by signal 9 (out of memory)``, ``has ended (exit code 0)``."""
        reason = f" ({self.reason})" if self.reason else ""
        if self.signal is not None:
            return f"was killed by signal {self.signal}{reason}"
        return f"has ended (exit code {self.exit_code}){reason}"


def _write(path: Path, values: dict[str, object]) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(json.dumps(values, indent=1), encoding="utf-8")
    unfinished.replace(path)


def none_joined(attempt: Path) -> bool:
    """Whether processes of an attempt have used JAX, and none of them has joined the others.

    Raises OSError when nobody can look.
    """
    return any(attempt.glob(f"process_*/{ALONE}")) and not any(attempt.glob(f"process_*/{JOINED}"))


def ring(run_dir: Path) -> None:
    """Tells the launcher that there is a record to read. It may be gone."""
    with contextlib.suppress(OSError):
        bell = os.open(run_dir / DOORBELL, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(bell, b"!")
        finally:
            os.close(bell)
