"""The phrases of a report: names of processes, calls, exits, causes. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lockstep._words import counted, format_size, processes, ranges
from lockstep.flight_recorder.calls import Call, Round
from lockstep.flight_recorder.causes import Cause, Pattern
from lockstep.flight_recorder.format import DTYPES, OPS, REDUCTIONS, Entry, Op
from lockstep.flight_recorder.run_records import Caller, Process, Site
from lockstep.flight_recorder.waits import Barrier

MAX_LINES = 3
"""At most this many lines of the program are named for one call."""
MAX_ARGUMENTS = 2
"""At most this many of a function's differing arguments are named."""
LAUNCH = "launch"
"""What a table or a picture calls a launch whose program it does not name."""


def label_of(process: Process) -> str:
    """``process 1 (pid 7 on host a)``, or as much as is known."""
    if process.record is not None:
        return process.record.label
    if process.label:
        return process.label
    pid = process.exit.pid if process.exit else None
    return f"process {process.index}" + (f" (pid {pid})" if pid else "")


def devices(members: Sequence[int]) -> str:
    known = [device for device in members if device >= 0]
    some = f" ({ranges(known)})" if len(known) == len(members) else ""
    return f"{counted(len(members), 'device')}{some}" if members else "a group"


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``11th``."""
    last = number % 10 if number % 100 not in (11, 12, 13) else 0
    return f"{number}{('th', 'st', 'nd', 'rd')[last] if last < 4 else 'th'}"


def operation(entry: Entry) -> str:
    """``all-reduce (sum) of 1024 x f32``."""
    name = OPS[entry.op]
    if entry.op == Op.PROGRAM:
        return "another program"
    if entry.op == Op.PERMUTE:
        to = f" to rank {ranges(entry.targets)}" if entry.targets else ""
        source = f" from rank {entry.source}" if entry.source >= 0 else ""
        return f"{name} of {format_size(entry.bytes)}{to}{' and' if to and source else ''}{source}"
    if entry.reduction:
        name += f" ({REDUCTIONS[entry.reduction]})"
    if entry.op == Op.ALL_TO_ALL:
        return f"{name} of {format_size(entry.bytes)}"
    return f"{name} of {entry.elements} x {DTYPES[entry.dtype]}"


def function(module: str) -> str:
    """The user's function in the name of a compiled module: ``step`` for ``jit_step``."""
    return module.removeprefix("jit_").removeprefix("pmap_") or module


def place_in_program(sites: Sequence[Site], full: bool = False) -> str:
    """``train.py:41 in step``; where several lines fit, all of them.

    A program without a line gives ``step (first used at train.py:30)``: later calls of it may come
    from other lines.
    """
    if any(site.through_file for site in sites):
        return " or ".join(dict.fromkeys(_through(site, full) for site in sites[:MAX_LINES]))
    # A first use stands behind the name of its function.
    ordered = sorted(sites, key=lambda site: (not site.file, bool(site.used_file)))
    lines = _lines([(site.file, site.line) for site in ordered], full)
    functions = " or ".join(dict.fromkeys(function(site.module) for site in ordered))
    text = " in ".join(part for part in (lines, functions) if part)
    uses = _lines([(site.used_file, site.used_line) for site in ordered], full)
    return f"{text} (first used at {uses})" if uses else text


def _through(site: Site, full: bool) -> str:
    """``train.py:24 in main, through stats.py:96 in mean``: the user's line, then the library's."""
    if not site.through_file:
        return place_in_program([site], full)
    own = _lines([(site.file, site.line)], full)
    library = _lines([(site.through_file, site.through_line)], full)
    own += f" in {site.function}" if site.function.isidentifier() else ""
    return f"{own}, through {library} in {function(site.module)}"


def _lines(places: Sequence[tuple[str, int]], full: bool) -> str:
    names = [f"{file if full else file.rpartition('/')[2]}:{line}" for file, line in places if file]
    named = list(dict.fromkeys(names))
    lines = " or ".join(named[:MAX_LINES])
    return lines + (f" or {len(named) - MAX_LINES} more" if len(named) > MAX_LINES else "")


def described(call: Call, full: bool = False) -> str:
    """``all-reduce (sum) of 1024 x f32, train.py:41 in step``."""
    what = operation(call.entry)
    if call.entry.op == Op.PROGRAM:
        return place_in_program(call.sites, full) or what
    # The engine moves these as bytes: only the program knows their type.
    if call.entry.op in (Op.ALL_TO_ALL, Op.PERMUTE) and call.shape:
        what += f" as {call.shape}"
    return ", ".join(part for part in (what, place_in_program(call.sites, full)) if part)


def in_barriers(barriers: Sequence[tuple[Barrier, tuple[int, ...]]]) -> str:
    """``in barrier('epoch') at train.py:49 for process 1``."""
    parts = []
    for barrier, missing in barriers:
        at = f" at {barrier.file.rpartition('/')[2]}:{barrier.line}" if barrier.file else ""
        whom = f" for {processes(missing)}" if missing else ""
        parts.append(f"in {barrier.words}{at}{whom}")
    return " and ".join(parts)


def called_from(callers: Sequence[Caller]) -> str:
    """``called from utils.py:5:9-24 in average, from train.py:30:5 in main``, innermost first."""
    names = [
        f"{c.file.rpartition('/')[2]}:{c.line}{f':{c.columns}' * bool(c.columns)} in {c.function}"
        for c in callers
    ]
    # The outermost line is the one that differs between calls; those between are the same.
    names = names if len(names) <= MAX_LINES else [names[0], "...", names[-1]]
    return "called from " + ", from ".join(names)


def briefly(rounds: Sequence[Round]) -> str:
    """``37 x train.py:41 in step``, ``18 x (train.py:41 in step, 2 x train.py:44 in step)``.

    Neighbours that read alike are counted together: one line may make calls of several kinds.
    """
    parts = itertools.groupby(map(_folded, rounds), key=lambda part: part[1])
    return ", ".join(_times(sum(count for count, _ in equal), text) for text, equal in parts)


def _folded(round_: Round) -> tuple[int, str]:
    """How often a text stands for the calls of a round, and the text."""
    names = [place_in_program(call.sites) or operation(call.entry) for call in round_.calls]
    folded = [(name, len(list(equal))) for name, equal in itertools.groupby(names)]
    if len(folded) == 1:
        return round_.times * folded[0][1], folded[0][0]
    text = ", ".join(_times(count, name) for name, count in folded)
    return round_.times, text if round_.times == 1 else f"({text})"


def _times(count: int, text: str) -> str:
    return text if count == 1 else f"{count} x {text}"


def ending(process: Process, after: str = "") -> str:
    """``was killed by SIGKILL (signal 9)``, ``failed: ValueError: ...``, ``ended``.

    ``after`` is inserted before the reason: `` after 3 collectives``.
    """
    exit = process.own_exit
    if process.error is not None:
        return f"failed{after}: {process.error.summary}"
    failed = process.record is not None and process.record.state == 2
    text = ("failed with an uncaught exception" if failed else "ended") + after
    if exit is not None and (exit.is_seen or exit.reason):
        text = exit.words(after)
    left = process.waits.left
    return text.replace("ended", f"ended by {left}", 1) if left else text


def likely(cause: Cause) -> str:
    """A likely cause in words."""
    names = " or ".join(function(name) for name in cause.what)
    them = processes(cause.processes) if cause.processes else "one process"
    if cause.pattern is Pattern.THREADS:
        return _threads(cause)
    if cause.arguments:
        general = _WORDS[cause.pattern].partition(": ")[2]
        return f"{_compared(cause)}. {general[:1].upper()}{general[1:]}"
    return _WORDS[cause.pattern].format(process=them, function=names or "the program")


def only_these(cause: Cause) -> str:
    """``so far only process 0 has called norm``, of a program on one side only."""
    names = " or ".join(function(name) for name in cause.what)
    verb = "has" if len(cause.processes) == 1 else "have"
    return f"so far only {processes(cause.processes)} {verb} called {names or 'the program'}"


def _threads(cause: Cause) -> str:
    """``several threads dispatch collectives (loss: MainThread, _identity_fn: prefetch) ...``."""
    names = [function(name) for name in cause.what]
    called = ", ".join(f"{n}: {t}" for n, t in zip(names, cause.threads, strict=True))
    hint = (
        ". _identity_fn is the all-gather by which jax.device_put to devices of several processes "
        "checks for equal values; jax.make_array_from_process_local_data does without it"
    )
    text = _WORDS[cause.pattern].format(function=called)
    return text + (hint if "_identity_fn" in names else "")


def _compared(cause: Cause) -> str:
    """``different shapes: x of step is f32[100,8] on process 0 and f32[96,8] on process 1``."""
    here, there = cause.processes
    names = " or ".join(function(name) for name in cause.what) or "the program"
    parts = []
    for a in cause.arguments[:MAX_ARGUMENTS]:
        text = f"{a.name} of {names} is {a.mine} on process {here}, {a.theirs} on process {there}"
        if a.sizes and a.is_first_axis:
            text += f" ({a.sizes[0]} rows for each device here, {a.sizes[1]} there)"
        parts.append(text)
    more = len(cause.arguments) - MAX_ARGUMENTS
    parts += [f"{more} more argument{'s differ' if more > 1 else ' differs'}"] if more > 0 else []
    return f"different {'dtypes' if cause.arguments[0].is_dtype else 'shapes'}: {'; '.join(parts)}"


_WORDS = {
    Pattern.THREADS: "several threads dispatch collectives ({function}), and JAX does not order "
    "them alike in all processes: dispatch all from one thread",
    Pattern.SHAPES: "different shapes: data that each process pads or cuts by itself (a last "
    "batch, a ragged split); give every process the same shape",
    Pattern.DTYPES: "different dtypes: a weak type, jax_enable_x64 on one process only, or input "
    "read with another dtype",
    Pattern.SHORTER_LOOP: "a loop with fewer steps on {process}: a last batch that only some "
    "processes have, or a stop condition computed from local data; or it skipped an earlier call "
    "under an `if` (--strict finds one on another line)",
    Pattern.OPPOSITE_ORDER: "the same calls in opposite order: iteration over a set, over a dict "
    "filled in another order, over os.listdir(), threads, or a program on one device of a "
    "process beside one on several, which JAX does not order",
    Pattern.BRANCH: "a collective under `if jax.process_index() == 0`, or under a condition on "
    "local data: some processes take it, others do not",
    Pattern.ONE_SIDED: "{function} is called under `if jax.process_index() == 0` or another "
    "condition on local data, or after a loop that ended earlier on {process}",
    Pattern.TWO_SIDED: "{function} is called under `if jax.process_index() == 0` or another "
    "condition on local data; or all processes call both, in opposite order: a dict filled in "
    "another order, os.listdir(), a set, threads",
    Pattern.RETRACED: "{function} was compiled differently: another static argument, or a Python "
    "value (a seed, a rate, process_index()) that became a constant of the program",
    Pattern.BRANCH_INSIDE: "a branch inside {function}: lax.cond or lax.while_loop on a value "
    "that differs between the devices",
    Pattern.EXECUTIONS: "{process} ran {function} fewer times: it skipped a step, or the others "
    "repeated one",
    Pattern.OTHER_PLACE: "{function} is called from different places on purpose, which --strict "
    "reports as a fault: call it from one place, or run without --strict",
    Pattern.PERMUTATION: "ppermute with another list of pairs: a list made from process_index() "
    "or from local data",
    Pattern.CROSSING: "collectives over different mesh axes in opposite order: iteration over a "
    "set or a dict of axes, or `if jax.process_index() == 0`",
    Pattern.TRACED_VALUE: "a value that Python read while the function was traced is a constant of "
    "the program: a static argument, a random number of NumPy, process_index(), os.environ, the "
    "time, local data; pass it as an argument of the function",
    Pattern.TRACED_BRANCH: "an `if`, a loop or a static argument that depends on process_index(), "
    "os.environ or local data while the function is traced, the order of a set, or another version "
    "of a library",
    Pattern.OTHER_SHARDING: "a sharding made from process_index() or local data, or an array that "
    "one process placed in another way",
    Pattern.OTHER_FLAGS: "XLA_FLAGS, an option of jax.jit(..., compiler_options=...) or a setting "
    "of jax.config is set on some hosts only: set it alike for all processes (lockstep run --env "
    "does)",
    Pattern.BARRIER: "a barrier under `if jax.process_index() == 0`, or under a condition on local "
    "data: call it on every process, at the same place between the collectives",
    Pattern.DEVICE_ORDER: "the processes have the same devices in another order, as in a mesh of a "
    "list that each sorts its own way (its own devices first): give all processes the same order, "
    "that of jax.make_mesh or jax.devices()",
    Pattern.MEMORY: "{function}: {process} took more than the machine or its control group allows",
    Pattern.HARD_EXIT: "os._exit(), or exit() in native code, on {process}: Python has not come to "
    "the end of the program, though the exit code is 0",
    Pattern.SIGKILL: "a kill -9, or the kernel ran out of memory (see dmesg, and the memory limit "
    "of the container or of the batch job)",
}
