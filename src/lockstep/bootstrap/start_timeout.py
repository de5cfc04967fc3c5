"""How long the processes of a job may take to come together, and which of them have not come.

JAX's coordination service counts the processes that connect. After the deadline it writes down
those that have not; process 0 reads that, and the other processes under ``lockstep run``, which
share a folder with it.
"""

from __future__ import annotations

import os
import re
import socket
import time
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
from lockstep.system import tcp_ports

_UNLIMITED = 7 * 86400
"""JAX knows no start without a deadline."""
_PROBE_SECONDS = 2.0
_MAX_NAMED = 8
_EARLY_SECONDS = 2.0
"""jaxlib counts whole seconds, so a wait that ends this much before the deadline has timed out."""
_ENDING_SECONDS = 2.0
"""For a service to end whose process 0 has given up."""
_POLL_SECONDS = 0.2
_MISSING = re.compile(r"timed out task names:\n((?:(?:/\S*task:)?\d+\n)+)")
_SAME_RANK = "a more recent barrier call for [Init]"
"""What the service writes when a second process connects with the rank of another."""
_OWN_NUMBERS = (
    "Give each process its own number: process_id of jax.distributed.initialize(), "
    "LOCKSTEP_PROCESS_ID, or the rank that the cluster's launcher sets."
)


def seconds() -> int:
    """The deadline where the program has passed none."""
    limit = _config.current().start_timeout
    return max(1, round(limit)) if limit else _UNLIMITED


def not_started(
    coordinator: str, process: int, count: int, limit: int, elapsed: float
) -> InitializationError:
    """Why the processes have not all connected to JAX's coordination service.

    ``elapsed``: seconds that this process has waited.
    """
    log = coordination_service.log()
    missing = missing_in(log)
    if not missing and elapsed < limit - _EARLY_SECONDS:
        return InitializationError(_dropped(coordinator, process, count, elapsed))
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
        + (f" Two processes have connected with one number. {_OWN_NUMBERS}" * (_SAME_RANK in log))
    )


def _dropped(coordinator: str, process: int, count: int, elapsed: float) -> str:
    """Why the connection to the service has ended before the deadline."""
    own = f"pid {os.getpid()} on {socket.gethostname()}"
    is_certain = _SAME_RANK in coordination_service.log()
    if not is_certain and _ends(coordinator):
        what = (
            f"JAX's coordination service at {coordinator} has ended {elapsed:.1f} s after process "
            f"{process} ({own}) began to connect: process 0 has failed or given up, see its output."
        )
        if process == 0 and not coordinator_address.is_local(coordinator):
            what += (
                " That service runs on another host, so another process is process 0 as well. "
                f"{_OWN_NUMBERS}"
            )
        return what
    if is_certain:
        what = (
            f"two processes claim to be process {process} of {count}: this one ({own}), and one "
            f"that connected to JAX's coordination service at {coordinator} later."
        )
    else:
        what = (
            f"JAX's coordination service at {coordinator} has dropped process {process} ({own}) "
            f"after {elapsed:.1f} s: another process claims to be process {process} of {count} "
            "too, or process 0 was given another number of processes."
        )
    others = tcp_ports.clients(coordinator_address.split(coordinator)[1])
    if 0 < len(others) <= _MAX_NAMED:
        what += f" Connected to the service besides this one: {', '.join(others)}."
    return f"{what} {_OWN_NUMBERS}"


def _ends(coordinator: str) -> bool:
    """Whether the service ends within `_ENDING_SECONDS`."""
    end = time.monotonic() + _ENDING_SECONDS
    while not _out_of_reach(coordinator):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True


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
