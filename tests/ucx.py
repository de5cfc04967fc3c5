"""UCX in tests: whether it is here, and the variables of a job that uses it."""

from __future__ import annotations

from lockstep.system import ucx

WHY = "no UCX (Debian and Ubuntu: apt install libucx0)"

OVER_UCX = {
    "LOCKSTEP_TRANSPORT": "ucx",
    "LOCKSTEP_ENCRYPTION": "0",
    "UCX_TLS": "tcp",
    # The one that two hosts of a test have in common: over loopback they do not meet.
    "UCX_NET_DEVICES": "eth0",
}


def library() -> str:
    found = ucx.found(None)
    return found[0] if found else ""


def is_here() -> bool:
    return library() != ""
