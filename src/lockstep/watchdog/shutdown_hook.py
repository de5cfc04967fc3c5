"""The end of a process: its record says how the program ended, before it waits for the others."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

from lockstep import _jax_compat
from lockstep.engine import bindings

_marked = False


def mark_the_end(label: str, afterwards: Callable[[], None], to_hosts: bool = False) -> None:
    """Lets this process's record say how its program ended; ``afterwards`` is called then.

    ``to_hosts``: other hosts are told so too, which cannot see what this process is still doing.
    """
    global _marked
    if _marked:
        return
    _marked = True
    owner = os.getpid()
    show = sys.excepthook
    has_failed = False

    def failed(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        nonlocal has_failed
        if os.getpid() == owner:
            has_failed = True
            bindings.leave(bindings.Leaving.FAILED)
            summary = str(error).partition("\n")[0]
            said = f"{kind.__name__}: {summary}" if summary else kind.__name__
            bindings.abort(f"lockstep: {label} failed: {said}")
        show(kind, error, trace)

    def ended() -> None:
        if os.getpid() != owner:
            return
        if not has_failed:
            _finish_what_runs(to_hosts)
            bindings.leave(bindings.Leaving.ENDED)
        afterwards()

    sys.excepthook = failed
    # Behind jax's own handlers in registration, so before them in execution: they wait for the
    # other processes, which may wait for this one.
    atexit.register(ended)
    os.register_at_fork(after_in_child=lambda: _be_a_child_of(label))


def _be_a_child_of(label: str) -> None:
    # Others take the end of a connection for the end of its process.
    bindings.forked()
    bindings.forbid(
        f"lockstep: a collective in a process that was forked from {label}: it shares that "
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
