"""A diagnosis as text. Pure.

`short` is the text of the exception that every waiting process raises; `table` is the whole report
for a screen. Both have a headline, then one row for each process with the culprits first, then the
likely causes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from lockstep._words import counted, left_out, processes, ranges
from lockstep.flight_recorder.calls import Round
from lockstep.flight_recorder.diagnose import Activity, Diagnosis, Kind, Row
from lockstep.flight_recorder.diagnosis_headline import (
    called,
    count,
    headline,
    raised,
    waiters,
    what_was_called,
)
from lockstep.flight_recorder.phrases import (
    briefly,
    described,
    ending,
    in_barriers,
    label_of,
    likely,
)

CULPRIT = "> "
"""The prefix of a culprit's row."""
MAX_ALIKE = 4
"""Up to this many processes that do the same have a row each; more share one."""
MAX_NAMED = 20
"""Up to so many of these are listed one below the other; more are listed by their numbers."""
MAX_STATES = 16
"""So many different states of processes are shown on a screen."""
_INDENT = "      "


def short(diagnosis: Diagnosis, limit: int = 1000) -> str:
    """The text of an exception, at most ``limit`` bytes. Rows that do not fit are counted
    (`_words.is_cut`); `table` has them."""
    head = headline(diagnosis)
    tail = [f"Likely: {cause}" for cause in causes(diagnosis)[:1]]
    rows = _ordered(diagnosis.rows)
    for recent in (3, 2, 1, 0):
        whole = [head, *(_row(diagnosis, row, recent) for row in rows), *tail]
        if _size(whole) <= limit:
            return "\n".join(whole)
    lines = [_row(diagnosis, row, 1 if row.culprit else 0) for row in rows]
    for shown in range(len(lines) - 1, -1, -1):
        rest = left_out(len(lines) - shown)
        for end in (tail, []):
            whole = [head, *lines[:shown], rest, *end]
            if _size(whole) <= limit:
                return "\n".join(whole)
    return head.encode()[: max(0, limit - 3)].decode(errors="ignore") + "..."


def _size(lines: Sequence[str]) -> int:
    return len("\n".join(lines).encode())


def news(diagnosis: Diagnosis, failed: Collection[int], told: Collection[int]) -> str:
    """What the diagnosis says to a reader who knows that the processes ``failed`` have failed, and
    the errors of those ``told``.

    One line if it is only where others waited for these, and "" if it is nothing.
    """
    if diagnosis.kind is not Kind.FAILED or not {*diagnosis.culprits} <= {*failed}:
        return table(diagnosis)
    rows = [row for row in diagnosis.rows if row.index not in told]
    at_barriers = any(row.activity is Activity.BARRIER for row in rows)
    waits_for = {process for row in rows for process in row.waits_for}
    if at_barriers or waits_for - {*failed} or any(r.activity is Activity.UNKNOWN for r in rows):
        return table(diagnosis)
    return waiters(diagnosis, told)


def table(diagnosis: Diagnosis) -> str:
    """Everything, for a screen: every process with its last calls, every likely cause.

    Many processes that do the same are one row, and the processes are listed below it. Of a job in
    which each of many processes does something else, the first ones are shown.
    """
    lines = [headline(diagnosis), ""]
    groups = _alike(diagnosis)
    for state, history, rows in groups[:MAX_STATES]:
        many = len(rows) > MAX_ALIKE
        name = f"{len(rows)} processes" if many else "{}"
        lead = CULPRIT if rows[0].culprit else " " * len(CULPRIT)
        block = [f"{lead}{name}: {state}", *(f"{_INDENT}{line}" for line in history)]
        if many:
            lines += [*block, *(f"{_INDENT}{name}" for name in _names(rows))]
        else:
            for row in rows:
                lines += [block[0].replace("{}", label_of(row.process), 1), *block[1:]]
    if rest := sum(len(rows) for _, _, rows in groups[MAX_STATES:]):
        lines.append(left_out(rest))
    if diagnosis.causes:
        lines += ["", "Likely causes:", *(f"  - {cause}" for cause in causes(diagnosis))]
    return "\n".join(lines)


def _names(rows: Sequence[Row]) -> list[str]:
    """The processes of one row of the table."""
    if len(rows) <= MAX_NAMED:
        return [label_of(row.process) for row in rows]
    hosts = {row.process.record.host for row in rows if row.process.record}
    on = f" on {counted(len(hosts), 'host')}" if hosts else ""
    return [processes(sorted(row.index for row in rows)) + on]


def _alike(diagnosis: Diagnosis) -> list[tuple[str, tuple[str, ...], list[Row]]]:
    """The rows, grouped by equal text; the culprits first."""
    found: dict[tuple, list[Row]] = {}
    for row in _ordered(diagnosis.rows):
        problems = row.process.problems if row.process.record else ()  # else its state has them
        notes = (f"note: {problem}" for problem in problems)
        key = (row.culprit, _state(diagnosis, row), (*_history(diagnosis, row), *notes))
        found.setdefault(key, []).append(row)
    return [(state, history, rows) for (_, state, history), rows in found.items()]


def causes(diagnosis: Diagnosis) -> list[str]:
    """The likely causes as sentences, the likeliest first."""
    return [f"{likely(cause)}." for cause in diagnosis.causes]


def _history(diagnosis: Diagnosis, row: Row) -> Iterable[str]:
    rounds, lead = _before(diagnosis, row)
    width = max(10, len(lead) + 1)
    for round_ in rounds:
        times = f"{round_.times} x " if round_.times > 1 else ""
        for index, call in enumerate(round_.calls):
            again = times if index == 0 else " " * len(times)
            yield f"{lead:{width}}{again}{described(call, full=True)}"
            lead = ""


# --- Rows ----------------------------------------------------------------------------------------

_ENDINGS = (Activity.ENDED, Activity.FAILED, Activity.KILLED)
_SHOWS_CALL = (Activity.WAITS, Activity.MOVES, Activity.RAISED)


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (not row.culprit, row.index))


def _row(diagnosis: Diagnosis, row: Row, recent: int) -> str:
    text = f"  {label_of(row.process)}: {_state(diagnosis, row)}"
    rounds, lead = _before(diagnosis, row, recent)
    if rounds and recent:
        text += f"; {lead} {briefly(rounds)}"
    return text


def _before(diagnosis: Diagnosis, row: Row, most: int = 0) -> tuple[tuple[Round, ...], str]:
    """The calls to show beside the one in the row's state, and the words in front of them.

    At most the last ``most`` rounds; 0: all.
    """
    if row.call is None or _names_call(diagnosis, row) or _ended_inside(row):
        return row.recent[-most:], "before:"
    rounds = row.latest[-most:]
    number = sum(len(round_.calls) * round_.times for round_ in rounds)
    return rounds, "its last call:" if number == 1 else "its last calls:"


def _ended_inside(row: Row) -> bool:
    """Whether the process ended inside its last call, which therefore did not complete."""
    return row.activity in _ENDINGS and row.call is not None and row.call.entry.unfinished


def _names_call(diagnosis: Diagnosis, row: Row) -> bool:
    return row.call is not None and (row.activity in _SHOWS_CALL or called(diagnosis, row))


def _state(diagnosis: Diagnosis, row: Row) -> str:
    call = described(row.call) if row.call else ""
    is_stuck = diagnosis.kind is Kind.BARRIER and row.culprit
    if row.barriers and (is_stuck or row.activity is Activity.BARRIER):
        return f"waits {in_barriers(row.barriers)}" + count(diagnosis, row, "; it ran {}")
    if called(diagnosis, row) and row.call:
        return f"called {what_was_called(diagnosis, row.call)}"
    if row.activity is Activity.WAITS:
        verb = "waited" if raised(row) else "waits"
        own = f"its own device{'s' * (len(row.own_absent) > 1)} {ranges(row.own_absent)}"
        whom = [processes(row.waits_for)] if row.waits_for else []
        whom += [own] if row.own_absent else []
        return f"{verb} for {' and '.join(whom)} in {call}" if whom else f"in {call}"
    if row.activity is Activity.MOVES:
        return f"in {call}; all members have arrived"
    if row.activity is Activity.RAISED:
        return f"raised in {call}"
    if row.activity is Activity.BUSY:
        what = row.process.waits.compilation or f"in no {diagnosis.unit}"
        return what + count(diagnosis, row, "; it ran {}")
    if row.activity is Activity.UNKNOWN:
        return "unknown: " + "; ".join(row.process.problems or ("no record",))
    how = ending(row.process, count(diagnosis, row, " after {}"))
    return f"{how}, inside {call}" if _ended_inside(row) else how
