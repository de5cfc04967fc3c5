"""Who will not come: a process that has ended while the others wait for its word to begin.

Of this host, from the system, and from the launcher. Of another host nothing is known before the
engines have met: there a start waits for as long as it may.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep import _config
from lockstep._errors import InitializationError
from lockstep._records import process_dir
from lockstep.record import format, run
from lockstep.runtime import exits, verdict
from lockstep.runtime.topology import Peer


def look(
    peers: Sequence[Peer], process: int, other: int, patience: float = 0.0
) -> Callable[[], None]:
    """Raises `InitializationError` once process ``other`` has ended, where ``process`` sees that.

    ``patience``: how many seconds it may take to end.
    """
    peer = peers[other]

    def raise_if_gone() -> None:
        if peer.host_id == peers[process].host_id and (how := _how_it_ended(peer, patience)):
            raise InitializationError(f"{peer.label} {how}, while the job began.")

    return raise_if_gone


def look_before(process: int, who: str) -> Callable[[], None]:
    """The same before the process has said who it is: then only its launcher or keeper knows."""
    launched = _config.current().run_dir is not None

    def raise_if_gone() -> None:
        if launched and (ending := run.read_exit(_folder(process))):
            how = verdict.how_it_ended(_no_record(process), ending)
            raise InitializationError(f"{who} {how}, before the job had begun.")

    return raise_if_gone


def _folder(process: int) -> Path:
    config = _config.current()
    return process_dir(Path(config.run_dir or ""), config.attempt, process)


def _no_record(process: int) -> format.ProcessRecord:
    return format.ProcessRecord(process, 0, 0, "", "")


def _how_it_ended(peer: Peer, patience: float) -> str:
    """Half a sentence; "" while it lives."""

    def written() -> run.Exit | None:
        ending = run.read_exit(_folder(peer.process))
        return ending if ending and ending.pid in (None, peer.pid) else None

    with contextlib.ExitStack() as opened:
        pidfd = -1
        try:
            pidfd = os.pidfd_open(peer.pid)
        except ProcessLookupError:
            pass  # nobody has to ask any more how it ended, but the launcher may have
        except OSError:  # no descriptor left: not known
            return ""
        else:
            opened.callback(os.close, pidfd)
            if not select.select([pidfd], [], [], patience)[0]:
                return ""
        ending = exits.ending(pidfd, written if _config.current().run_dir else None)
        return verdict.how_it_ended(_no_record(peer.process), ending)
