"""What a running job shows at a moment: a healthy job waits all the time, for milliseconds."""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Mapping

from lockstep.flight_recorder.diagnose import (
    BRIEF_SECONDS,
    Activity,
    Diagnosis,
    Kind,
    Row,
)
from lockstep.flight_recorder.run_records import Process, Run


def settled(diagnosis: Diagnosis, now: Mapping[str, int]) -> Diagnosis:
    """``diagnosis`` without stragglers, where all waits are shorter than `BRIEF_SECONDS`.

    ``now``: each host's CLOCK_MONOTONIC.
    """
    if diagnosis.kind is not Kind.WAITING or not all(_is_brief(r, now) for r in diagnosis.rows):
        return diagnosis
    rows = tuple(dataclasses.replace(row, culprit=False) for row in diagnosis.rows)
    return dataclasses.replace(diagnosis, kind=Kind.NOTHING, culprits=(), rows=rows)


def _is_brief(row: Row, now: Mapping[str, int]) -> bool:
    record = row.process.record
    if row.activity is not Activity.WAITS or row.call is None or record is None:
        return True
    # The clock begins again when a host does: a record from before has waited for long.
    return 0 <= now[record.host] - row.call.entry.entered_ns < BRIEF_SECONDS * 1e9


def with_compilations(run: Run, now: Mapping[str, int]) -> Run:
    """Adds the time that living processes have compiled for. ``now``: see `now_of_hosts`."""

    def known(process: Process) -> Process:
        if process.exit is not None or process.record is None:
            return process
        waits = process.waits.at(now[process.record.host] / 1e9)
        return dataclasses.replace(process, waits=waits)

    return dataclasses.replace(run, processes=tuple(map(known, run.processes)))


def now_of_hosts(run: Run, now_ns: int) -> dict[str, int]:
    """Host -> its CLOCK_MONOTONIC now, when that of this machine is ``now_ns``.

    The records of other hosts have two clocks, of which the second has been made that of this host
    (`record_reader.on_one_clock`, `hosts.host_records`).
    """
    leads = {
        process.record.host: process.record.realtime_ns - process.record.monotonic_ns
        for process in run.processes
        if process.record
    }
    here = leads.get(platform.node(), time.time_ns() - time.monotonic_ns())
    return {host: now_ns + here - lead for host, lead in leads.items()} | {platform.node(): now_ns}
