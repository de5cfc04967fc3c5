"""The end of a process: its record says how the program ended, before it waits for the others."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from lockstep import _jax_compat
from lockstep.engine import bindings
from lockstep.job import current_job


class _ProgramEnd(current_job.Part):
    """What is to happen when the program ends."""

    label = ""
    """The name of this process; "" where the job has no engine."""
    to_hosts = False
    has_failed = False
    owner = 0
    """The process that is in the job: a child that it has forked is not."""

    def __init__(self) -> None:
        self.afterwards: Callable[[], None] = lambda: None

    def is_ours(self) -> bool:
        return self.label != "" and os.getpid() == self.owner


def mark_the_end(label: str, afterwards: Callable[[], None], to_hosts: bool = False) -> None:
    """Lets this process's record say how its program ended; ``afterwards`` is called then.

    ``to_hosts``: there are other hosts, which cannot see what this process is still doing.
    """
    ending = current_job.part(_ProgramEnd)
    if ending.label:  # JAX has made its devices again
        return
    ending.label, ending.afterwards, ending.to_hosts = label, afterwards, to_hosts
    ending.owner = os.getpid()
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

    sys.excepthook = on_exception
    os.register_at_fork(after_in_child=_on_fork)


def _on_exit() -> None:
    ending = current_job.part(_ProgramEnd)
    if not ending.is_ours():
        return
    if not ending.has_failed:
        _finish_what_runs(ending.to_hosts)
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


def _finish_what_runs(to_hosts: bool) -> None:
    """Waits for what the program has dispatched: its collectives are still to come."""
    for array in _jax_compat.live_arrays():
        with contextlib.suppress(Exception):
            array.block_until_ready()
    if to_hosts:  # results that it has dropped, too
        with contextlib.suppress(Exception):
            _jax_compat.wait_for_dispatched()
