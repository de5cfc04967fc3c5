"""How a process of a job is started: as an interpreter of its own, or as `preload` does."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.system import process_tree


@dataclasses.dataclass(frozen=True)
class Start:
    """What a process of a job is started with."""

    command: Sequence[str]
    environ: Mapping[str, str]
    streams: tuple[int, int, int]
    inherited: Sequence[int]
    """Descriptors that it gets besides, with the same numbers."""
    cores: frozenset[int] | None
    """The cores on which it runs; None: on those of this process."""


def spawn(start: Start) -> int:
    """The pid of a new process. Raises OSError or subprocess.SubprocessError."""
    stdin, stdout, stderr = start.streams
    return popen(
        start.command,
        lambda: _prepare(start.cores),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=start.environ,
        pass_fds=start.inherited,
        start_new_session=True,
    )


def popen(command: Sequence[str], prepare: Callable[[], object], **how: Any) -> int:
    """The pid of a new process, in which ``prepare`` runs before its program; ``how``: as Popen
    has it. Raises OSError or subprocess.SubprocessError."""
    started = subprocess.Popen(command, preexec_fn=prepare, **how)
    started.returncode = 0  # this process's loop reaps it; Popen's own finalizer must not
    return started.pid


def _prepare(cores: frozenset[int] | None) -> None:
    # Runs between fork and exec. `child_main` handles SIGINT once it is ready. Until then SIGINT is
    # ignored: a process that is stopped while Python starts would print a traceback of Python's.
    # The launcher of a notebook has it blocked.
    process_tree.end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if cores is not None:
        os.sched_setaffinity(0, cores)
