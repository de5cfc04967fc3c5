"""The records as a trace that Perfetto and chrome://tracing show. Pure.

Each device has a track below its process. A collective is a slice that contains two more: waiting
for the slowest, and moving data. An arrow leads from the member that began last to each member that
waited for it. The launch of a program is a slice, and so is a compilation that has not ended. The
format is the Trace Event Format's JSON: complete events ("X"), metadata ("M") and flows ("s", "f").
Times are microseconds since the first recorded collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockstep.flight_recorder.calls import Calls
from lockstep.flight_recorder.format import Entry, Op, State
from lockstep.flight_recorder.phrases import (
    LAUNCH,
    function,
    label_of,
    operation,
    place_in_program,
)
from lockstep.flight_recorder.run_records import Run
from lockstep.flight_recorder.timeline import History, Track

WAITING = "waiting for the slowest"
MOVING = "moving data"


def trace(run: Run) -> dict[str, Any]:
    """The document to save as ``.json`` and to open at https://ui.perfetto.dev."""
    history = History(run)
    times = [t.time(e.entered_ns) for t in history.tracks.values() for e in t.entries]
    start = min(times, default=0)
    end = max(
        [t.time(e.done_ns) for t in history.tracks.values() for e in t.entries if e.done_ns]
        + times,
        default=0,
    )
    calls = Calls(history)
    events = list(_names(run, history))
    for track in history.tracks.values():
        for entry in track.entries:
            events += _slices(calls, track, entry, start, end)
    events += _arrows(history, start)
    events += _compilations(run, history, start)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _compilations(run: Run, history: History, start: int) -> Iterator[dict[str, Any]]:
    """What processes are compiling now, on the track of their first device."""
    for process in run.processes:
        waits = process.waits
        tracks = (track for track in history.tracks.values() if track.process == process.index)
        if waits.compiled_for and (track := next(tracks, None)) is not None:
            begun = track.time(int(waits.compiles_since * 1e9))
            span = {"ts": (begun - start) / 1e3, "dur": waits.compiled_for * 1e6}
            name = f"compiles {waits.compiles}"
            yield _event("X", name, process.index, track.device, cat="compilation", **span)


def _names(run: Run, history: History) -> Iterator[dict[str, Any]]:
    for process in run.processes:
        index = process.index
        yield _event("M", "process_name", index, 0, args={"name": label_of(process)})
        yield _event("M", "process_sort_index", index, 0, args={"sort_index": index})
    for track in history.tracks.values():
        name = {"name": f"device {track.device}"}
        yield _event("M", "thread_name", track.process, track.device, args=name)


def _event(phase: str, name: str, process: int, device: int, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "name": name, "pid": process, "tid": device, **more}


def _slices(
    calls: Calls, track: Track, entry: Entry, start: int, end: int
) -> Iterator[dict[str, Any]]:
    call = calls.of(track, entry)
    begun = track.time(entry.entered_ns)
    ended = track.time(entry.done_ns) if entry.done_ns else end
    arrived = track.time(entry.arrived_ns) if entry.arrived_ns else None
    details = {
        "where": place_in_program(call.sites, full=True),
        "state": State(entry.state).name.lower(),
        "collective of the group": entry.sequence + 1,
        "collective of the device": entry.number,
        "devices": list(call.members),
        "bytes": entry.bytes,
        "run_id": entry.run_id,
        "channel": entry.op_id,
    }

    def piece(name: str, since: int, until: int, **more: Any) -> dict[str, Any]:
        span = {"ts": (since - start) / 1e3, "dur": max(0, until - since) / 1e3}
        return _event("X", name, track.process, track.device, cat="collective", **span, **more)

    if entry.op == Op.PROGRAM:
        name = function(call.modules[0]) if len(call.modules) == 1 else LAUNCH
        yield piece(name, begun, ended, args=details)
        return
    yield piece(operation(entry), begun, ended, args=details)
    if arrived is not None:
        middle = min(max(arrived, begun), ended)
        yield piece(WAITING, begun, middle)
        yield piece(MOVING, middle, ended)
    elif entry.state != State.DONE:
        yield piece("waiting, not all have arrived", begun, ended)


def _arrows(history: History, start: int) -> Iterator[dict[str, Any]]:
    number = 0
    for place, there in history.meetings():
        if len(there) < len(history.devices(place.clique)):
            continue
        last, entry = max(there, key=lambda one: one[0].time(one[1].entered_ns))
        at = (last.time(entry.entered_ns) - start) / 1e3
        for track, other in there:
            if track is last or not other.done_ns:
                continue
            number += 1
            flow = {"cat": "slowest", "id": number}
            yield _event("s", "slowest", last.process, last.device, ts=at, **flow)
            until = (track.time(other.done_ns) - start) / 1e3
            ts = max((track.time(other.entered_ns) - start) / 1e3, min(at, until))
            yield _event("f", "slowest", track.process, track.device, ts=ts, bp="e", **flow)
