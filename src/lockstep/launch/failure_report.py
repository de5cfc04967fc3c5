"""The launcher's report of a job that failed: the first failure, then its consequences. Pure.

Each process has printed its traceback at once, because the job may take long to end after an error,
and the launcher may be killed until then. What is still in view is not repeated here.
"""

from __future__ import annotations

import re
import signal
import textwrap
from collections.abc import Sequence

from lockstep import _words
from lockstep._jax_compat.texts import OF_THE_ENGINE, is_of_collective
from lockstep._run_files import AGENT_LOST, ErrorRecord
from lockstep.processes import tracebacks
from lockstep.processes.first_failure import (
    NOTICED_SECONDS,
    OURS,
    EndedProcess,
    alike,
    is_engines,
    manner,
)

MAX_CONSEQUENCES = 8
MAX_LETTERS = 200
"""Maximal length of a consequence, and of an error of the program in the last line, since the first
failure is shown in full."""

_UNREACHABLE = re.compile(
    r"process (?P<own>\d+) \(pid \d+ on \S+\) cannot reach host \S+ \(process(es)? (?P<other>\d+)"
)
"""What `watchdog.silent_hosts` says of one lost host."""
_DEADLINE = re.compile(r"failed first: .*? on \d+ devices.*? (waited \S+ s)\. Not arrived: .*")
"""The engine's error for a collective that has waited for --collective-timeout."""
_HAS_LINE = re.compile(r"\.py:\d")
_NAMED = re.compile(r"\bprocess (\d+)|\bprocesses (\d+(?:(?:-|, )\d+)*)")
_EXIT = re.compile(r"sys\.exit\(\d+\)$")
_WAITS = re.compile(r"\bwait(?:s|ed)?(?= (?:in|for)\b)")
_AGAIN = (
    "This process had raised the error before, and caught it or raised it in another thread. Here "
    "it was raised again:"
)

_NO_MEMORY = (
    "The kernel killed it because memory ran out: that of the machine, or the limit of the "
    "container or the batch job. Use fewer processes, smaller arrays, or more memory."
)
_NO_THREAD = (
    "It could make no more threads: raise the limit (ulimit -u, or that of the container or the "
    "batch job, pids.max; ulimit -v, which their stacks need too), or use fewer processes."
)
_LOST = "The agent of a lost host ends its processes, and itself."
_CAUSES: dict[int, str] = {
    signal.SIGKILL: "Likely a kill -9, or the kernel ran out of memory (see dmesg, and the memory "
    "limit of the container or of the batch job).",
    signal.SIGSEGV: "Native code accessed memory that it does not own.",
    signal.SIGBUS: "Mapped memory could not be provided: is /dev/shm or the disk full?",
    signal.SIGABRT: "Native code aborted; the reason is on stderr.",
    signal.SIGILL: "The program uses instructions that this processor does not have.",
    signal.SIGXCPU: "The limit on processor time was reached (ulimit -t).",
}


def _cause(ending: EndedProcess) -> str | None:
    if ending.out_of_memory:
        return _NO_MEMORY
    if ending.was_lost:
        return None if (ending.exit.reason or "").startswith(AGENT_LOST) else _LOST
    if any("pthread_create" in line for line in ending.last_words):
        return _NO_THREAD
    return _CAUSES.get(ending.exit.signal or 0)


def _indented(text: str) -> str:
    return textwrap.indent(text.rstrip("\n"), "    ", lambda _: True)


def told_already(table: str, first: EndedProcess) -> bool:
    """Whether the first failure's own text has the headline of ``table`` already."""
    if first.record is None:
        return False
    return _timeless(table.splitlines()[0]) in _timeless(first.record.traceback)


def explains(table: str, first: EndedProcess) -> bool:
    """Whether ``table`` has the cause of the first failure, which is that of a library: gloo's
    error says that a connection has ended, and not why."""
    if not table or first.record is None or is_engines(first.record):
        return False
    message = first.record.summary.partition(": ")[2]
    return is_of_collective(message) and not told_already(table, first)


def is_consequence(first: EndedProcess) -> bool:
    """Whether the first failure may have a cause of which it says nothing: a program that has
    caught the error of a collective chooses its exit code, or raises another error from it, and
    gloo aborts a process."""
    if first.record is None:
        return first.exit.signal == signal.SIGABRT
    is_raised_from_it = OF_THE_ENGINE in first.record.traceback and not is_engines(first.record)
    return is_raised_from_it or first.record.summary.startswith("sys.exit(")


def _timeless(text: str) -> str:
    """The records may be newer than the error: waits are over by now, and exit codes are known."""
    return _WAITS.sub("waits", text.replace(" (exit code 0)", ""))


def _told(record: ErrorRecord, full: bool, on_screen: str, table: str) -> list[str]:
    """The lines below the headline, which has the first line of an engine's error already.

    ``table`` has the rows that an engine's error has no room for.
    A traceback that is ``on_screen`` is not repeated. The processes print theirs at once, because
    the job may take long to end after an error, and the launcher may be killed until then.
    """
    text = tracebacks.folded(record.traceback, full).rstrip("\n")
    if not text:
        return []
    if full or (found := tracebacks.parts(text)) is None:
        return [] if f"\n{text}\n" in on_screen else text.split("\n")
    stack, message = found
    ours = OURS.match(record.summary)
    again = [_AGAIN] if ours and ours["again"] else []
    # A program that had ended has no line of its own.
    is_bare = len(stack.splitlines()) < 2
    shown = is_bare or (f"\n{stack}" in on_screen and not again)
    lines = (table if _words.is_cut(message) and table else message).rstrip().split("\n")[1:]
    return [*lines, *([] if shown else [*again, stack.rstrip()])]


def _on(ending: EndedProcess) -> str:
    return f" on {ending.host}" if ending.host else ""


def headline(
    first: EndedProcess,
    endings: Sequence[EndedProcess],
    stopping_at: float,
    processes: int | None = None,
    full: bool = False,
    table: str = "",
    differences: str = "",
    found: str = "",
) -> list[str]:
    """The report of a job that failed: paragraphs, the first failure on top.

    ``processes`` is the job's number of processes, if not all of them have been started. A signal
    that ended a process after ``stopping_at`` was sent by the launcher. ``full`` keeps the frames
    of libraries in tracebacks. ``table`` is the report from the records, if the first failure's own
    text has its headline. ``differences`` are those of the processes' settings, of which process 0
    has printed a table at the start. ``found`` is the report from the records, where the first
    failure is only a consequence of what that says.
    """
    same = [] if found else alike(first, endings)
    count = processes or len(endings)
    own = _first(first, same, count) + _who_had_left(first, endings)
    own += _between_reached_hosts(first, endings)
    report = [_placed(found, first) or own + _details(first, endings, full, table)]
    if differences and (found or first.record is not None):
        report[0] += f"\n    Likely: the processes differ in {differences}: see the table above."
    numbers = {e.process_id for e in same}
    later = [
        e
        for e in sorted(endings, key=lambda e: e.failed_at)
        if e.process_id not in numbers
        and e.failed
        and (e.record is not None or e.ended_at <= stopping_at or e.died_by_itself)
    ]
    manners = _words.grouped(
        (textwrap.shorten(manner(e), MAX_LETTERS) if found else _how(e, first), e) for e in later
    )
    shown = list(manners.items())[:MAX_CONSEQUENCES]
    report += [_later(how, group, first) for how, group in shown]
    if more := len(later) - sum(len(group) for _, group in shown):
        report.append(f"{more} more failed later")
    return report


def last_line(
    first: EndedProcess,
    endings: Sequence[EndedProcess],
    count: int,
    found: str,
    differences: str = "",
    table: str = "",
) -> str:
    """The headline once more, on one line: people look at the last line of a run first.

    ``table`` is the report from the records, which knows where a process was that has no error.
    """
    text = _headline_alone(first, endings, count, found)
    text = text if _HAS_LINE.search(text) else _with_place_of(table, text, first)
    if differences and (found or first.record is not None):
        text += f". Likely: the processes differ in {differences}"
    return text


def _headline_alone(
    first: EndedProcess, endings: Sequence[EndedProcess], count: int, found: str
) -> str:
    if found:
        return _placed(found, first).partition("\n")[0]
    most = None if is_engines(first.record) else MAX_LETTERS
    text = _first(first, alike(first, endings), count, most) + _who_had_left(first, endings)
    if _HAS_LINE.search(text) or not (second := _second_line(first)):
        return text
    # `second` names the processes that have not arrived.
    return second + _DEADLINE.sub(rf"failed: it \1{_code(first)}", text)


def _with_place_of(table: str, text: str, first: EndedProcess) -> str:
    """``text`` with what the headline of the records says after how the first process ended."""
    how = manner(first)
    subject, found, rest = table.partition("\n")[0].partition(how)
    is_of_first = found and subject.startswith(f"process {first.process_id} (")
    return text.replace(how, how + rest, 1) if is_of_first else text


def _second_line(first: EndedProcess) -> str:
    """The next line of an engine's error, which has the line of the program, and begins with the
    process that the others wait for: of a deadline, say."""
    found = tracebacks.parts(first.record.traceback) if first.record else None
    rest = found[1].split("\n")[1:2] if found else []
    return "".join(f"{line.strip()}; " for line in rest if _HAS_LINE.search(line))


def _first(
    first: EndedProcess, same: Sequence[EndedProcess], count: int, most: int | None = None
) -> str:
    """``process 1 of 2 failed first: ValueError: no data (exit code 1), train.py:14 in step``.

    An error of the engine that is about another process begins with that one.
    ``most``: how many letters there are for the error; the line of the program follows them.
    """
    failed = f"{_words.processes(sorted(e.process_id for e in same))} of {count}"
    failed += _on(first) if len(same) == 1 else ""
    failed += " failed" if 1 < len(same) == count else " failed first"
    how = manner(first)
    if is_engines(first.record) and _is_of_another(how, first.process_id):
        text = how.removesuffix(_code(first)).rstrip(".")
        return f"{text}; so {failed.removesuffix(' first')}{_code(first)}"
    how = re.sub(rf"^process {first.process_id} \([^()]*\): ", "", how)
    text = f"{failed}: {textwrap.shorten(how, most, placeholder=' ...') if most else how}"
    if first.record is None:
        cause = _cause(first)
        place = tracebacks.place_of_crash(first.last_words)
        text += f", {place}" if place else ""
        stop = "" if text.endswith(("?", ".")) else "."
        return text + (f"{stop} {cause}" if cause else "")
    place = "" if is_engines(first.record) else tracebacks.place(first.record.traceback)
    text += f", {place}" if place else ""
    said = textwrap.shorten(_said_last(first), MAX_LETTERS, placeholder=" ...")
    return text + (f', after "{said}" on stderr' if said else "")


def _is_of_another(how: str, process: int) -> bool:
    """Whether an error of the engine names other processes before ``process``."""
    named = _NAMED.search(how)
    return named is not None and not _words.in_ranges(named[1] or named[2], process)


def _code(first: EndedProcess) -> str:
    return f" (exit code {first.status})"


def _said_last(first: EndedProcess) -> str:
    """What a process wrote to stderr before it called sys.exit() with a number: most likely why."""
    is_number = first.record and _EXIT.match(first.record.summary)
    return next(filter(None, map(str.strip, reversed(first.last_words))), "") if is_number else ""


def _placed(found: str, first: EndedProcess) -> str:
    """``found``, with the line of ``first`` in its headline: a launch that failed may have none."""
    place = tracebacks.place(first.record.traceback) if first.record else ""
    head, *rows = found.split("\n")
    if not found or not place or place.partition(" in ")[0] in head:
        return found
    return "\n".join([f"{head}; process {first.process_id} was at {place}", *rows])


def _who_had_left(first: EndedProcess, endings: Sequence[EndedProcess]) -> str:
    """Which process had ended well, where gloo or MPI says only that a connection is closed."""
    if first.record is None or is_engines(first.record):
        return ""
    gone = [e for e in endings if not e.failed and e.ended_at <= first.failed_at + NOTICED_SECONDS]
    if not gone or not is_of_collective(first.record.summary.partition(": ")[2]):
        return ""
    left = min(gone, key=lambda e: e.ended_at)
    return f". Process {left.process_id} had ended by then (exit code 0), and takes part no more"


def _between_reached_hosts(first: EndedProcess, endings: Sequence[EndedProcess]) -> str:
    """A sentence where a host cannot reach another, and the launcher reaches both.

    The process asks whether the other machine is up, which it cannot know. The launcher notices a
    lost host first: its limit is shorter.
    """
    match = _UNREACHABLE.search(first.record.summary) if first.record else None
    ends = {each.process_id: each for each in endings}
    pair = [ends.get(int(match[name])) for name in ("own", "other")] if match else []
    hosts = [each.host for each in pair if each and each.host and not each.was_lost]
    if len(hosts) < 2:
        return ""
    return (
        f". The launcher reaches {hosts[0]} and {hosts[1]}, so what is cut is the network between "
        "these two, in one direction or both: by a firewall or a route. lockstep doctor --hosts "
        "shows which hosts reach each other"
    )


def _details(first: EndedProcess, endings: Sequence[EndedProcess], full: bool, table: str) -> str:
    """What follows the headline of the first failure."""
    if first.record is None:
        words = "\n".join(first.last_words)
        return f"\nIts last lines on stderr:\n{_indented(words)}" if words else ""
    on_screen = "".join("\n".join(["", *e.on_screen, ""]) for e in endings)
    if told := _told(first.record, full, on_screen, table):
        return "\n" + _indented("\n".join(told))
    is_above = first.record.traceback and not is_engines(first.record)
    return " (traceback above)" if is_above else ""


def _how(ending: EndedProcess, first: EndedProcess) -> str:
    """How a process failed after ``first``, without what is told of that already."""
    how = manner(ending)
    if how == manner(first) and (ending.record is not None or ending.was_lost):
        return "the same"
    if is_engines(ending.record) and not is_engines(first.record):
        name = f"process {first.process_id}"
        if re.match(rf"{name} (\(.*?\) )?(failed|was killed|ended|raised)\b", how):
            return f"{name} had failed"
    return textwrap.shorten(how, MAX_LETTERS, placeholder=" ...")


def _later(how: str, group: Sequence[EndedProcess], first: EndedProcess) -> str:
    """``processes 0, 2-7 failed 0.1 to 0.4 s later: process 1 had failed``."""
    numbers = sorted(e.process_id for e in group)
    places = {_on(e) for e in group}
    on = places.pop() if len(places) == 1 else ""
    seconds = [f"{max(0.0, e.failed_at - first.failed_at):.1f}" for e in (group[0], group[-1])]
    after = " to ".join(dict.fromkeys(seconds))
    return f"{_words.processes(numbers)}{on} failed {after} s later: {how}"
