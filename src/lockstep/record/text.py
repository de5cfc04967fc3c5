"""A diagnosis in words. Pure.

`short` is the text of the exception that every waiting process raises, `table` the same for a
screen. Both begin with a headline that says who did what; then a row a process, the culprits first;
then likely causes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lockstep._words import counted
from lockstep.record.calls import Round
from lockstep.record.causes import Pattern
from lockstep.record.format import State
from lockstep.record.match import Diagnosis, Doing, Kind, Row
from lockstep.record.words import (
    briefly,
    described,
    devices,
    ending,
    likely,
    ordinal,
    processes,
    who,
)

CULPRIT = "> "
"""What a row of a culprit begins with."""
MOST_ALIKE = 4
"""So many processes that do the same have a row each."""
_INDENT = "      "


def short(diagnosis: Diagnosis, limit: int = 1000) -> str:
    """The text of an exception, of at most ``limit`` bytes: rows that do not fit are counted."""
    head = headline(diagnosis)
    tail = [f"Likely: {cause}" for cause in causes(diagnosis)[:1]]
    rows = _ordered(diagnosis.rows)
    for recent in (3, 2, 1, 0):
        whole = [head, *(_row(diagnosis, row, recent) for row in rows), *tail]
        if _size(whole) <= limit:
            return "\n".join(whole)
    lines = [_row(diagnosis, row, 1 if row.culprit else 0) for row in rows]
    for shown in range(len(lines) - 1, -1, -1):
        rest = f"  and {counted(len(lines) - shown, 'process')} more"
        for end in (tail, []):
            whole = [head, *lines[:shown], rest, *end]
            if _size(whole) <= limit:
                return "\n".join(whole)
    return head.encode()[: limit - 3].decode(errors="ignore") + "..."


def _size(lines: Sequence[str]) -> int:
    return len("\n".join(lines).encode())


def table(diagnosis: Diagnosis) -> str:
    """Everything, for a screen: every process with its last calls, every likely cause.

    Many processes that do the same are one row, and the processes are listed below it.
    """
    lines = [headline(diagnosis), ""]
    for state, history, rows in _alike(diagnosis):
        many = len(rows) > MOST_ALIKE
        name = f"{len(rows)} processes" if many else "{}"
        lead = CULPRIT if rows[0].culprit else " " * len(CULPRIT)
        block = [f"{lead}{name}: {state}", *(f"{_INDENT}{line}" for line in history)]
        if many:
            lines += [*block, *(f"{_INDENT}{who(row.process)}" for row in rows)]
        else:
            lines += [line for row in rows for line in _with_name(block, who(row.process))]
    if diagnosis.causes:
        lines += ["", "Likely causes:", *(f"  - {cause}" for cause in causes(diagnosis))]
    return "\n".join(lines)


def _with_name(block: Sequence[str], name: str) -> list[str]:
    return [block[0].replace("{}", name, 1), *block[1:]]


def _alike(diagnosis: Diagnosis) -> list[tuple[str, tuple[str, ...], list[Row]]]:
    """The rows, those together that read the same; the culprits first."""
    found: dict[tuple, list[Row]] = {}
    for row in _ordered(diagnosis.rows):
        notes = (f"note: {trouble}" for trouble in row.process.troubles)
        key = (row.culprit, _state(diagnosis, row), (*_history(diagnosis, row), *notes))
        found.setdefault(key, []).append(row)
    return [(state, history, rows) for (_, state, history), rows in found.items()]


def causes(diagnosis: Diagnosis) -> list[str]:
    """What to look for, the likeliest first."""
    return [f"{likely(cause)}." for cause in diagnosis.causes]


def _history(diagnosis: Diagnosis, row: Row) -> Iterable[str]:
    rounds, lead = _before(diagnosis, row)
    for round_ in rounds:
        times = f"{round_.times} x " if round_.times > 1 else ""
        for index, call in enumerate(round_.calls):
            again = times if index == 0 else " " * len(times)
            yield f"{lead:10}{again}{described(call, full=True)}"
            lead = ""


# --- Rows ----------------------------------------------------------------------------------------

_SAYS_CALL = (Doing.WAITS, Doing.MOVES, Doing.RAISED)


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (not row.culprit, row.index))


def _row(diagnosis: Diagnosis, row: Row, recent: int) -> str:
    text = f"  {who(row.process)}: {_state(diagnosis, row)}"
    rounds, lead = _before(diagnosis, row)
    if rounds and recent:
        text += f"; {lead} {', '.join(briefly(round_) for round_ in rounds[-recent:])}"
    return text


def _before(diagnosis: Diagnosis, row: Row) -> tuple[tuple[Round, ...], str]:
    """The calls that a row tells apart from the one in its state, and what to call them."""
    if row.call is None or _names_call(diagnosis, row):
        return row.recent, "before:"
    return row.latest, "its last:"


def _names_call(diagnosis: Diagnosis, row: Row) -> bool:
    return row.call is not None and (row.doing in _SAYS_CALL or _called(diagnosis, row))


def _raised(row: Row) -> bool:
    """Whether the call ended in an exception."""
    return row.call is not None and row.call.entry.state == State.RAISED


def _called(diagnosis: Diagnosis, row: Row) -> bool:
    return any(row.index in group for group in diagnosis.groups)


def _state(diagnosis: Diagnosis, row: Row) -> str:
    call = described(row.call) if row.call else ""
    if _called(diagnosis, row) and call:
        return f"called {call}"
    if row.doing is Doing.WAITS:
        verb = "waited" if _raised(row) else "waits"
        return f"{verb} for {processes(row.waits_for)} in {call}" if row.waits_for else f"in {call}"
    if row.doing is Doing.MOVES:
        return f"in {call}; all members have come"
    if row.doing is Doing.RAISED:
        return f"raised in {call}"
    if row.doing is Doing.BUSY:
        return "in no collective" + _count(diagnosis, row, "; it ran {}")
    if row.doing is Doing.UNKNOWN:
        return "not known; " + "; ".join(row.process.troubles or ("no record",))
    return ending(row.process, _count(diagnosis, row, " after {}"))


def _count(diagnosis: Diagnosis, row: Row, words: str) -> str:
    if row.ran is None:
        return ""
    what = counted(row.ran, "permute" if diagnosis.is_permute else "collective")
    where = diagnosis.place is not None and diagnosis.several_cliques
    return words.format(what) + (f" on {devices(diagnosis.members)}" if where else "")


# --- Headlines -----------------------------------------------------------------------------------


def headline(diagnosis: Diagnosis) -> str:
    """One sentence: who did what, and who waits where."""
    return _HEADLINES[diagnosis.kind](diagnosis)


def _nothing(diagnosis: Diagnosis) -> str:
    doings = {row.doing for row in diagnosis.rows}
    many = counted(len(diagnosis.rows), "process")
    if doings == {Doing.ENDED}:
        return f"nothing is wrong: {many} ended"
    return f"nothing is wrong: none of {many} waits in a collective"


def _by_index(diagnosis: Diagnosis, index: int) -> Row:
    return next(row for row in diagnosis.rows if row.index == index)


def _whom(diagnosis: Diagnosis, indices: Sequence[int]) -> str:
    """One process by its full name, several by their numbers."""
    if len(indices) == 1:
        return who(_by_index(diagnosis, indices[0]).process)
    return processes(indices)


def _where(diagnosis: Diagnosis) -> str:
    assert diagnosis.place is not None
    what = "permute" if diagnosis.is_permute else "collective"
    return f"the {ordinal(diagnosis.place.sequence + 1)} {what} on {devices(diagnosis.members)}"


def _parted(diagnosis: Diagnosis) -> str:
    groups = [_group(diagnosis, group) for group in diagnosis.groups[:3]]
    if len(diagnosis.groups) > 3:
        groups.append(f"and {len(diagnosis.groups) - 3} more kinds of calls")
    sizes = [len(group) for group in diagnosis.groups]
    majority = sizes[0] > sizes[1]
    if majority:
        groups = groups[1:] + groups[:1]
    middle = ", where " if majority and len(groups) == 2 else "; "
    text = f"{middle.join(groups)}: as {_where(diagnosis)} these must be the same"
    only = [c for c in diagnosis.causes if c.pattern is Pattern.ONE_SIDED]
    return text + "".join(f"; {likely(c)}" for c in only[:1])


def _group(diagnosis: Diagnosis, group: tuple[int, ...]) -> str:
    call = _by_index(diagnosis, group[0]).call
    return f"{_whom(diagnosis, group)} called {described(call) if call else 'something else'}"


def _permute(diagnosis: Diagnosis) -> str:
    if len(diagnosis.groups) < 2:
        return _circle(diagnosis)
    groups = "; ".join(_group(diagnosis, group) for group in diagnosis.groups[:3])
    return (
        f"{groups}: what one sends is not what the other expects, on {devices(diagnosis.members)}"
    )


def _dead(diagnosis: Diagnosis) -> str:
    if len(diagnosis.culprits) == 1:
        row = _by_index(diagnosis, diagnosis.culprits[0])
        inside = row.doing is Doing.KILLED and row.in_call and row.call is not None
        comma = "," if row.doing is Doing.FAILED else ""
        how = ending(row.process) + _count(diagnosis, row, comma + " after {}")
        subject = f"{who(row.process)} {how}"
        if inside and row.call:
            subject += f", inside {described(row.call)}"
    else:
        first = _by_index(diagnosis, diagnosis.culprits[0])
        subject = f"{processes(diagnosis.culprits)} {first.doing.value}"
        subject += f" (the first: {ending(first.process)})"
    return subject + _waiters(diagnosis)


def _waiters(diagnosis: Diagnosis) -> str:
    """``; process 0 waits in its 38th: all-reduce ...``."""
    waiting = [
        row
        for row in diagnosis.rows
        if row.doing is Doing.WAITS and row.call and _is_at_place(diagnosis, row)
    ]
    if not waiting or diagnosis.place is None:
        return ""
    call = waiting[0].call
    assert call is not None
    nth = ordinal(diagnosis.place.sequence + 1)
    indices = [row.index for row in waiting]
    waits = "waits in its" if len(indices) == 1 else "wait in their"
    if all(_raised(row) for row in waiting):
        waits = "waited in its" if len(indices) == 1 else "waited in their"
    where = f" on {devices(diagnosis.members)}" if diagnosis.several_cliques else ""
    return f"; {processes(indices)} {waits} {nth}{where}: {described(call)}"


def _is_at_place(diagnosis: Diagnosis, row: Row) -> bool:
    place, call = diagnosis.place, row.call
    if place is None or call is None or call.entry.is_permute is not diagnosis.is_permute:
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
        return f"{who(_by_index(diagnosis, around[0]).process)}: its devices wait for each other"
    cut = [*parts[:3], f"and {len(parts) - 3} more" if len(parts) > 3 else ""]
    return "a circle of waits: " + "; ".join(part for part in cut if part)


def _late(diagnosis: Diagnosis) -> str:
    if not diagnosis.culprits:
        return "collectives are under way; all processes have come to them"
    absent = _whom(diagnosis, diagnosis.culprits)
    has = "has" if len(diagnosis.culprits) == 1 else "have"
    return f"{absent} {has} not come to the others yet" + _waiters(diagnosis)


_HEADLINES = {
    Kind.NOTHING: _nothing,
    Kind.MISMATCH: lambda d: _parted(d) if len(d.groups) > 1 else _circle(d),
    Kind.ONE_SIDED: _parted,
    Kind.PERMUTE: _permute,
    Kind.ENDED: _dead,
    Kind.FAILED: _dead,
    Kind.KILLED: _dead,
    Kind.CYCLE: _circle,
    Kind.WAITING: _late,
}
