"""The files that a process and its launcher exchange in the private directory of a run.

RUN_DIR/wake_up                             a FIFO: a byte says that an error was recorded
RUN_DIR/secret                              the key of this run's processes on this host
RUN_DIR/restarts.json                       what restarts have cost (`launch.lost_time`)
RUN_DIR/programs/                           JAX's compilation cache, where the job may start again
RUN_DIR/stopping                            exists as soon as the launcher has sent a signal
RUN_DIR/attempt_0/lost                      processes of hosts that the launcher has lost, in JSON
RUN_DIR/attempt_0/coordination.pid          the process that serves JAX's key-value store
RUN_DIR/attempt_0/coordination.log          its output
RUN_DIR/attempt_0/traceback_2f6b...         a link to the number of the process that prints it
RUN_DIR/attempt_0/process_0/differences     in what the processes of the job differ, if they do
RUN_DIR/attempt_0/process_1/recorder.bin    its collectives (`flight_recorder.format`)
RUN_DIR/attempt_0/process_1/nccl.bin        those of its GPUs, where it has any
RUN_DIR/attempt_0/process_1/sites.jsonl     their lines; also possible_sites.jsonl and callers.jsonl
RUN_DIR/attempt_0/process_1/waits.json      the barriers that process 1 waits in
RUN_DIR/attempt_0/process_1/error.json      the error that ended process 1
RUN_DIR/attempt_0/process_1/interrupted     exists if the launcher's SIGINT has reached it
RUN_DIR/attempt_0/process_1/stacks.txt      its Python stacks, once per request (`stack_dump`)
RUN_DIR/attempt_0/process_1/programs_vary   exists if its programs' numbers may differ from others'
RUN_DIR/attempt_0/process_1/joined          exists once JAX has connected it to a job's service
RUN_DIR/attempt_0/process_1/alone           exists if it has used JAX and has never joined a job
RUN_DIR/attempt_0/process_1/asks            exists if it has called `lockstep.should_stop`
RUN_DIR/attempt_0/process_1/stops           exists once that has returned true
RUN_DIR/attempt_1/process_0/continues_from  the step of the checkpoint that attempt 1 has restored
RUN_DIR/attempt_0/process_1/exit.json       how process 1 ended, as its launcher or agent saw it
RUN_DIR/attempt_0/process_1/room            is removed where the disk is full, for what is above
RUN_DIR/attempt_0/process_1/stays           exists while its agent waits for the end of the others
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep._words import signal_name

WAKE_UP = "wake_up"
SECRET = "secret"
PROGRAMS = "programs"
STOPPING = "stopping"
RESTARTS = "restarts.json"
"""With ``--log-dir``, this file lies in the folder of the run there."""
ROOM = "room"
ROOM_BYTES = 32 << 10
"""The size of a traceback, and of an exit, with what a file system rounds up."""
ERROR = "error.json"
EXIT = "exit.json"
RECORDER = "recorder.bin"
NCCL_RECORDER = "nccl.bin"
SITES = "sites.jsonl"
POSSIBLE_SITES = "possible_sites.jsonl"
"""The sites of calls that several programs may have made; the whole file is rewritten each time."""
CALLERS = "callers.jsonl"
"""The lines of the program behind the sites of `flight_recorder.format.Entry`."""
WAITS = "waits.json"
"""The barriers that a process waits in, and whether it can go on by itself."""
PROGRAMS_VARY = "programs_vary"
"""This file exists when the run ids of a process's programs may differ from the others'."""
DIFFERENCE = "difference.json"
"""In what the programs differ that the processes run together, where one process has found it."""
STACKS = "stacks.txt"
DIFFERENCES = "differences"
"""In what the processes of a job differ: one line of process 0."""
CONTINUES_FROM = "continues_from"
OF_PROCESS = (
    RECORDER,
    NCCL_RECORDER,
    SITES,
    POSSIBLE_SITES,
    CALLERS,
    WAITS,
    PROGRAMS_VARY,
    DIFFERENCE,
    DIFFERENCES,
    ERROR,
    EXIT,
    STACKS,
    CONTINUES_FROM,
)
"""The files of a process that are kept when the run has failed."""
LOST = "lost"
COORDINATION_PID = "coordination.pid"
COORDINATION_LOG = "coordination.log"
INTERRUPTED = "interrupted"
JOINED = "joined"
STAYS = "stays"
ALONE = "alone"
ASKS = "asks"
STOPS = "stops"
NOTES = (ALONE, JOINED, ASKS, STOPS)
"""Empty files by which a process tells its launcher how it has used JAX."""
TRACEBACK = "traceback_"
_MAX_TRACEBACK = 1 << 18
_MAX_SUMMARY = 1 << 16


def recorder_of(folder: Path) -> Path:
    """The record of a process: that of its GPUs, where it has any."""
    nccl = folder / NCCL_RECORDER
    return nccl if nccl.exists() else folder / RECORDER


def has_records(top: Path, attempt: int | None = None) -> bool:
    """Whether a process has left a record: of ``attempt``, else of any."""
    some = "*" if attempt is None else attempt
    return any(
        any(top.glob(f"attempt_{some}/process_*/{name}")) for name in (RECORDER, NCCL_RECORDER)
    )


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
        _write(folder / ERROR, dataclasses.asdict(self.shortened(_MAX_SUMMARY, _MAX_TRACEBACK)))

    def shortened(self, summary: int, traceback: int) -> ErrorRecord:
        """The record with so many characters at most: the first of the summary, and the last of
        the traceback, which name the error."""
        texts = {"summary": self.summary[:summary], "traceback": self.traceback[-traceback:]}
        return dataclasses.replace(self, **texts)

    @classmethod
    def read(cls, folder: Path) -> ErrorRecord | None:
        """The record in ``folder``; None when there is none that can be read."""
        try:
            return cls.of_values(json.loads((folder / ERROR).read_text("utf-8")))
        except (OSError, ValueError):
            return None

    @classmethod
    def of_values(cls, values: Any) -> ErrorRecord:
        """The record that was written as ``values``. Raises ValueError for anything else."""
        try:
            time, exit_code = float(values["time"]), int(values["exit_code"])
            return cls(time, exit_code, str(values["summary"]), str(values["traceback"]))
        except (LookupError, TypeError, ArithmeticError) as error:
            raise ValueError(f"not the record of an error: {error!r}") from None


STOPPED = "the launcher stopped the job"
"""The reason of an exit that the launcher caused."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals by which the launcher requests the end of a process."""
OUT_OF_MEMORY = "out of memory"
"""The reason of an exit by SIGKILL that the kernel caused."""
AGENT_LOST = "its agent was lost"
"""The reason of an exit that was not seen since the program's agent, its parent, is gone."""


@dataclasses.dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended, as its parent or the kernel saw it.

    Without exit code and signal it was not seen; where there is a reason it has ended all the same.
    """

    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    realtime_ns: int | None = None
    reason: str | None = None
    """What is known beside exit code and signal."""

    @classmethod
    def of(cls, status: int, pid: int | None = None, reason: str | None = None) -> Exit:
        """An exit of this moment; a ``status`` below 0 is a signal, as in ``subprocess``."""
        killed = status < 0
        return cls(
            pid, None if killed else status, -status if killed else None, time.time_ns(), reason
        )

    def later_by(self, ns: int) -> Exit:
        """The exit as a clock has it that is ``ns`` nanoseconds ahead."""
        if self.realtime_ns is None:
            return self
        return dataclasses.replace(self, realtime_ns=self.realtime_ns + ns)

    def write(self, folder: Path) -> None:
        """Leaves the exit in ``folder``, whole or not at all."""
        _write(folder / EXIT, dataclasses.asdict(self))

    @classmethod
    def read(cls, folder: Path, pid: int | None = None) -> Exit | None:
        """The exit in ``folder``; None where there is none, or that of another process than
        ``pid``: of another job."""
        try:
            found = cls.of_values(json.loads((folder / EXIT).read_text("utf-8")))
        except (OSError, ValueError):
            return None
        return None if pid is not None and found.pid not in (None, pid) else found

    @classmethod
    def of_values(cls, values: Any) -> Exit:
        """The exit that was written as ``values``. Raises ValueError for anything else."""
        if not isinstance(values, Mapping):
            raise ValueError(f"not how a process ended: {values!r}")
        found = {name: values.get(name) for name in cls.__slots__}
        for name, value in found.items():
            kind = str if name == "reason" else int
            if value is not None and type(value) is not kind:
                raise ValueError(f"not how a process ended: {name} is {value!r}")
        return cls(**found)

    @property
    def is_seen(self) -> bool:
        """Whether exit code or signal is known."""
        return self.signal is not None or self.exit_code is not None

    @property
    def was_signalled(self) -> bool:
        """Whether the launcher's signal ended the process, and its program did not see that."""
        return self.reason is None and self.signal in STOP_SIGNALS

    @property
    def status(self) -> int:
        """The exit code, or the signal below 0, as in ``subprocess``; 0 where it was not seen."""
        return -self.signal if self.signal else self.exit_code or 0

    @property
    def cause(self) -> str:
        """``killed by SIGKILL (signal 9)``, ``exit code 3``."""
        if self.signal is None:
            return f"exit code {self.exit_code}"
        name = signal_name(self.signal)
        number = f" (signal {self.signal})"
        return f"killed by {name}{'' if name in number else number}"

    def words(self, after: str = "") -> str:
        """``was killed by SIGKILL (signal 9)``, ``failed with exit code 3``, ``ended (exit code
        0)``, followed by ``after`` (`` after 3 collectives``) and by the reason of a kill."""
        reason = f": {self.reason}" if self.reason else ""
        if self.signal is not None:
            return f"was {self.cause}{after}{reason}"
        if self.exit_code is None:
            return f"is gone{after}{reason}"
        return (f"failed with {self.cause}" if self.exit_code else f"ended ({self.cause})") + after


def read_ending(folder: Path, pid: int | None = None) -> tuple[ErrorRecord | None, Exit | None]:
    """The error that ended the process of ``folder``, and its exit as its parent saw it.

    The error is never missing where there is the exit: it is written first, so it is read last.
    """
    ending = Exit.read(folder, pid)
    return ErrorRecord.read(folder), ending


def make_folder(folder: Path) -> None:
    """Makes the folder of a process, with room for how it ends. Raises OSError."""
    folder.mkdir(parents=True)
    with contextlib.suppress(OSError):  # the disk is full already
        (folder / ROOM).write_bytes(bytes(ROOM_BYTES))


def leave_note(folder: Path | None, name: str) -> None:
    """Leaves one of `NOTES` in a process's own folder, if it has one."""
    with contextlib.suppress(OSError):
        if folder is not None:
            (folder / name).touch()


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all: a reader never sees a part. Raises OSError."""
    unfinished = path.with_name(f"{path.name}.new")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _write(path: Path, values: dict[str, object]) -> None:
    """Writes how a process ended, on a full disk in the room that was left for it."""
    data = json.dumps(values, indent=1).encode()
    try:
        write_whole(path, data)
    except OSError:
        path.with_name(ROOM).unlink(missing_ok=True)
        write_whole(path, data)


def none_joined(attempt: Path) -> bool:
    """Whether processes of an attempt have used JAX, and none of them has joined the others.

    Raises OSError where the folder cannot be read.
    """
    return any(attempt.glob(f"process_*/{ALONE}")) and not any(attempt.glob(f"process_*/{JOINED}"))


def write_continues_from(folder: Path, step: int) -> None:
    """Notes the step of the checkpoint that a process has restored, if it can."""
    with contextlib.suppress(OSError):
        write_whole(folder / CONTINUES_FROM, b"%d" % step)


def read_continues_from(attempt: Path) -> int | None:
    """The step from which an attempt went on; None: its program has not told."""
    try:
        return int((attempt / "process_0" / CONTINUES_FROM).read_text())
    except (OSError, ValueError):
        return None


def write_lost(attempt: Path, processes: Sequence[int]) -> None:
    """Tells the processes of this host which others are lost. Raises OSError."""
    write_whole(attempt / LOST, json.dumps(list(processes)).encode())


def read_lost(attempt: Path) -> set[int]:
    """The processes that the launcher has lost with their hosts."""
    try:
        return set(map(int, json.loads((attempt / LOST).read_text("utf-8"))))
    except (OSError, ValueError, TypeError):
        return set()


def ring(run_dir: Path) -> None:
    """Tells the launcher that there is a record to read. It may be gone."""
    with contextlib.suppress(OSError):
        bell = os.open(run_dir / WAKE_UP, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(bell, b"!")
        finally:
            os.close(bell)
