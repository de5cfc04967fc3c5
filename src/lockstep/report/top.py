"""``lockstep top``: shows what every process of a running job is doing, updated regularly."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lockstep._errors import RecordError
from lockstep._words import counted, format_seconds, processes
from lockstep.flight_recorder.diagnose import Activity, Diagnosis, Row, diagnose
from lockstep.flight_recorder.diagnosis_headline import headline
from lockstep.flight_recorder.format import State
from lockstep.flight_recorder.phrases import described
from lockstep.flight_recorder.run_records import Run
from lockstep.flight_recorder.time_summary import summarize
from lockstep.launch import lost_time
from lockstep.processes import running_job
from lockstep.report import locate_run
from lockstep.report.tables import summary_table

LINES = 8
"""How many call sites are shown."""
_REMOVAL_SECONDS = 0.2
"""A launcher takes less to remove the records of a run."""
_OVER = (Activity.ENDED, Activity.FAILED, Activity.KILLED)


def watch(
    directory: Path | None, pid: int | None, attempt: int | None, interval: float, once: bool
) -> int:
    """Shows the run until it is over or Ctrl-C; 1 when it ended with a fault."""
    run = locate_run.read(directory, pid, attempt)
    now_ns = time.monotonic_ns()  # of the records: what follows takes a while
    console = Console(highlight=False)
    diagnosis = diagnose(run)
    lost = locate_run.restarts(directory, pid)
    if once:
        console.print(frame(run, diagnosis, now_ns, lost=lost))
        return int(diagnosis.kind.is_fault)
    before = Rates(run, now_ns / 1e9)
    with Live(console=console, auto_refresh=False) as screen:
        screen.update(frame(run, diagnosis, now_ns, lost=lost), refresh=True)
        while not all(row.activity in _OVER or row.process.exit for row in diagnosis.rows):
            time.sleep(max(0.1, interval))
            run = _next(run, directory, pid, attempt)
            if run is None:
                # The tables are out of date.
                screen.update(Text("the run is over", style="bold"), refresh=True)
                break
            now_ns = time.monotonic_ns()
            diagnosis = diagnose(run)
            rates = Rates(run, now_ns / 1e9)
            lost = locate_run.restarts(directory, pid)
            screen.update(frame(run, diagnosis, now_ns, rates.since(before), lost), refresh=True)
            before = rates
    return int(diagnosis.kind.is_fault)


def _next(run: Run, directory: Path | None, pid: int | None, attempt: int | None) -> Run | None:
    """The run as it is now; None once the launcher has removed its directory."""
    try:
        found = locate_run.read(directory, pid, attempt)
        known = [{p.index for p in one.processes if p.record} for one in (run, found)]
        if known[0] - known[1]:  # the launcher may be at it, file by file
            time.sleep(_REMOVAL_SECONDS)
            found = locate_run.read(directory, pid, attempt)
    except RecordError:
        return None
    return found


class Rates:
    """How many collectives each process had begun at a moment."""

    def __init__(self, run: Run, seconds: float) -> None:
        self.seconds = seconds
        self.begun = {
            p.index: max((ring.written for ring in p.record.rings), default=0)
            for p in run.processes
            if p.record
        }

    def since(self, before: Rates) -> dict[int, float]:
        """Process -> collectives per second and device since ``before``."""
        passed = max(self.seconds - before.seconds, 1e-9)
        return {
            p: max(0, n - before.begun[p]) / passed
            for p, n in self.begun.items()
            if p in before.begun
        }


def frame(
    run: Run,
    diagnosis: Diagnosis,
    now_ns: int,
    rates: dict[int, float] | None = None,
    lost: Mapping[str, Any] | None = None,
) -> Group:
    """One picture. ``now_ns`` is CLOCK_MONOTONIC of this machine, ``lost`` what restarts have cost
    (`locate_run.restarts`)."""
    now = running_job.now_of_hosts(run, now_ns)
    diagnosis = running_job.settled(diagnosis, now)
    style = "bold red" if diagnosis.kind.is_fault else "bold"
    return Group(
        Text(headline(diagnosis), style=style),
        *map(Text, _lost_time(lost or {})),
        _processes(diagnosis, now, rates or {}),
        summary_table(summarize(run), LINES),
    )


def _lost_time(lost: Mapping[str, Any]) -> list[str]:
    """A line of the restarts up to now; none where there was no restart."""
    causes = [
        f"{cause} {each['restarts']} ({each['lost_seconds']:.1f} s)"
        for cause, each in lost.get("by_cause", {}).items()
    ]
    if not causes:
        return []
    count = counted(len(lost["restarts"]), "restart")
    found = lost_time.steps(lost["restarts"])
    continued = f"; {found}" if found else ""
    return [f"{count}, {lost['lost_seconds']:.1f} s lost: {', '.join(causes)}{continued}"]


def _processes(diagnosis: Diagnosis, now: dict[str, int], rates: dict[int, float]) -> Table:
    table = Table()
    for column in ("process", "host", "pid"):
        table.add_column(column)
    for column in ("begun", "per s"):
        table.add_column(column, justify="right")
    table.add_column("now")
    table.add_column("since", justify="right")
    table.add_column("call", overflow="fold")
    for row in diagnosis.rows:
        record = row.process.record
        begun = max((ring.written for ring in record.rings), default=0) if record else 0
        table.add_row(
            f"{row.index}",
            record.host if record else "?",
            str(record.pid) if record else "?",
            str(begun),
            f"{rates[row.index]:.0f}" if row.index in rates else "",
            _now(row),
            _since(row, now[record.host]) if record else "",
            described(row.call) if row.call and row.call.entry.state == State.ENTERED else "",
            style="yellow" if row.culprit else None,
        )
    return table


def _now(row: Row) -> str:
    if row.waits_for:
        return f"waits for {processes(row.waits_for)}"
    if row.activity is Activity.BUSY and row.process.waits.compiles:
        return f"compiles {row.process.waits.compiles}"
    return row.activity.value


def _since(row: Row, now_ns: int) -> str:
    """How long the process has been in its collective or its compilation, or out of collectives."""
    if row.activity is Activity.BUSY and row.process.waits.compiles:
        return format_seconds(now_ns / 1e9 - row.process.waits.compiles_since)
    if row.call is None or row.activity in _OVER:
        return ""
    entry = row.call.entry
    began = entry.entered_ns if entry.state == State.ENTERED else entry.done_ns
    return format_seconds((now_ns - began) / 1e9) if 0 < began <= now_ns else ""
