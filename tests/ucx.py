"""UCX in tests: whether it is here, and the variables of a job that uses it."""

from __future__ import annotations

from lockstep.system import ucx

WHY = "no UCX (Debian and Ubuntu: apt install libucx0)"

OVER_UCX = {
    "LOCKSTEP_TRANSPORT": "ucx",
    "LOCKSTEP_ENCRYPTION": "0",
    # Of these machines' devices, UCX could take some that the hosts of a test do not have.
    "UCX_TLS": "tcp",
}


def is_here() -> bool:
    return ucx.found(None) is not None
