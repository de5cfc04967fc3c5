"""How long the processes of a job may take to come together, and which of them have not come.

JAX's coordination service counts the processes that connect. After the deadline it writes down
those that have not; process 0 reads that, and the other processes under ``lockstep run``, which
share a folder with it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence

from lockstep import _config
from lockstep._errors import InitializationError
from lockstep._words import counted
from lockstep.bootstrap import (
    certificates,
    coordination_service,
    coordinator_address,
    startup_liveness,
)

_UNLIMITED = 7 * 86400
"""JAX knows no start without a deadline."""
_PROBE_SECONDS = 2.0
_MAX_NAMED = 8
_MISSING = re.compile(r"timed out task names:\n((?:(?:/\S*task:)?\d+\n)+)")


def seconds() -> int:
    """The deadline where the program has passed none."""
    limit = _config.current().start_timeout
    return max(1, round(limit)) if limit else _UNLIMITED


def not_started(coordinator: str, process: int, count: int, limit: int) -> InitializationError:
    """Why the processes have not all connected to JAX's coordination service."""
    missing = missing_in(coordination_service.log())
    if missing:
        what = _names(missing, count)
    elif process != 0 and (reason := _out_of_reach(coordinator)):
        what = (
            f"process 0 did not start JAX's coordination service of {count} processes at "
            f"{coordinator} ({reason})"
        )
    else:
        what = f"some of the {count} processes (process 0's error may name them) did not join"
    return InitializationError(
        f"{what} within {limit} s. See the output of the missing processes: each has to call "
        "jax.distributed.initialize() or lockstep.initialize() with the coordinator "
        f"{coordinator}{_same_key()}. For a job that takes longer to start: --start-timeout "
        "SECONDS of lockstep run and worker, LOCKSTEP_START_TIMEOUT, or initialization_timeout."
    )


def _same_key() -> str:
    if not certificates.descriptors():
        return ""
    return (
        ", and with the same key: the service accepts only certificates that are made from it "
        "(without LOCKSTEP_KEY_FILE it is the run's secret, in a directory below TMPDIR)"
    )


def missing_in(log: str) -> list[int]:
    """The processes that are named last in what the service has written."""
    found = _MISSING.findall(log)
    if not found:
        return []
    return sorted({int(re.sub(r".*\D", "", line)) for line in found[-1].split()})


def _names(missing: Sequence[int], count: int) -> str:
    named = [_with_ending(process) for process in missing[:_MAX_NAMED]]
    if len(missing) > _MAX_NAMED:
        named.append(f"{counted(len(missing) - _MAX_NAMED, 'other process')}")
    return f"{', '.join(named)} did not join the job of {count} processes"


def _with_ending(process: int) -> str:
    how = startup_liveness.recorded_ending(process)
    return f"process {process} (which {how})" if how else f"process {process}"


def _out_of_reach(coordinator: str) -> str:
    """Why no connection to the service can be made; "" where one can."""
    try:
        host, port = coordinator_address.split(coordinator)
        with socket.create_connection((host, port), _PROBE_SECONDS):
            return ""
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
