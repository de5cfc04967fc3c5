"""The first line of a diagnosis: which process did what, and which ones wait where. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from lockstep._jax_compat import texts
from lockstep._words import counted, processes, ranges
from lockstep.flight_recorder.calls import Call
from lockstep.flight_recorder.causes import Pattern, alone
from lockstep.flight_recorder.diagnose import BRIEF_SECONDS, Activity, Diagnosis, Kind, Row
from lockstep.flight_recorder.format import State
from lockstep.flight_recorder.phrases import (
    MAX_ARGUMENTS,
    called_from,
    described,
    devices,
    ending,
    in_barriers,
    label_of,
    only_these,
    ordinal,
)

_ENGINES = re.compile(texts.ENGINES)
BARRIER_DEADLOCK = "a deadlock: "
"""How the headline of a deadlock at a barrier begins, and no other one."""


def headline(diagnosis: Diagnosis) -> str:
    """One sentence: which process did what, and which ones wait where."""
    return _HEADLINES[diagnosis.kind](diagnosis)


def raised(row: Row) -> bool:
    """Whether the call ended in an exception."""
    return row.call is not None and row.call.entry.state == State.RAISED


def called(diagnosis: Diagnosis, row: Row) -> bool:
    return any(row.index in group for group in diagnosis.groups)


def count(diagnosis: Diagnosis, row: Row, words: str) -> str:
    """``words`` with the number of collectives that the process ran; empty: not known."""
    if row.ran is None:
        return ""
    what = counted(row.ran, diagnosis.unit)
    where = diagnosis.place is not None and diagnosis.several_cliques
    return words.format(what) + (f" on {devices(diagnosis.members)}" if where else "")


def what_was_called(diagnosis: Diagnosis, call: Call) -> str:
    """The call; with its lines of the program where these differ between the groups."""
    given = given_to(diagnosis, call)
    calls = [_by_index(diagnosis, group[0]).call for group in diagnosis.groups]
    # The processes may have the program in different folders.
    chains = [
        [(c.file.rpartition("/")[2], c.line, c.function, c.columns) for c in one.callers]
        for one in calls
        if one
    ]
    if len(chains) < 2 or not all(chains):
        return described(call) + given + _first_called(call, calls)
    # From the innermost line outwards to the first on which they differ.
    apart = (i for i, lines in enumerate(zip(*chains, strict=False)) if len(set(lines)) > 1)
    return f"{described(call)}{given}, {called_from(call.callers[: next(apart, 0) + 1])}"


def _first_called(call: Call, calls: Sequence[Call | None]) -> str:
    """``, first called at train.py:30``, where nothing else tells two calls apart."""
    known = [one for one in calls if one and one.first_line]
    if len({described(one) for one in known}) != 1 or len({c.first_line for c in known}) < 2:
        return ""
    return f", first called at {call.first_line}" if call.first_line else ""


def given_to(diagnosis: Diagnosis, call: Call) -> str:
    """``, given x: f32[100,8]``: the arguments in which the call differs from the others'."""
    names = [a.name for cause in diagnosis.causes for a in cause.arguments[:MAX_ARGUMENTS]]
    given = [text for text in call.arguments if text.rpartition(": ")[0] in names]
    return f", given {' and '.join(given)}" if given else ""


def _nothing(diagnosis: Diagnosis) -> str:
    activities = {row.activity for row in diagnosis.rows}
    many = counted(len(diagnosis.rows), "process")
    if failed := [row.index for row in diagnosis.rows if raised(row)]:
        errors = [row.process.error for row in diagnosis.rows if raised(row) and row.process.error]
        why = ", and the records do not show why"
        if errors:
            why = f": {_ENGINES.sub('', errors[0].summary)}"
        return f"{_had_ended(diagnosis)}collectives raised on {processes(failed)}{why}"
    if activities == {Activity.ENDED}:
        return f"nothing is wrong: {many} ended"
    if activities == {Activity.UNKNOWN}:
        return f"nothing is known: there is no record of {processes(range(len(diagnosis.rows)))}"
    if unknown := [row.index for row in diagnosis.rows if row.activity is Activity.UNKNOWN]:
        return f"there is no record of {processes(unknown)}; no other process waits in a collective"
    if Activity.WAITS in activities:
        return f"nothing is wrong: no wait in a collective is longer than {BRIEF_SECONDS:g} s"
    return f"nothing is wrong: none of {many} waits in a collective"


def _had_ended(diagnosis: Diagnosis) -> str:
    """``process 0 ended (exit code 0) after 1 program; ``, where launches of programs are recorded:
    it has ended while another one was inside of a program, in which each runs its own loop, say."""
    ended = [row for row in diagnosis.rows if row.activity is Activity.ENDED and not raised(row)]
    if diagnosis.unit != "program" or not ended:
        return ""
    if len(ended) > 1:
        return f"{processes([row.index for row in ended])} ended; "
    [row] = ended
    return f"{label_of(row.process)} {ending(row.process)}{count(diagnosis, row, ' after {}')}; "


def _by_index(diagnosis: Diagnosis, index: int) -> Row:
    return next(row for row in diagnosis.rows if row.index == index)


def _whom(diagnosis: Diagnosis, indices: Sequence[int]) -> str:
    """One process by its full name, several by their numbers."""
    if len(indices) == 1:
        return label_of(_by_index(diagnosis, indices[0]).process)
    return processes(indices)


def _where(diagnosis: Diagnosis) -> str:
    assert diagnosis.place is not None
    nth = ordinal(diagnosis.place.sequence + 1)
    return f"the {nth} {diagnosis.unit} on {devices(diagnosis.members)}"


def _diverged(diagnosis: Diagnosis) -> str:
    only = alone(diagnosis.causes) if len(diagnosis.groups) == 2 else ()
    if only in diagnosis.groups and only == diagnosis.culprits:
        [others] = [group for group in diagnosis.groups if group != only]
        return (
            f"only {_group(diagnosis, only)}, where {_group(diagnosis, others)}: as "
            f"{_where(diagnosis)} these must be the same"
        )
    groups = [_group(diagnosis, group) for group in diagnosis.groups[:3]]
    if len(diagnosis.groups) > 3:
        groups.append(f"and {len(diagnosis.groups) - 3} more kinds of calls")
    sizes = [len(group) for group in diagnosis.groups]
    majority = sizes[0] > sizes[1]
    if majority:
        groups = groups[1:] + groups[:1]
    middle = ", where " if majority and len(groups) == 2 else "; "
    text = f"{middle.join(groups)}: as {_where(diagnosis)} these must be the same"
    sided = [c for c in diagnosis.causes if c.pattern is Pattern.ONE_SIDED]
    return text + "".join(f"; {only_these(c)}" for c in sided)


def _group(diagnosis: Diagnosis, group: tuple[int, ...]) -> str:
    call = _by_index(diagnosis, group[0]).call
    what = what_was_called(diagnosis, call) if call else "something else"
    return f"{_whom(diagnosis, group)} called {what}"


def _permute(diagnosis: Diagnosis) -> str:
    if len(diagnosis.groups) < 2:
        return _circle(diagnosis)
    groups = "; ".join(_group(diagnosis, group) for group in diagnosis.groups[:3])
    return f"{groups}: the send does not match the receive, on {devices(diagnosis.members)}"


def _dead(diagnosis: Diagnosis) -> str:
    if len(diagnosis.culprits) == 1:
        row = _by_index(diagnosis, diagnosis.culprits[0])
        inside = row.activity is Activity.KILLED and row.in_call and row.call is not None
        if row.activity is Activity.KILLED:  # the reason comes last
            how = ending(row.process, count(diagnosis, row, " after {}"))
        else:
            comma = "," if row.activity is Activity.FAILED else ""
            how = ending(row.process) + count(diagnosis, row, comma + " after {}")
        subject = f"{label_of(row.process)} {how}"
        if inside and row.call:
            subject += f", inside {described(row.call)}"
        elif row.activity is Activity.KILLED and row.call and not waiters(diagnosis):
            subject += f"; its last call: {described(row.call)}"  # it has no error that has a line
    else:
        first = _by_index(diagnosis, diagnosis.culprits[0])
        subject = f"{processes(diagnosis.culprits)} {first.activity.value}"
        how = ending(first.process).removeprefix(f"{first.activity.value}: ")
        subject += f" (the first: {how})" if how != first.activity.value else ""
    return subject + _and_waiters(diagnosis)


def waiters(diagnosis: Diagnosis, without: Collection[int] = ()) -> str:
    """``process 0 waits in its 38th: all-reduce ...``; "" if none waits but those ``without``."""
    waiting = [
        row
        for row in diagnosis.rows
        if row.activity is Activity.WAITS and row.call and _is_at_place(diagnosis, row)
    ]
    waiting = [row for row in waiting if row.index not in without]
    if not waiting or diagnosis.place is None:
        return ""
    call = waiting[0].call
    assert call is not None
    nth = ordinal(diagnosis.place.sequence + 1)
    indices = [row.index for row in waiting]
    waits = "waits in its" if len(indices) == 1 else "wait in their"
    if all(raised(row) for row in waiting):
        waits = "waited in its" if len(indices) == 1 else "waited in their"
    where = f" on {devices(diagnosis.members)}" if diagnosis.several_cliques else ""
    return f"{processes(indices)} {waits} {nth}{where}: {described(call)}"


def _and_waiters(diagnosis: Diagnosis) -> str:
    text = waiters(diagnosis)
    return f"; {text}" if text else ""


def _is_at_place(diagnosis: Diagnosis, row: Row) -> bool:
    place, call = diagnosis.place, row.call
    if place is None or call is None or call.entry.is_permute is not (diagnosis.unit == "permute"):
        return False
    return (call.entry.clique, call.entry.sequence) == (place.clique, place.sequence)


def _circle(diagnosis: Diagnosis) -> str:
    around = diagnosis.circle
    parts = []
    for index, process in enumerate(around):
        call = _by_index(diagnosis, process).call
        ahead = around[(index + 1) % len(around)]
        where = f" on {devices(call.members)}" if call else ""
        what = f" in {described(call)}{where}" if call else ""
        parts.append(f"process {process} waits for process {ahead}{what}")
    if len(around) == 1:
        return (
            f"{label_of(_by_index(diagnosis, around[0]).process)}: its devices wait for each other"
        )
    cut = [*parts[:3], f"and {len(parts) - 3} more" if len(parts) > 3 else ""]
    reordered = any(c.pattern is Pattern.DEVICE_ORDER for c in diagnosis.causes)
    why = ": the same devices in another order" if reordered else ""
    return "a circle of waits: " + "; ".join(part for part in cut if part) + why


def _barrier(diagnosis: Diagnosis) -> str:
    """``a deadlock: process 0 waits in barrier('epoch') at train.py:49 for process 1; ...``."""
    waits = (Activity.WAITS, Activity.BARRIER)
    stuck = [row for row in diagnosis.rows if row.culprit or row.activity in waits]
    alike: dict[str, list[int]] = {}
    for row in sorted(stuck, key=lambda row: not row.barriers):
        if row.barriers:
            what = in_barriers(row.barriers)
        else:
            call = f" in {described(row.call)}" if row.call else ""
            what = f"for {processes(row.waits_for)}{call}"
        alike.setdefault(what, []).append(row.index)
    parts = [
        f"{_whom(diagnosis, group)} {'waits' if len(group) == 1 else 'wait'} {what}"
        for what, group in alike.items()
    ]
    cut = [*parts[:3], f"and {len(parts) - 3} more" if len(parts) > 3 else ""]
    return BARRIER_DEADLOCK + "; ".join(part for part in cut if part)


def _callback(diagnosis: Diagnosis) -> str:
    """``process 0 raised OSError: disk full, train.py:7 in log, in a callback ...``."""
    row = _by_index(diagnosis, diagnosis.culprits[0])
    more = len(diagnosis.culprits) - 1
    also = f" (so did {counted(more, 'process')} more)" if more else ""
    return (
        f"{label_of(row.process)} raised {row.process.waits.callback}, in a callback of a compiled "
        f"program{also}: this has ended the program on {_own_devices(row)}"
        f"{_and_waiters(diagnosis)}"
    )


def _own_devices(row: Row) -> str:
    """``its device 1``, ``its devices 1-2``."""
    numbers = row.own_absent
    return f"its device{'s' * (len(numbers) > 1)} {ranges(numbers)}"


def _late(diagnosis: Diagnosis) -> str:
    if not diagnosis.culprits:
        return "collectives are in flight; all processes have arrived"
    absent = _whom(diagnosis, diagnosis.culprits)
    has = "has" if len(diagnosis.culprits) == 1 else "have"
    first = _by_index(diagnosis, diagnosis.culprits[0])
    if len(diagnosis.culprits) == 1 and first.own_absent:  # other devices of it have arrived
        absent = f"{_own_devices(first).removeprefix('its ')} of {absent}"
        has = "has" if len(first.own_absent) == 1 else "have"
    rows = [row for row in diagnosis.rows if row.culprit and row.activity is Activity.BARRIER]
    inside = dict.fromkeys(in_barriers(row.barriers) for row in rows)
    where = f" (waits {'; '.join(inside)})" if rows and len(inside) <= MAX_ARGUMENTS else ""
    if len(diagnosis.culprits) == 1 and (compiles := first.process.waits.compilation):
        where += f" (it {compiles})"
    if len(diagnosis.culprits) == 1 and first.process.waits.thread:
        where += f" (its {first.process.waits.thread})"
    return f"{absent} {has} not arrived yet{where}" + _and_waiters(diagnosis)


_HEADLINES = {
    Kind.NOTHING: _nothing,
    Kind.CHANGED: lambda d: next(filter(None, (r.process.changed_traffic for r in d.rows))),
    Kind.PROGRAMS: lambda d: str(d.difference),
    Kind.MISMATCH: lambda d: _diverged(d) if len(d.groups) > 1 else _circle(d),
    Kind.ONE_SIDED: _diverged,
    Kind.PERMUTE: _permute,
    Kind.ENDED: _dead,
    Kind.FAILED: _dead,
    Kind.KILLED: _dead,
    Kind.CYCLE: _circle,
    Kind.BARRIER: _barrier,
    Kind.CALLBACK: _callback,
    Kind.WAITING: _late,
}
