"""How a call ended on each process, and which error the caller gets. Pure."""

from __future__ import annotations

import dataclasses
import enum
import textwrap
from collections.abc import Sequence
from typing import Any

from lockstep import _words
from lockstep._errors import SpawnError, SpawnTimeoutError
from lockstep._run_files import ErrorRecord, Exit
from lockstep._words import processes
from lockstep.launch.failure_report import headline
from lockstep.processes import tracebacks
from lockstep.processes.first_failure import EndedProcess, by_culprit, first_failure

MAX_LETTERS = 200
"""Maximal length of a later failure in a note."""
STUCK = "did not return and was stopped"
WAITED = "and was stopped"
"""What is said of a process that waited for another one; a part of `STUCK`."""
_INDENT = "    "
NOT_READ = Exit(
    reason="was lost: it did not read what was sent to it. Was it stopped by SIGSTOP, or does "
    "native code in it hold the GIL?"
)
_NOT_SEEN = Exit(reason="was lost: its connection has ended, and its exit code is not known")


class Kind(enum.Enum):
    """How a call ended on one process."""

    RETURNED = "returned"
    RAISED = "raised"
    LOST = "lost"
    """The process has died."""
    STUCK = "stuck"
    """The call did not come back: it was stopped."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """What a function raised."""

    record: ErrorRecord
    """Time, one line, and the traceback from the function on."""
    pickled: bytes | None
    """The exception; None where it cannot be pickled."""
    is_jax: bool = False
    """Whether JAX's runtime raised it: a collective may have broken."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a call ended on process ``rank``."""

    rank: int
    kind: Kind
    value: Any = None
    """What the function returned, or the exception that it raised (None: it cannot be loaded)."""
    failure: Failure | None = None
    aborted: str = ""
    """What the engine had failed with by then; "": it is healthy."""
    exit: Exit | None = None
    """How a lost process ended."""
    ended_at: float = float("inf")
    """When the caller saw that, in ``time.monotonic()``."""
    words: tuple[str, ...] = ()
    """The last lines that a lost process wrote to stderr; the Python stacks of a stuck one."""
    waits_for: tuple[int, ...] = ()
    """The processes that a stuck one waited for, in a collective or a barrier."""
    host: str = ""
    """Where it ran, in a pool on several hosts."""

    @property
    def name(self) -> str:
        """``process 1``, ``process 1 on b``."""
        return f"process {self.rank}" + (f" on {self.host}" if self.host else "")

    def as_ended(self) -> EndedProcess:
        """The outcome, as the launcher describes a process that has ended."""
        record = self.failure.record if self.failure else None
        exit = self.exit or _NOT_SEEN
        if self.kind is not Kind.LOST:
            exit = Exit(exit_code=1 if self.failure else 0)
        words = self.words if self.kind is Kind.LOST else ()
        return EndedProcess(self.rank, exit, self.ended_at, record, words, self.host)


class RemoteTraceback(Exception):
    """The traceback of a process of the pool: the cause of the exception that the caller gets."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


RemoteTraceback.__module__ = "lockstep"


def failed_first(outcomes: Sequence[Outcome], culprits: Sequence[int]) -> Outcome | None:
    """The outcome to show on top; None where each process has returned or is stuck.

    ``culprits``: the processes that caused the fault, by the records.
    """
    endings = [outcome.as_ended() for outcome in outcomes]
    seen = [o.ended_at for o in outcomes if o.kind is Kind.LOST]
    first = first_failure(endings, max(seen, default=-1.0))
    if first is None:
        return None
    first = by_culprit(first, endings, culprits)
    return next(o for o in outcomes if o.rank == first.process_id)


def error_of(
    outcomes: Sequence[Outcome], culprits: Sequence[int], diagnosis: str | None, full: bool
) -> BaseException:
    """The exception for the caller, where not every process has returned.

    ``diagnosis`` is what the records show, None without a fault; ``full`` keeps the frames of
    libraries in tracebacks.
    """
    first = failed_first(outcomes, culprits)
    if first is None:
        return _late(outcomes, diagnosis)
    if first.kind is Kind.LOST:
        error = _died(first, outcomes, full)
    else:
        error = _raised(first, len(outcomes), full)
    for note in _notes(first, outcomes):
        error.add_note(note)
    if diagnosis and not _has(error, first, diagnosis):
        error.add_note(diagnosis.removeprefix("lockstep: "))
    return error


def described(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    """What became of a process that did not return, by itself; ``outcomes`` has all of them."""
    if outcome.kind is Kind.STUCK:
        return _stacks(outcome, outcomes)
    if outcome.kind is Kind.LOST:
        return str(_died(outcome, [outcome], False)).replace(" of 1 ", " ", 1)
    assert outcome.failure is not None
    return outcome.failure.record.traceback


def _raised(first: Outcome, count: int, full: bool) -> BaseException:
    assert first.failure is not None
    record = first.failure.record
    error = first.value
    if not isinstance(error, Exception):  # none that can be loaded, or SystemExit and the like
        error = SpawnError(f"process {first.rank} of {count} raised {record.summary}")
    text = tracebacks.folded(record.traceback.rstrip("\n"), full)
    if not full and (found := tracebacks.parts(text)):
        text = f"{found[0]}{record.summary.partition(': ')[0]}: its text is below"
    if isinstance(error, SpawnError) and record.summary.startswith("lockstep.SpawnError"):
        return error  # about the function or its result: no line of the function is to blame
    on = f" on {first.host}" if first.host else ""
    where = f"process {first.rank} of {count}{on}:\n" if count > 1 else ""
    error.__cause__ = RemoteTraceback(f"{where}{text}\n")
    return error


def _died(first: Outcome, outcomes: Sequence[Outcome], full: bool) -> SpawnError:
    endings = [outcome.as_ended() for outcome in outcomes]
    if first.exit in (None, NOT_READ):
        reason = (first.exit or _NOT_SEEN).reason
        return SpawnError(f"{processes([first.rank])} of {len(outcomes)} {reason}")
    return SpawnError(
        headline(first.as_ended(), endings, first.ended_at, full=full)[0].replace(
            " failed first: ", " died: ", 1
        )
    )


def _late(outcomes: Sequence[Outcome], diagnosis: str | None) -> SpawnError:
    stuck = [o for o in outcomes if o.kind is Kind.STUCK]
    waiting = [o for o in stuck if o.waits_for]
    late = [o for o in stuck if not o.waits_for] or stuck
    text = (
        f"{processes([o.rank for o in late])} of {len(outcomes)} did not return in time and "
        f"{'was' if len(late) == 1 else 'were'} stopped"
    )
    if late is not stuck and waiting:
        text += f"; {processes([o.rank for o in waiting])} waited for {_them(late)}"
    error = SpawnTimeoutError(text)
    back = [o.rank for o in outcomes if o.kind is Kind.RETURNED]
    # Without records this is all that is known of what the late processes wait for.
    gone = f"{processes(back)} had returned by then" if back and not diagnosis else ""
    order = late if late is stuck else [*late, *waiting]
    for note in [diagnosis, gone, *(_stacks(o, outcomes) for o in order)]:
        if note:
            error.add_note(note)
    return error


def _notes(first: Outcome, outcomes: Sequence[Outcome]) -> list[str]:
    """What became of the other processes."""
    assert first.failure or first.kind is Kind.LOST
    began = first.as_ended().failed_at
    notes = []
    for other in sorted(outcomes, key=lambda o: o.as_ended().failed_at):
        if other is first or other.kind is Kind.RETURNED:
            continue
        if other.kind is Kind.STUCK:
            notes.append(_stacks(other, outcomes))
            continue
        if other.aborted and first.failure and not first.aborted:
            notes.append(f"{other.name} waited for it in a collective, and was aborted")
            continue
        seconds = max(0.0, other.as_ended().failed_at - began)
        notes.append(f"{other.name} failed {seconds:.1f} s later: {_what(other, first)}")
    return notes


def _what(other: Outcome, first: Outcome) -> str:
    if other.failure is None:
        exit = other.as_ended().exit
        return exit.cause if exit.is_seen else f"{exit.reason}"
    if first.failure and other.failure.record.summary == first.failure.record.summary:
        return "the same"
    return textwrap.shorten(other.failure.record.summary, MAX_LETTERS, placeholder=" ...")


def _stacks(stuck: Outcome, outcomes: Sequence[Outcome]) -> str:
    text = "\n".join(f"{_INDENT}{line}" for line in stuck.words)
    return f"{_how_stopped(stuck, outcomes)}. It was here:\n{text}"


def _how_stopped(stuck: Outcome, outcomes: Sequence[Outcome]) -> str:
    awaited = [o for o in outcomes if o.rank in stuck.waits_for]
    if not awaited:
        return f"{stuck.name} {STUCK}"
    names = processes([o.rank for o in awaited])
    if all(o.kind is Kind.RETURNED for o in awaited):
        return f"{names} left the function; {stuck.name} waited for {_them(awaited)} {WAITED}"
    return f"{stuck.name} waited for {names} {WAITED}"


def _them(outcomes: Sequence[Outcome]) -> str:
    return "it" if len(outcomes) == 1 else "them"


def _has(error: BaseException, first: Outcome, diagnosis: str) -> bool:
    """Whether the error says already what ``diagnosis`` begins with."""
    head = diagnosis.splitlines()[0].replace(" (exit code 0)", "")
    if _words.is_cut(str(error)):
        return False
    told = str(error) + (first.failure.record.traceback if first.failure else "")
    return any(words in told for words in (head, head.replace(" waited in ", " waits in ")))
