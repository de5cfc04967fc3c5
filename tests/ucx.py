"""UCX in tests: whether it is here, and the variables of a job that uses it."""

from __future__ import annotations

import functools

from lockstep.system import ucx

WHY = "no UCX (Debian and Ubuntu: apt install libucx0)"

OVER_UCX = {
    "LOCKSTEP_TRANSPORT": "ucx",
    "LOCKSTEP_ENCRYPTION": "0",
    "UCX_TLS": "tcp",
}


@functools.cache  # the search starts a process
def library() -> str:
    found = ucx.found(None)
    return found[0] if found else ""


def is_here() -> bool:
    return library() != ""
