"""Detects peers that exit during start-up.

Peers on this host: from the kernel and the launcher. Peers on other hosts: nothing is known until
the engines have connected, so a start waits for them until its deadline.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import select
import time
from collections.abc import Callable, Sequence
from typing import Any

from lockstep import _config
from lockstep._errors import InitializationError
from lockstep._run_files import ErrorRecord, Exit, read_ending
from lockstep.bootstrap import service_loss
from lockstep.flight_recorder import format
from lockstep.job.kv_store import Record, Store
from lockstep.job.topology import Peer
from lockstep.system import exit_status


def check(
    peers: Sequence[Peer], process: int, other: int, timeout: float = 0.0
) -> Callable[[], None]:
    """Raises `InitializationError` once process ``other`` has ended, where ``process`` sees that.

    ``timeout``: how many seconds it may take to end.
    """
    peer = peers[other]

    def raise_if_gone() -> None:
        service_loss.raise_if_lost()
        if peer.host_id == peers[process].host_id and (how := _how_it_ended(peer, timeout)):
            raise InitializationError(f"{peer.label} {how}, while the job began.")

    return raise_if_gone


def first_record(store: Store, folder: str, process: int, count: int) -> Record:
    """What a process publishes before the others know anything of it. The writer is not
    authenticated.

    Raises `InitializationError` as `check` does, but only the launcher or agent can see that; and
    after the deadline for the start of a job.
    """
    label = f"process {process} of {count}"
    return store.record(f"{folder}/{process}", label, _before_the_start(process, label), math.inf)


def first_value(store: Store, folder: str, process: int, count: int) -> Any:
    """As `first_record`, from a process that has the job's key."""
    label = f"process {process} of {count}"
    return store.get(f"{folder}/{process}", label, _before_the_start(process, label), math.inf)


def _before_the_start(process: int, label: str) -> Callable[[], None]:
    limit = _config.current().start_timeout or math.inf
    end = time.monotonic() + limit

    def check() -> None:
        service_loss.raise_if_lost()
        if how := recorded_ending(process):
            raise InitializationError(f"{label} {how}, before the job had begun.")
        if time.monotonic() > end:
            raise InitializationError(
                f"{label} connected to JAX's coordination service, and did not go on in "
                f"{limit:g} s. It may have failed (see its output), not import lockstep, or "
                "run another program. For a job that takes longer to start: --start-timeout."
            )

    return check


def recorded_ending(process: int) -> str:
    """Half a sentence of how a process of this host ended, where its launcher has written it."""
    if (folder := _config.current().process_dir(process)) is None:
        return ""
    error, ending = read_ending(folder)
    return "" if ending is None else _words(process, ending, error)


def _words(process: int, ending: Exit | None, error: ErrorRecord | None) -> str:
    """Half a sentence of how it ended, without a flight record."""
    # Late import: it takes longer than the rest of the start, and all is well as a rule.
    from lockstep.watchdog import abort_message

    return abort_message.how_it_ended(format.ProcessRecord(process, 0, 0, "", ""), ending, error)


def _how_it_ended(peer: Peer, timeout: float) -> str:
    """Half a sentence; "" while it lives."""
    with contextlib.ExitStack() as opened:
        pidfd = -1
        try:
            pidfd = os.pidfd_open(peer.pid)
        except ProcessLookupError:
            pass  # the kernel has forgotten how it ended, but the launcher may have written it
        except OSError:  # no descriptor left: not known
            return ""
        else:
            opened.callback(os.close, pidfd)
            if not select.select([pidfd], [], [], timeout)[0]:
                return ""
        folder = _config.current().process_dir(peer.process)
        written = functools.partial(Exit.read, folder, peer.pid) if folder else None
        ending = exit_status.ending(pidfd, written)
        return _words(peer.process, ending, ErrorRecord.read(folder) if folder else None)
