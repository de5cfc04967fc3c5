"""The files that a process and its launcher exchange in the private directory of a run.

RUN_DIR/doorbell                            a FIFO: a byte says that an error was recorded
RUN_DIR/stopping                            exists from the moment the launcher stops the job
RUN_DIR/attempt_0/process_1/error.json      the error that ended process 1
RUN_DIR/attempt_0/process_1/interrupted     exists if the launcher's SIGINT has reached it
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path

DOORBELL = "doorbell"
STOPPING = "stopping"
ERROR = "error.json"
INTERRUPTED = "interrupted"
_LONGEST_TRACEBACK = 1 << 18


def process_dir(top: Path, attempt: int, process_id: int) -> Path:
    """Where the files of one process lie, below the run's directory or below ``--log-dir``."""
    return top / f"attempt_{attempt}" / f"process_{process_id}"


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
        values["traceback"] = self.traceback[-_LONGEST_TRACEBACK:]
        unfinished = folder / f"{ERROR}.new"
        unfinished.write_text(json.dumps(values, indent=1), encoding="utf-8")
        unfinished.replace(folder / ERROR)

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


def ring(run_dir: Path) -> None:
    """Tells the launcher that there is a record to read. It may be gone."""
    with contextlib.suppress(OSError):
        bell = os.open(run_dir / DOORBELL, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(bell, b"!")
        finally:
            os.close(bell)
