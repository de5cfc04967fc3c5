"""Room for the engine's connections among the files that a process may have open."""

from __future__ import annotations

import os
import resource

from lockstep._errors import InitializationError

_SPARE = 256
"""For what the program opens later; the usual limit of 1024 leaves it some."""


def make_room(needed: int) -> None:
    """Raises the soft limit for ``needed`` more descriptors, where it is too low.

    Raises `InitializationError` where the hard limit is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = len(os.listdir("/proc/self/fd"))
    if _has(soft, needed + taken + _SPARE):
        return
    if not _has(hard, needed + taken):
        raise InitializationError(
            f"the engine needs {needed} file descriptors for its connections to other hosts, "
            f"{taken} are open, and this process may have {hard}. Raise the limit before the job "
            f"starts (ulimit -n {needed + taken + _SPARE}, as far as the system's hard limit "
            "permits), or use --collectives gloo."
        )
    wanted = needed + taken + _SPARE
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if _has(hard, wanted) else hard, hard))


def _has(limit: int, count: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= count
