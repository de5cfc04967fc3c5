"""All that the processes of one attempt left: recorder files, call sites, errors, exits.

A missing or broken file becomes an entry in `Process.problems` and raises nothing: a run that has
failed may have left its files incomplete.

**Order of reading.** Processes may still run. How a process ended is read before its recorder file,
so a record that is read after an exit is final: nothing will be added to it. So are the barriers it
waits in: a process that could not go on then, and has run no collective since, still cannot. Sites
are read last, so that the program of each entry is likely to be there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep._errors import RecordError
from lockstep._run_files import (
    CALLERS,
    DIFFERENCE,
    POSSIBLE_SITES,
    PROGRAMS_VARY,
    SITES,
    WAITS,
    ErrorRecord,
    Exit,
    process_dir,
    read_ending,
    recorder_of,
)
from lockstep.flight_recorder import format, program_difference
from lockstep.flight_recorder.program_difference import Difference
from lockstep.flight_recorder.waits import Waits, read_waits

EXECUTIONS = 1 << 24
"""Executions of one program that can be distinguished by their run ids."""


@dataclass(frozen=True, slots=True)
class Site:
    """A collective of a compiled program: where in the user's program it comes from."""

    program: int
    """The run id of the program's first execution."""
    fingerprint: str
    module: str
    channel: int
    op: str
    op_name: str
    file: str
    line: int
    shape: str
    used_file: str = ""
    used_line: int = 0
    """The first use of its program, for a collective that has no line of its own."""
    function: str = ""
    """The Python function of the line, where that is known."""
    through_file: str = ""
    through_line: int = 0
    """The library's line that calls JAX, when ``file`` and ``line`` are the user's line above."""
    arguments: tuple[str, ...] = ()
    """The program's arguments, ``x: f32[100,8]``; only with the first collective of a program."""
    thread: str = ""
    """The name of the thread that first called the program; "": not known."""
    first_line: str = ""
    """The line that first called the program of the collective, ``main.py:7``; "": not known."""

    def execution(self, run_id: int) -> int | None:
        """The number (from 0) of the execution with ``run_id``; None: of another program."""
        number = (run_id - self.program) % (1 << 32)
        return number if number < EXECUTIONS else None


@dataclass(frozen=True, slots=True)
class Caller:
    """A line of the program that was being executed."""

    file: str
    line: int
    function: str
    columns: str = ""
    """First and last byte of the call in its line, from 1: ``5-15``; "": not known."""

    @property
    def short(self) -> str:
        """``train.py:34``."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"


_CHANGED_TRAFFIC = re.compile(
    r"lockstep: (.+?\. Something changes the traffic between these hosts.*)", re.DOTALL
)
"""The sentence is `kTraffic` of the engine."""


@dataclass(frozen=True)
class Process:
    """All facts about one process."""

    index: int
    record: format.ProcessRecord | None = None
    sites: tuple[Site, ...] = ()
    error: ErrorRecord | None = None
    exit: Exit | None = None
    problems: tuple[str, ...] = ()
    """The files that could not be read, and why."""
    label: str = ""
    """The process's name where there is no record."""
    callers: Mapping[int, tuple[Caller, ...]] = field(default_factory=dict)
    """Under ``--strict``: the lines behind each `format.Entry.site`, the innermost first."""
    waits: Waits = field(default_factory=Waits)

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended, by the record. JAX's shutdown may follow."""
        record = self.record
        if record is None or record.state != format.ProcessState.ENDED:
            return False
        last = (entry for ring in record.rings for entry in ring.entries[-1:])
        return not any(entry.state == format.State.ENTERED for entry in last)

    @property
    def still_ran(self) -> bool:
        """Whether the program had not come to its end, by the record."""
        return self.record is not None and self.record.state == format.ProcessState.RUNNING

    @property
    def own_exit(self) -> Exit | None:
        """How it ended; None while it runs, and where the launcher stopped it after its program had
        ended: then the record says how."""
        after = self.exit is not None and self.exit.was_signalled and self.has_ended
        return None if after else self.exit

    @property
    def changed_traffic(self) -> str:
        """What the engine has found out of changed traffic between hosts; "" for nothing."""
        found = _CHANGED_TRAFFIC.search(self.error.summary) if self.error else None
        return found[1] if found else ""


@dataclass(frozen=True)
class Run:
    """All processes of one attempt, by index.

    Code that builds a `Run` without `read_run` must keep its order of reading: `Process.exit`,
    `Process.error` and `Process.waits` before `Process.record`.
    """

    processes: tuple[Process, ...]
    attempt: int = 0
    programs_vary: bool = False
    """Whether one program may have different run ids in different processes."""
    clock_error_ns: int = 0
    """Largest error when times of different processes are compared."""
    difference: Difference | None = None
    """What was found to differ between programs that the processes run together."""


def attempts(directory: Path) -> list[int]:
    """The attempts in a run's directory, ascending."""
    found = (re.fullmatch(r"attempt_(\d+)", path.name) for path in directory.glob("attempt_*"))
    return sorted(int(match[1]) for match in found if match)


def read_run(directory: Path, attempt: int | None = None) -> Run:
    """Reads one attempt of a run: ``attempt``, by default the last one.

    Raises `RecordError` when ``directory`` is not the directory of a run.
    """
    there = attempts(directory)
    if not there:
        raise RecordError(
            f"{directory} is not the directory of a run: there is no attempt_0 in it. "
            "Give the directory that `lockstep run` names when a run fails, or its --log-dir."
        )
    number = there[-1] if attempt is None else attempt
    if number not in there:
        named = ", ".join(map(str, there))
        raise RecordError(f"{directory} has no attempt {number}; it has: {named}")
    folder = process_dir(directory, number, 0).parent
    names = (re.fullmatch(r"process_(\d+)", path.name) for path in folder.glob("process_*"))
    indices = sorted(int(match[1]) for match in names if match)
    folders = {index: process_dir(directory, number, index) for index in indices}
    endings = {i: read_ending(path) for i, path in folders.items()}
    waits = {i: read_waits(path / WAITS) for i, path in folders.items()}
    records = {i: _record(recorder_of(path)) for i, path in folders.items()}
    processes = []
    for index, path in folders.items():
        record, problem = records[index]
        sites, site_problem = read_sites(path / SITES)
        sites += read_sites(path / POSSIBLE_SITES)[0]
        problems = tuple(t for t in (problem, site_problem) if t)
        callers = read_callers(path / CALLERS)
        known = (record, sites, *endings[index], problems)
        processes.append(Process(index, *known, callers=callers, waits=waits[index]))
    vary = any((path / PROGRAMS_VARY).exists() for path in folders.values())
    told = (program_difference.read(path / DIFFERENCE) for path in folders.values())
    return Run(
        _whole(processes), number, vary, format.TIME_ERROR_NS, next(filter(None, told), None)
    )


def _whole(processes: list[Process]) -> tuple[Process, ...]:
    """Adds the processes that left no files, and refuses records of other jobs."""
    records = [p.record for p in processes if p.record]
    total = max([r.num_processes for r in records] + [p.index + 1 for p in processes], default=0)
    by_index = {p.index: p for p in processes}
    nothing = ("this process left no files",)
    whole = [by_index.get(i) or Process(i, problems=nothing) for i in range(total)]
    nonces = [r.nonce for r in records]
    common = max(nonces, key=nonces.count, default=0)
    return tuple(_of_job(process, common) for process in whole)


def _of_job(process: Process, nonce: int) -> Process:
    record = process.record
    if record is None:
        return process
    if record.nonce != nonce:
        problem = "its recorder file belongs to another job"
    elif record.process != process.index:
        problem = f"its recorder file is that of process {record.process}"
    else:
        return process
    problems = (*process.problems, problem)
    return dataclasses.replace(process, record=None, problems=problems)


def _record(path: Path) -> tuple[format.ProcessRecord | None, str | None]:
    try:
        return read_record(path), None
    except FileNotFoundError:
        return None, "there is no recorder file"
    except OSError as error:
        return None, f"its recorder file cannot be read: {error.strerror}"
    except RecordError as error:
        return None, str(error)


def read_record(
    path: Path | str, latest: int | None = None, after: Mapping[int, int] | None = None
) -> format.ProcessRecord:
    """Reads a recorder file, also while it is being written and by a path like /proc/PID/fd/N.

    ``latest`` and ``after`` select entries (`format.parse`).

    Raises `RecordError` when it is no recorder file, OSError when it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        before, record, again = (os.pread(descriptor, size, 0) for _ in range(3))
        return format.parse(record, again, before, latest=latest, after=after)
    finally:
        os.close(descriptor)


def read_sites(path: Path | str) -> tuple[tuple[Site, ...], str | None]:
    """The call sites in a file, and why it cannot be read. The last line may be unfinished."""
    try:
        lines = Path(path).read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return (), None
    except OSError as error:
        return (), f"its call sites cannot be read: {error.strerror}"
    return tuple(_sites(lines)), None


def read_callers(path: Path | str) -> dict[int, tuple[Caller, ...]]:
    """Site -> its lines of the program; lines of the file that cannot be parsed are skipped."""
    found = {}
    with contextlib.suppress(OSError):
        for text in Path(path).read_text("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                values = json.loads(text)
                found[int(values["site"])] = callers_of(values["callers"])
    return found


def callers_of(lines: Iterable[Iterable[Any]]) -> tuple[Caller, ...]:
    """The lines that JSON has as the fields of each. Raises ValueError or TypeError."""
    return tuple(
        Caller(str(file), int(line), str(function), str(columns))
        for file, line, function, columns in lines
    )


def _sites(lines: Iterable[str]) -> list[Site]:
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            found.append(site_of(json.loads(line)))
    return found


def site_of(values: dict[str, Any]) -> Site:
    """The site that a line of the file describes. Raises ValueError, KeyError or TypeError."""
    return Site(
        program=int(values["program"]),
        fingerprint=str(values["fingerprint"]),
        module=str(values["module"]),
        channel=int(values["channel"]),
        op=str(values["op"]),
        op_name=str(values.get("op_name") or ""),
        file=str(values.get("file") or ""),
        line=int(values.get("line") or 0),
        shape=str(values.get("shape") or ""),
        used_file=str(values.get("used_file") or ""),
        used_line=int(values.get("used_line") or 0),
        function=str(values.get("function") or ""),
        through_file=str(values.get("through_file") or ""),
        through_line=int(values.get("through_line") or 0),
        arguments=tuple(map(str, values.get("arguments") or ())),
        thread=str(values.get("thread") or ""),
        first_line=str(values.get("first_line") or ""),
    )
