"""The likely causes of a fault. Pure.

A cause is a pattern and the processes that show it; its text is made in
`lockstep.flight_recorder.phrases`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.flight_recorder import program_difference
from lockstep.flight_recorder.argument_shapes import Differing, differing
from lockstep.flight_recorder.calls import Call, Calls
from lockstep.flight_recorder.format import Entry
from lockstep.flight_recorder.mismatch import Called
from lockstep.flight_recorder.run_records import Process
from lockstep.flight_recorder.timeline import History, Track
from lockstep.flight_recorder.wait_graph import Wait

_LATEST = 64
"""This many of a process's latest calls are searched for several threads."""
_NUMBERED = re.compile(r"Thread-\d")


class Pattern(enum.Enum):
    SHAPES = "different shapes"
    DTYPES = "different dtypes"
    SHORTER_LOOP = "a shorter loop"
    OPPOSITE_ORDER = "opposite order"
    THREADS = "several threads"
    BRANCH = "a branch that only some processes take"
    ONE_SIDED = "a program on one side only"
    TWO_SIDED = "a program on either side only"
    RETRACED = "one function compiled differently"
    BRANCH_INSIDE = "a branch inside one program"
    EXECUTIONS = "one execution more or less"
    OTHER_PLACE = "one call from different places"
    PERMUTATION = "different permutations"
    CROSSING = "two cliques in opposite order"
    DEVICE_ORDER = "the same devices in another order"
    TRACED_VALUE = "a value that was read while tracing"
    TRACED_BRANCH = "a branch while tracing"
    OTHER_SHARDING = "another sharding"
    OTHER_FLAGS = "other flags of XLA"
    BARRIER = "a barrier that only some processes come to"
    MEMORY = "out of memory"
    SIGKILL = "SIGKILL"
    HARD_EXIT = "an end without the end of Python"


@dataclass(frozen=True, slots=True)
class Cause:
    pattern: Pattern
    processes: tuple[int, ...] = ()
    """Those that the pattern names: the ones that left the loop, or that have the program."""
    what: tuple[str, ...] = ()
    """The functions that the pattern names."""
    arguments: tuple[Differing, ...] = ()
    """The arguments that differ between the two ``processes``."""
    threads: tuple[str, ...] = ()
    """The threads that called the functions, in the order of ``what``."""


BARRIER = (Cause(Pattern.BARRIER),)
OF_PROGRAMS = {
    program_difference.CONSTANT: Pattern.TRACED_VALUE,
    program_difference.MESH: Pattern.DEVICE_ORDER,
    program_difference.FLAGS: Pattern.OTHER_FLAGS,
    program_difference.OPERATIONS: Pattern.TRACED_BRANCH,
    program_difference.SHARDING: Pattern.OTHER_SHARDING,
    program_difference.ARGUMENTS: Pattern.SHAPES,
    program_difference.DTYPES: Pattern.DTYPES,
    program_difference.OTHER: Pattern.RETRACED,
}
"""The likely cause of each kind of `program_difference.Difference`."""


def of_mismatch(
    history: History, calls: Calls, first: Sequence[Called], is_permute: bool
) -> tuple[Cause, ...]:
    """Why two processes made different calls at one place, the likeliest first."""
    (_, a), (_, b) = first
    mine, theirs = (_call(history, calls, *called) for called in first)
    if a.signature == b.signature and a.other_line(b) and _one_program(mine, theirs):
        again = [_from_there_before(history, *called) for called in first]
        likeliest = Pattern.OPPOSITE_ORDER if again[0] == again[1] else Pattern.BRANCH
        return (Cause(likeliest), Cause(Pattern.OTHER_PLACE, (), mine.modules))
    same_function = _same_function(mine, theirs) or _one_program(mine, theirs)
    if threads := _of_threads(history, calls, first, mine, theirs):
        return (threads,)
    if changed := _of_arguments(first, mine, theirs, same_function):
        return (changed,)
    found: list[Cause] = []
    if same_function or not (mine.modules and theirs.modules):
        found = _of_operations(mine, theirs, is_permute)
    if same_function and found:
        return tuple(found)
    found += _of_programs(history, calls, first, mine, theirs)
    return tuple(found) or (Cause(Pattern.BRANCH),)


def _from_there_before(history: History, process: int, entry: Entry) -> bool:
    """Whether the process has called from the line of this call before; with ``--strict``."""
    entries = _track(history, process, entry).entries
    return any(e.site == entry.site for e in entries if e.number < entry.number)


def _of_threads(
    history: History, calls: Calls, first: Sequence[Called], mine: Call, theirs: Call
) -> Cause | None:
    """Calls from two threads of one process: JAX does not order them alike in all processes."""
    if len(mine.threads) != 1 or len(theirs.threads) != 1:
        return None
    is_same_name = mine.threads == theirs.threads
    if is_same_name and not _named_by_python(mine):
        return None

    def are_several(names: set[str]) -> bool:
        # Two threads that have one name are told by a further one of such a name.
        return len({n for n in names if _NUMBERED.match(n)} if is_same_name else names) > 1

    def several(process: int, entry: Entry) -> bool:
        track = _track(history, process, entry)
        last = [e for e in track.entries if e.number <= entry.number][-_LATEST:]
        return are_several({t for e in last for t in calls.of(track, e).threads})

    def have_programs(process: int) -> bool:
        return are_several({s.thread for s in history.run.processes[process].sites if s.thread})

    # A thread that has a name of its own may have called once, long before.
    is_sure = all(map(_named_by_python, (mine, theirs)))
    if not any(several(*each) or (is_sure and have_programs(each[0])) for each in first):
        return None
    what = (*mine.modules[:1], *theirs.modules[:1])
    return Cause(Pattern.THREADS, (), what, threads=(*mine.threads, *theirs.threads))


def _named_by_python(call: Call) -> bool:
    """``Thread-1 (work)`` only says that this thread was started first."""
    return all(map(_NUMBERED.match, call.threads))


def _of_arguments(
    first: Sequence[Called], mine: Call, theirs: Call, same_function: bool
) -> Cause | None:
    """One line of the program, called with arguments of different shapes or dtypes."""
    a, b = mine.entry, theirs.entry
    if (a.op, a.reduction) != (b.op, b.reduction):
        return None
    # JAX's own small functions (`_reduce_sum`) are called from many lines.
    known = bool(mine.lines and theirs.lines)
    if not (mine.lines & theirs.lines if known else same_function):
        return None
    changed = differing(mine.arguments, theirs.arguments)
    if not changed:
        return None
    pattern = Pattern.DTYPES if changed[0].is_dtype else Pattern.SHAPES
    return Cause(pattern, (first[0][0], first[1][0]), mine.modules, changed)


def _of_operations(mine: Call, theirs: Call, is_permute: bool) -> list[Cause]:
    a, b = mine.entry, theirs.entry
    same_operation = (a.op, a.reduction) == (b.op, b.reduction)
    shapes = (mine.shape, theirs.shape) if mine.shape and theirs.shape else ("", "")
    dtypes = [shape.partition("[")[0] for shape in shapes]
    if same_operation and (a.dtype != b.dtype or dtypes[0] != dtypes[1]):
        return [Cause(Pattern.DTYPES)]
    if same_operation and (a.elements != b.elements or shapes[0] != shapes[1]):
        return [Cause(Pattern.SHAPES)]
    return [Cause(Pattern.PERMUTATION)] if is_permute else []


def of_own_device(history: History, calls: Calls, wait: Wait) -> tuple[Cause, ...]:
    """Why a device of a process has not come where another one of that process waits."""
    process = wait.track.process
    if not any(history.owner(device) == (process,) for device in wait.absent):
        return ()
    call = _call(history, calls, process, wait.entry)
    return (Cause(Pattern.BRANCH_INSIDE, (), call.modules),) if call.modules else ()


def _call(history: History, calls: Calls, process: int, entry: Entry) -> Call:
    return calls.of(_track(history, process, entry), entry)


def _one_program(mine: Call, theirs: Call) -> bool:
    a, b = mine.entry, theirs.entry
    if a.identified and b.identified and a.run_id == b.run_id:
        return True
    return bool(mine.fingerprints) and mine.fingerprints == theirs.fingerprints


def _track(history: History, process: int, entry: Entry) -> Track:
    tracks = history.of_process(process)
    return next(t for t in tracks if any(e is entry for e in t.entries))


def _of_programs(
    history: History, calls: Calls, first: Sequence[Called], mine: Call, theirs: Call
) -> list[Cause]:
    (p, a), (q, b) = first
    if _one_program(mine, theirs):
        if a.run_id == b.run_id or a.signature != b.signature:
            return [Cause(Pattern.BRANCH_INSIDE, (), mine.modules)]
        behind = p if (mine.execution or 0) < (theirs.execution or 0) else q
        return [Cause(Pattern.EXECUTIONS, (behind,), mine.modules)]
    if _same_function(mine, theirs):
        return [Cause(Pattern.RETRACED, (), mine.modules)]
    found = _of_loops(history, calls, first, mine, theirs)
    programs = calls.sites.programs
    only = [
        Cause(Pattern.ONE_SIDED, _having(programs, call), call.modules)
        for (there, entry), call in ((first[1], mine), (first[0], theirs))
        if call.fingerprints
        and there in programs
        and not call.fingerprints & programs[there]
        and not _has_called_before(calls, _track(history, there, entry), entry, call)
    ]
    if len(only) == 1:
        return only + found
    names = tuple(dict.fromkeys((*mine.modules, *theirs.modules)))
    unmatched = Cause(Pattern.TWO_SIDED, (), names) if only else Cause(Pattern.OPPOSITE_ORDER)
    return (found or [unmatched, Cause(Pattern.BRANCH)][: 1 if only else 2]) + only


def _has_called_before(calls: Calls, track: Track, entry: Entry, call: Call) -> bool:
    """Whether this process called the function of ``call`` before ``entry``, from the same lines.

    JAX compiles a function again for arguments of another sharding, as those of a training's second
    step are: that makes another program, which the process will call.
    """
    earlier = (calls.of(track, e) for e in track.entries if e.number < entry.number)
    return any(_same_function(c, call) and c.lines & call.lines for c in earlier)


def _same_function(mine: Call, theirs: Call) -> bool:
    """Compares names: one line may make several functions, which different lines call."""
    a, b = mine.first_line, theirs.first_line
    return bool(mine.functions & theirs.functions) and not (a and b and a != b)


def alone(why: Sequence[Cause]) -> tuple[int, ...]:
    """The processes that have a program which the others lack; empty: both sides have one."""
    only = [cause for cause in why if cause.pattern is Pattern.ONE_SIDED]
    return only[0].processes if len(only) == 1 else ()


def _having(programs: Mapping[int, frozenset[str]], call: Call) -> tuple[int, ...]:
    """The processes that have the program of a call."""
    return tuple(sorted(p for p, there in programs.items() if call.fingerprints & there))


def _of_loops(
    history: History, calls: Calls, first: Sequence[Called], mine: Call, theirs: Call
) -> list[Cause]:
    """A loop that one of two processes has left earlier than the other."""
    (p, a), (q, b) = first
    here, there = _track(history, p, a), _track(history, q, b)
    mine_again = calls.seen_before(here, mine, a)
    theirs_again = calls.seen_before(there, theirs, b)
    if mine_again and not theirs_again:
        return [Cause(Pattern.SHORTER_LOOP, (q,))]
    if theirs_again and not mine_again:
        return [Cause(Pattern.SHORTER_LOOP, (p,))]
    return []


def of_death(
    history: History, calls: Calls, process: Process, wait: Wait | None
) -> tuple[Cause, ...]:
    """Why a process that others wait for has ended; empty: its own error explains it better."""
    gone = (process.index,)
    exit = process.own_exit
    if process.error is not None or (exit and exit.exit_code):
        return ()
    if exit and exit.signal:
        if exit.reason:
            return (Cause(Pattern.MEMORY, gone, (exit.reason,)),)
        return (Cause(Pattern.SIGKILL, gone),) if exit.signal == 9 else ()
    if exit and exit.reason:
        return ()
    if exit and exit.exit_code == 0 and process.still_ran:
        return (Cause(Pattern.HARD_EXIT, gone),)
    if wait is None:
        return ()
    call = calls.of(wait.track, wait.entry)
    if calls.seen_before(wait.track, call, wait.entry):
        return (Cause(Pattern.SHORTER_LOOP, gone),)
    return (Cause(Pattern.BRANCH, gone),)


def of_circle(groups: Sequence[Sequence[int]]) -> tuple[Cause, ...]:
    """``groups`` are the devices, in rank order, of each clique of the circle."""
    known = {tuple(group) for group in groups if group}
    if len({frozenset(group) for group in known}) < len(known):
        return (Cause(Pattern.DEVICE_ORDER),)
    if len(groups) > 1:
        return (Cause(Pattern.CROSSING),)
    return (Cause(Pattern.OPPOSITE_ORDER), Cause(Pattern.BRANCH))
