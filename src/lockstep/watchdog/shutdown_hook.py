"""The end of a process: it waits for its work in flight, and its record says how it ended.

JAX's shutdown would wait for all processes, and meanwhile the collectives in flight run to their
end. With Lockstep the processes are recoverable, so JAX's shutdown does not wait. A process that
ended at once would take its part in those collectives with it, and the others would wait forever.
So it waits here for what it has dispatched, over the engine as over gloo, MPI and NCCL.

Over the engine this wait ends by the engine's own deadlines. Other libraries have none, and a
collective that hangs looks like a computation that takes long. So that wait goes on as long as it
takes, as JAX's own clean-up would, but it says so after ``--collective-timeout``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from lockstep import _config, _jax_compat, _run_files
from lockstep._errors import RecordError
from lockstep._jax_compat.texts import OF_THE_ENGINE, first_line, is_of_collective
from lockstep._stderr import complain
from lockstep.engine import bindings
from lockstep.flight_recorder import format
from lockstep.flight_recorder.format import State
from lockstep.job import current_job

RAISED = "errors of collectives"
_AFTER_FAILURE_SECONDS = 2.0
"""How long to wait for the rest when a collective has failed: it may wait for a lost process."""
_OTHERS_SECONDS = 2.0
"""How long a process that has ended keeps its connections open for the others, at most: NCCL and
sockets may still be sending when its own part of the last collective is done. The time is short,
because a process that waits for this one in a collective detects its end by these connections."""


class _ProgramEnd(current_job.Part):
    """What is to happen when the program ends."""

    label = ""
    """The name of this process; "" where the job has no engine."""
    has_failed = False
    raised = False
    """Whether the program has been told that a collective failed."""
    told = ""
    """The text of the first such error."""
    finished: dict[str, int] | None = None
    """The calls that there had been when `finish` had waited for the last of them."""
    explain: Callable[[], str] | None = None
    """Says why a collective has failed whose error does not say it; None: not known."""
    failed_before = 0
    """How many calls had failed before this job."""
    owner = 0
    """The process that is in the job: a child that it has forked is not."""
    has_left = False
    """Whether `leave` has run."""
    has_warned = False
    """Whether a line has said that this process still waits at its end."""

    error: BaseException | None = None
    """The uncaught exception of the program."""

    in_thread: tuple[str, Exception] | None = None
    """The error of a collective that has ended a thread of the program, and the thread's name."""

    def __init__(self) -> None:
        self.records: list[Callable[[bindings.Leaving], None]] = []
        """What is told how the program has ended."""
        self.afterwards: list[Callable[[], None]] = []
        self.failures: list[Exception] = []
        """The errors of arrays that `finish` or `leave` has waited for."""

    def is_ours(self) -> bool:
        return os.getpid() == self.owner

    def is_engines_alone(self) -> bool:
        """Whether the engine runs all collectives: there are no other devices than CPUs."""
        return bool(self.label) and _jax_compat.platforms() <= {"cpu"}

    def is_of_collective(self, text: str) -> bool:
        """Whether an error is that of a collective: other errors are the program's affair."""
        if self.is_engines_alone():
            return OF_THE_ENGINE in text
        return is_of_collective(text)


def watch() -> None:
    """Makes this process wait at its end for what it has dispatched.

    Call it when JAX has made its CPU client.
    """
    current_job.part(_ProgramEnd).owner = os.getpid()
    _install_hooks()
    # This handler is registered after jax's own, so it runs before them: they take down what the
    # collectives in flight need. JAX registers its handlers once more in each job.
    atexit.unregister(_on_exit)
    atexit.register(_on_exit)


def mark_the_end(label: str, afterwards: Callable[[], None]) -> None:
    """Lets this process's record say how its program ended; ``afterwards`` is called then."""
    ending = current_job.part(_ProgramEnd)
    if ending.label:  # JAX has made its devices again
        return
    ending.label = label
    ending.failed_before = bindings.failed_calls()
    at_the_end(bindings.leave, afterwards)
    watch()


def at_the_end(record: Callable[[bindings.Leaving], None], afterwards: Callable[[], None]) -> None:
    """Has ``record`` told how the program ends; ``afterwards`` is called then."""
    ending = current_job.part(_ProgramEnd)
    ending.records.append(record)
    ending.afterwards.append(afterwards)


@functools.cache
def _install_hooks() -> None:
    show = sys.excepthook

    def on_exception(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        ending = current_job.part(_ProgramEnd)
        if ending.is_ours():
            ending.has_failed = True
            ending.error = error
            _record(ending, bindings.Leaving.FAILED)
            if ending.label:
                _abort(ending.label, kind, error)
        show(kind, error, trace)

    sys.excepthook = on_exception
    threading.excepthook = functools.partial(_on_exception_of_thread, threading.excepthook)
    _jax_compat.install(
        RAISED,
        "a program that ends without reading a result that failed ends with status 0.",
        lambda: _jax_compat.watch_failures(note_failure),
    )
    os.register_at_fork(after_in_child=_on_fork)


def _on_exception_of_thread(show: Callable[..., Any], args: threading.ExceptHookArgs) -> None:
    ending, error = current_job.part(_ProgramEnd), args.exc_value
    with contextlib.suppress(Exception):  # the text of the program's own error may be one
        is_own = ending.is_ours() and ending.is_of_collective(str(error))
        if is_own and isinstance(error, Exception) and ending.in_thread is None:
            ending.in_thread = getattr(args.thread, "name", "?"), error
    show(args)


def _abort(label: str, kind: type[BaseException], error: BaseException) -> None:
    summary = first_line(str(error))
    text = f"{kind.__name__}: {summary}" if summary else kind.__name__
    bindings.abort(f"lockstep: {label} failed: {text}")


def has_failed() -> bool:
    """Whether an exception has ended the program."""
    return current_job.part(_ProgramEnd).has_failed


def failed_collective() -> tuple[bool, BaseException | None]:
    """Whether the program was told that a collective has failed, and the exception that has ended
    it: None where it caught that error."""
    ending = current_job.part(_ProgramEnd)
    error = ending.error
    return ending.raised or (error is not None and ending.is_of_collective(str(error))), error


def finish() -> None:
    """Waits for what the program has dispatched: its collectives are still to come.

    Raises what they failed with if the program has not been told: JAX raises where a result is
    read, and it has read none of those. An error that has ended a thread was caught by no line.
    """
    ending = current_job.part(_ProgramEnd)
    if not ending.is_ours() or ending.has_failed:
        return
    if _jax_compat.distributed_place()[1] == 1:  # no other process can make a collective fail
        return
    was_told = ending.raised or not _jax_compat.is_in(RAISED)
    _wait(ending)
    if ending.in_thread:
        name, error = ending.in_thread
        error.add_note(f"The program had ended: this error has ended its thread {name}.")
        raise error
    error = _unread_failure(ending)
    if error is None or was_told:
        return
    error.add_note("The program had ended: none of its lines reads the result that failed.")
    ending.raised = True
    raise error


def note_failure(text: str) -> bool:
    """Notes an error that the program was told of; returns whether it is that of a collective."""
    ending = current_job.part(_ProgramEnd)
    if not ending.is_of_collective(text):
        return False
    ending.raised = True
    ending.told = ending.told or text
    return True


def explain_by(explain: Callable[[], str]) -> None:
    """Has `caught` call ``explain`` for the cause of an error that does not say it."""
    current_job.part(_ProgramEnd).explain = explain


def caught() -> str:
    """The error of a collective that the program has caught before it ended well; "" for none."""
    ending = current_job.part(_ProgramEnd)
    if not ending.is_ours() or ending.has_failed:
        return ""
    if ending.label:
        # The job has no abort text where one process's call was forbidden: it is well.
        text = bindings.abort_text()
        return text if text and (ending.raised or _has_failed_call()) else ""
    if not ending.raised:
        return ""
    return (ending.explain() if ending.explain else "") or ending.told


def _has_failed_call() -> bool:
    """Whether a collective of this process has failed, by its record.

    JAX's fast path raises such an error where no code of ours sees it.
    """
    if (folder := _config.current().own_dir) is None:
        return False
    try:
        record = format.parse((folder / _run_files.RECORDER).read_bytes())
    except (OSError, RecordError):
        return False
    return any(entry.state == State.RAISED for ring in record.rings for entry in ring.entries[-1:])


def _unread_failure(ending: _ProgramEnd) -> Exception | None:
    # The job has no abort text where one process's call was forbidden: it is well.
    text = bindings.abort_text() if ending.label else ""
    if text and bindings.failed_calls() != ending.failed_before:
        found = (e for e in ending.failures if text in str(e))
        return next(found, _jax_compat.failure(text))
    if ending.is_engines_alone():
        return None
    return next((e for e in ending.failures if ending.is_of_collective(str(e))), None)


def _wait(ending: _ProgramEnd) -> None:
    """Waits for all that this process has dispatched, and keeps what it fails with."""
    raised = ending.raised
    if ending.is_engines_alone():
        # The engine counts the calls in flight, so it needs no program on all devices to wait for.
        ending.failures += _jax_compat.wait_for_dispatched(across_devices=False)
    else:
        ending.failures += _jax_compat.wait_for_dispatched(stop=_patience(ending))
    ending.raised = raised  # the program has not read the errors that this wait has
    if ending.label:
        bindings.finish()
        ending.finished = bindings.counts()


def _patience(ending: _ProgramEnd) -> Callable[[list[Exception]], bool]:
    """Returns the function that ends a wait for collectives which are not the engine's.

    It ends the wait soon after a collective has failed, and prints a line where the wait is long.
    """
    started = time.monotonic()
    failed_at = started if ending.raised or ending.in_thread else None
    limit = _config.current().collective_timeout

    def stop(failures: list[Exception]) -> bool:
        nonlocal failed_at
        now = time.monotonic()
        if failed_at is None and any(ending.is_of_collective(str(e)) for e in failures):
            failed_at = now
        if failed_at is None and limit and now > started + limit and not ending.has_warned:
            ending.has_warned = True
            _warn(limit)
        return failed_at is not None and now > failed_at + _AFTER_FAILURE_SECONDS

    return stop


def _warn(seconds: float) -> None:
    process, _ = _jax_compat.distributed_place()
    complain(
        f"process {process} has come to the end of its program, and has waited {seconds:g} s for "
        "what it has dispatched: a long computation, or a collective that waits for a process "
        "which takes no part in it. Ctrl-C ends the wait."
    )


def leave() -> None:
    """Leaves the job, where JAX's shutdown would wait for the others. Raises nothing.

    `finish` raises later what has failed.
    """
    ending = current_job.part(_ProgramEnd)
    if not ending.is_ours() or ending.has_failed or ending.has_left:
        return
    if not _jax_compat.is_recoverable() or _jax_compat.distributed_place()[1] == 1:
        return
    if ending.is_engines_alone():
        return  # the engine sends what it has to before it closes a connection
    ending.has_left = True
    _wait(ending)
    if not ending.raised and _unread_failure(ending) is None:
        _jax_compat.wait_for_others("lockstep/ended", _OTHERS_SECONDS)


def _on_exit() -> None:
    ending = current_job.part(_ProgramEnd)
    if not ending.is_ours():
        return
    # child_main has called it before, and threads of the program may have gone on since.
    if not ending.label or ending.finished != bindings.counts():
        try:
            finish()
        except Exception as error:
            error.__traceback__ = None  # no line of it is the program's
            sys.excepthook(type(error), error, None)
    if not ending.has_failed:
        _record(ending, bindings.Leaving.ENDED)
    for afterwards in ending.afterwards:
        with _going_on():
            afterwards()
    leave()


def _record(ending: _ProgramEnd, how: bindings.Leaving) -> None:
    for record in ending.records:
        with _going_on():
            record(how)


@contextlib.contextmanager
def _going_on() -> Iterator[None]:
    """An error of what watches is printed: the others still have to learn how this process ends,
    and a thread that is left beside JAX's shutdown would end in a SIGSEGV."""
    try:
        yield
    except Exception as error:
        complain(f"the end of the program was not noted: {error!r}")


def _on_fork() -> None:
    ending = current_job.part(_ProgramEnd)
    if not ending.label:
        return
    # The other processes take the end of a connection for the end of its process.
    bindings.forked()
    bindings.forbid(
        f"lockstep: a collective in a process that was forked from {ending.label}: it shares that "
        "process's place in the job, so it may not take part. Start such processes with "
        "multiprocessing's 'spawn', or before jax.distributed.initialize()."
    )
