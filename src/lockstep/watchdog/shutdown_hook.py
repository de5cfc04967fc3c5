"""The end of a process: its record says how the program ended, before it waits for the others."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from lockstep import _jax_compat
from lockstep.engine import bindings
from lockstep.job import current_job

RAISED = "errors of collectives"


class _ProgramEnd(current_job.Part):
    """What is to happen when the program ends."""

    label = ""
    """The name of this process; "" where the job has no engine."""
    has_failed = False
    raised = False
    """Whether the program has been told that a collective failed."""
    finished: dict[str, int] | None = None
    """The calls that there had been when `finish` had waited for the last of them."""
    failed_before = 0
    """How many calls had failed before this job."""
    owner = 0
    """The process that is in the job: a child that it has forked is not."""

    def __init__(self) -> None:
        self.afterwards: Callable[[], None] = lambda: None

    def is_ours(self) -> bool:
        return self.label != "" and os.getpid() == self.owner


def mark_the_end(label: str, afterwards: Callable[[], None]) -> None:
    """Lets this process's record say how its program ended; ``afterwards`` is called then."""
    ending = current_job.part(_ProgramEnd)
    if ending.label:  # JAX has made its devices again
        return
    ending.label, ending.afterwards = label, afterwards
    ending.owner, ending.failed_before = os.getpid(), bindings.failed_calls()
    _install_hooks()
    # Behind jax's own handlers in registration, so before them in execution: they wait for the
    # other processes, which may wait for this one. JAX registers its own once more in each job.
    atexit.unregister(_on_exit)
    atexit.register(_on_exit)


@functools.cache
def _install_hooks() -> None:
    show = sys.excepthook

    def on_exception(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        ending = current_job.part(_ProgramEnd)
        if ending.is_ours():
            ending.has_failed = True
            bindings.leave(bindings.Leaving.FAILED)
            summary = str(error).partition("\n")[0]
            text = f"{kind.__name__}: {summary}" if summary else kind.__name__
            bindings.abort(f"lockstep: {ending.label} failed: {text}")
        show(kind, error, trace)

    def on_failure() -> None:
        current_job.part(_ProgramEnd).raised = True

    sys.excepthook = on_exception
    _jax_compat.install(
        RAISED,
        "a program that ends without reading a result that failed ends with status 0.",
        lambda: _jax_compat.watch_failures(on_failure),
    )
    os.register_at_fork(after_in_child=_on_fork)


def finish() -> None:
    """Waits for what the program has dispatched: its collectives are still to come.

    Raises what they failed with if the program has not been told: JAX raises where a result is
    read, and it has read none of those.
    """
    ending = current_job.part(_ProgramEnd)
    if not ending.is_ours() or ending.has_failed:
        return
    if _jax_compat.distributed_place()[1] == 1:  # no other process can make a collective fail
        return
    was_told = ending.raised or not _jax_compat.is_in(RAISED)
    failures = _failures_of_what_runs()
    ending.finished = bindings.counts()
    text = bindings.abort_text()  # none where one process's call was forbidden: the job is well
    if not text or bindings.failed_calls() == ending.failed_before or was_told:
        return
    error = next((e for e in failures if text in str(e)), _jax_compat.failure(text))
    error.add_note("The program had ended: none of its lines reads the result that failed.")
    ending.raised = True
    raise error


def _on_exit() -> None:
    ending = current_job.part(_ProgramEnd)
    if not ending.is_ours():
        return
    # child_main has called it before, and threads of the program may have gone on since.
    if ending.finished != bindings.counts():
        try:
            finish()
        except Exception as error:
            sys.excepthook(type(error), error, None)
    if not ending.has_failed:
        bindings.leave(bindings.Leaving.ENDED)
    ending.afterwards()


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


def _failures_of_what_runs() -> list[Exception]:
    failures = []
    for array in _jax_compat.live_arrays():
        try:
            array.block_until_ready()
        except Exception as error:
            failures.append(error)
    try:
        _jax_compat.wait_for_dispatched()  # results that it has dropped, too
    except Exception as error:
        failures.append(error)
    bindings.finish()
    return failures
