"""Finds the process that failed first. Pure.

When one process of a job fails, the others fail too: their collectives break, JAX aborts them, the
launcher stops them. The user needs the error that came before all of those.
"""

from __future__ import annotations

import dataclasses
import errno
import re
import signal
import sys
from collections.abc import Sequence

from lockstep._errors import LaunchError
from lockstep._jax_compat import texts
from lockstep._run_files import OUT_OF_MEMORY, STOPPED, ErrorRecord, Exit
from lockstep.processes.tracebacks import CRASHED
from lockstep.system import fd_limit

OURS = re.compile(texts.ENGINES)
"""What stands before the text of an engine's error, which is a whole diagnosis."""

NOTICED_SECONDS = 1.0
"""On an oversubscribed machine the end of a process may be seen this long after its cause."""

_LOST_PROCESS = re.compile(
    r"process (\d+) \([^)]*\) has ended, or its host cannot be reached|"
    r"on the host of process (\d+), was killed or cannot be reached"
)
"""Matches the error of a process that has lost its connection to another one, whose number it
gives."""

LAST_WORDS = 20
"""Lines of stderr in the report."""
_GAVE_UP = re.compile(
    r"F\d{4} \d\d:\d\d:\d\S* |.*\b(?:Check failed: |Assertion `)|terminate called "
)
_PYTHON_GAVE_UP = re.compile(r"Fatal Python error: ")

_NO_CONSEQUENCES = {
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGXCPU,
}


@dataclasses.dataclass(frozen=True)
class EndedProcess:
    """A process of a job that has ended."""

    process_id: int
    exit: Exit
    ended_at: float
    record: ErrorRecord | None = None
    last_words: tuple[str, ...] = ()
    """The last lines that it wrote to stderr."""
    host: str = ""
    """Where it ran, in a job on several hosts."""
    on_screen: tuple[str, ...] = ()
    """Lines of its stderr that the user still has in view."""

    @property
    def was_lost(self) -> bool:
        """Whether its host was lost, so that its end was not seen."""
        return not self.exit.is_seen and self.exit.reason is not None

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed it because memory ran out."""
        return self.exit.reason == OUT_OF_MEMORY

    @property
    def died_by_itself(self) -> bool:
        """Whether it ended by a signal that no failure of another process can have caused.

        SIGABRT is not among those: JAX aborts a process that has lost the others.
        """
        by_signal = self.exit.signal in _NO_CONSEQUENCES and self.exit.reason != STOPPED
        return by_signal or self.was_lost

    @property
    def failed(self) -> bool:
        return self.record is not None or self.exit.status != 0 or self.was_lost

    @property
    def failed_at(self) -> float:
        """When the error happened, which may be long before the process ended."""
        return self.record.time if self.record else self.ended_at

    @property
    def status(self) -> int:
        """The exit status as in a shell: the exit code, or 128 + the signal."""
        if self.record is None and self.was_lost:
            return 1
        code = self.record.exit_code if self.record else self.exit.status
        return code & 0xFF if code >= 0 else 128 - code


def first_failure(endings: Sequence[EndedProcess], stopping_at: float) -> EndedProcess | None:
    """The earliest of the failures, None when there is none.

    ``stopping_at`` is when the launcher noticed a failure and began to stop the job. An error is
    recorded the moment it happens; a death without a record is noticed later. The sockets of a
    killed process close before the process has ended, so another process may have raised an error
    in between. Hence a death that was noticed by ``stopping_at`` counts as earlier than every
    record, and so does a death soon afterwards by a signal that no other process's failure causes.
    A lost host may be noticed later still, and is first where the error is about its process.
    """

    def order(ending: EndedProcess) -> tuple[bool, float]:
        latest = stopping_at + (NOTICED_SECONDS if ending.died_by_itself else 0.0)
        noticed_late = ending.record is None and ending.ended_at <= latest
        return (not noticed_late, ending.failed_at)

    first = min((e for e in endings if e.failed), key=order, default=None)
    return first and (_lost_before(first, endings) or first)


def _lost_before(first: EndedProcess, endings: Sequence[EndedProcess]) -> EndedProcess | None:
    """The process of a lost host whose loss is what ``first`` has raised."""
    match = _LOST_PROCESS.search(first.record.summary) if first.record else None
    numbers = [int(each) for each in match.groups() if each] if match else []
    return next((e for e in endings if e.was_lost and e.process_id in numbers), None)


def by_culprit(
    first: EndedProcess, endings: Sequence[EndedProcess], culprits: Sequence[int]
) -> EndedProcess:
    """The failure to show, among those with the same cause as ``first``.

    All processes raise the engine's error at the same time. Which one is noticed first is
    accidental, and only the stack of the process that caused the error explains it.
    """
    if not is_engines(first.record):
        return first
    alike = [e for e in endings if is_engines(e.record) and manner(e) == manner(first)]
    return next((e for e in alike if e.process_id in culprits), first)


def is_engines(record: ErrorRecord | None) -> bool:
    """Whether a process ended by an error that the engine raised in all processes."""
    return record is not None and bool(OURS.match(record.summary))


def not_started(error: Exception) -> str:
    """Why a process could not be started, with the likely causes."""
    if isinstance(error, LaunchError):
        return str(error)
    number = getattr(error, "errno", None)
    if getattr(error, "filename", None) == sys.executable:
        causes = (
            "Python itself cannot be executed: does the file exist, may this user execute it, and "
            "is its file system mounted without noexec?"
        )
    elif number in (errno.EMFILE, errno.ENFILE):
        causes = fd_limit.LAUNCHER_NEEDS
    elif number == errno.EAGAIN:
        causes = "The limit on processes is reached: raise it (ulimit -u, or the container's limit)"
    else:
        causes = (
            "Likely causes: (a) a limit on processes or open files (ulimit -u, ulimit -n), (b) no "
            "memory left, (c) --log-dir cannot be written"
        )
    return f"{error}. {causes}"


def last_words(stderr: Sequence[str], exit_code: int) -> tuple[str, ...]:
    """The last lines of stderr to show for a process that ended with ``exit_code``.

    If the process was killed by a signal, native code may have printed the reason, with the stacks
    of all threads after it: then the line with the reason comes first. Python's line above its own
    stacks is only a consequence, and is used when there is no other. A stack of the thread that
    crashed which is longer than the lines to show is shown from its innermost frame on.
    """
    start = max(0, len(stderr) - LAST_WORDS)
    crashed = [i for i, line in enumerate(stderr) if line.startswith(CRASHED)]
    if exit_code < 0 and crashed:
        start = min(start, crashed[-1])
    end, above = tuple(stderr[start : start + LAST_WORDS]), stderr[:start]
    if exit_code >= 0 or any(_GAVE_UP.match(line) for line in end):
        return end
    for reason in (_GAVE_UP, _PYTHON_GAVE_UP):
        if found := [line for line in above if reason.match(line)]:
            return (found[-1], "...", *end)
    return end


def manner(ending: EndedProcess) -> str:
    """How a process failed, in a few words."""
    if ending.record is not None:
        return f"{OURS.sub('', ending.record.summary)} (exit code {ending.status})"
    if ending.was_lost:
        return f"{ending.exit.reason}"
    return ending.exit.cause + (f": {OUT_OF_MEMORY}" if ending.out_of_memory else "")


def alike(first: EndedProcess, endings: Sequence[EndedProcess]) -> list[EndedProcess]:
    """The processes that failed by the same error at the same lines of the program as ``first``.

    None but ``first`` for an engine's error: one process has caused it, in all of them.
    """
    if first.record is None or is_engines(first.record):
        return [first]
    what = dataclasses.replace(first.record, time=0.0)
    return [e for e in endings if e.record and dataclasses.replace(e.record, time=0.0) == what]
