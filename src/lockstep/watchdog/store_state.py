"""What each process publishes of itself when one of them waits long, and what follows. Pure."""

from __future__ import annotations

import base64
import dataclasses
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lockstep._errors import RecordError
from lockstep._run_files import Exit
from lockstep.flight_recorder import diagnose, format, run_records, text_report
from lockstep.flight_recorder.format import ProcessRecord, State
from lockstep.flight_recorder.program_difference import Difference
from lockstep.flight_recorder.waits import Waits
from lockstep.programs import compilations, launches
from lockstep.programs.compilations import Program
from lockstep.watchdog import messages
from lockstep.watchdog.still_thread import Limit

KEPT = 64
"""The entries of each device that a process publishes: a power of two."""
_MAX_BYTES = 1 << 24
"""Bounds an unpacked record: one of 4,096 devices has less."""


@dataclasses.dataclass(frozen=True)
class ProcessState:
    """What one process publishes."""

    index: int
    record: ProcessRecord
    callers: messages.Callers
    stack: str
    """The Python stack of its main thread, the innermost frame first."""
    at: str
    """Where that is in the user's program, ``train.py:34``; "": nowhere."""
    inside: str = ""
    """The function of JAX that the thread is in, ``backend_compile``; "": it is in no such."""
    still: float = 0.0
    """For how many seconds the thread has been there."""
    compiles: Program | None = None
    launches: Program | None = None
    """The program that the thread is launching, for the first time."""
    programs: Mapping[int, Program] = dataclasses.field(default_factory=dict)
    """The programs that were launched, by the run ids in the record."""
    compiled_for: float = 0.0
    """For how many seconds it has compiled that program."""
    left: str = ""
    """The call that ended the program, ``sys.exit() at train.py:7``."""

    def to_json(self) -> dict[str, Any]:
        longest = max((len(ring.entries) for ring in self.record.rings), default=0)
        packed = zlib.compress(
            format.encode(self.record, KEPT if longest <= KEPT else format.ENTRIES)
        )
        return {
            "record": base64.b64encode(packed).decode(),
            "callers": messages.pack_callers(self.callers),
            "stack": self.stack,
            "at": self.at,
            "inside": self.inside,
            "still": self.still,
            "compiles": self.compiles.to_json() if self.compiles else None,
            "launches": self.launches.to_json() if self.launches else None,
            "compiled_for": self.compiled_for,
            "left": self.left,
            "programs": {
                str(n): one.without_module().to_json() for n, one in self.programs.items()
            },
        }

    @classmethod
    def from_json(cls, index: int, found: Any) -> ProcessState:
        """Raises `RecordError` for what no process of this version publishes."""
        try:
            packed = zlib.decompressobj().decompress(base64.b64decode(found["record"]), _MAX_BYTES)
            callers = messages.unpack_callers(found["callers"])
            names = ("stack", "at", "inside", "left")
            stack, at, inside, left = (str(found[name]) for name in names)
            record, still = format.parse(packed), float(found["still"])
            compiles, launched = (
                Program.from_json(found[k]) if found[k] else None for k in ("compiles", "launches")
            )
            seconds = float(found["compiled_for"])
            programs = {int(n): Program.from_json(one) for n, one in found["programs"].items()}
        except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
            raise RecordError(f"process {index} has published no state: {error!r}") from error
        where = stack, at, inside, still
        return cls(index, record, callers, *where, compiles, launched, programs, seconds, left)

    @property
    def launched_last(self) -> Program | None:
        """The latest program that was launched, where launches are recorded."""
        entries = (entry for ring in self.record.rings for entry in ring.entries)
        known = [entry.run_id for entry in entries if entry.run_id in self.programs]
        return self.programs[known[-1]] if known else None

    def as_process(self, index: int) -> run_records.Process:
        title = self.compiles.title if self.compiles else ""
        waits = Waits(compiles=title, compiled_for=self.compiled_for, left=self.left)
        sites = launches.sites_of(self.programs)
        return run_records.Process(index, self.record, sites, callers=self.callers, waits=waits)


def progress(record: ProcessRecord) -> tuple[tuple[int, int], ...]:
    """How far each device has come: it stands still while this stays the same."""
    return tuple(
        (ring.written, sum(entry.state == State.DONE for entry in ring.entries))
        for ring in record.rings
    )


def waits(record: ProcessRecord) -> bool:
    """Whether a device has begun a collective, or a program, and has not ended it.

    A collective of NCCL that was called waits in the queue of its device first, behind what that
    computes.
    """
    entries = (entry for ring in record.rings for entry in ring.entries)
    return any(
        e.state == State.ENTERED and (e.op_id == 1 or e.op == format.Op.PROGRAM) for e in entries
    )


@dataclasses.dataclass(frozen=True)
class Missing:
    """A process that has not answered."""

    label: str
    found: str = "it is stopped, or has ended, or its host is out of reach"
    """What the system says of it, where it is on this host."""
    is_gone: bool = False
    stack: str = ""
    """Its Python stacks, where it could be made to write them without its interpreter."""

    def __str__(self) -> str:
        if self.is_gone:
            return f"{self.label} has ended"
        return f"{self.label} does not answer: {self.found.rstrip('.')}"

    def as_process(self, index: int) -> run_records.Process:
        if self.is_gone:
            ending = Exit(reason="it has ended, and only its parent process knows how")
            return run_records.Process(index, exit=ending, label=self.label)
        found = "it runs no Python thread" if self.stack else self.found
        return run_records.Process(index, problems=(f"no answer: {found}",), label=self.label)


def judge(
    states: Sequence[ProcessState | None],
    missing: Mapping[int, Missing],
    difference: Difference | None = None,
) -> diagnose.Diagnosis:
    """What the states of all processes show; ``missing`` has those that are None.

    ``difference`` is what is known to differ between programs that they launched.
    """
    processes = [
        missing[index].as_process(index) if state is None else state.as_process(index)
        for index, state in enumerate(states)
    ]
    return diagnose.diagnose(run_records.Run(tuple(processes), difference=difference))


def launched_at(
    found: diagnose.Diagnosis, states: Sequence[ProcessState | None]
) -> dict[int, Program]:
    """The programs that the processes launched at the place of a mismatch."""
    programs = {}
    for state in filter(None, states):
        for entry in (entry for ring in state.record.rings for entry in ring.entries):
            is_there = (entry.clique, entry.sequence) == found.place
            if is_there and entry.run_id in state.programs:
                programs[state.index] = state.programs[entry.run_id]
    return programs


def report(
    found: diagnose.Diagnosis,
    states: Sequence[ProcessState | None],
    missing: Mapping[int, Missing],
    behind: Sequence[int] = (),
    most: int = 4,
) -> str:
    """The whole report: the table, and what the processes that others wait for do meanwhile.

    ``behind`` are these where the records do not show them.
    """
    lines = [text_report.table(found)]
    for index in (found.culprits or behind)[:most]:
        if stack := (states[index] or missing[index]).stack:
            indented = "\n".join(f"    {line}" for line in stack.splitlines())
            lines.append(f"process {index} does meanwhile:\n{indented}")
    return "\n".join(lines)


def where(states: Sequence[ProcessState | None], most: int = 4) -> str:
    """Half a line that says where the processes are; "": that is not known."""
    known = [_place(s) for s in states if s and s.at]
    return ", ".join(known[:most]) + (f", and {len(known) - most} more" if known[most:] else "")


def _place(state: ProcessState) -> str:
    if state.compiles is None:
        return f"process {state.index} is at {state.at}"
    return f"process {state.index} {state.as_process(state.index).waits.compilation}"


def stands_in_jax(
    states: Sequence[ProcessState | None],
    missing: Mapping[int, Missing],
    process: int,
    among: Collection[int],
    limit: Limit,
    waited: float,
) -> tuple[str, bool]:
    """What to say of ``process``, which stands still in a call of JAX outside of a collective.

    On GPUs XLA compiles a program of several processes together, and NCCL makes communicators
    together, when a program is launched: both wait for a process that does not come. "" where
    nothing is known to be wrong. ``among`` are the processes of the program.
    The second is whether all processes are to hear it: they compile different programs, or this one
    has waited, for so many seconds beyond the ``limit``, for another that runs Python or does not
    answer. A launch does no work of its own; what compiles for long may use the processor.
    """
    own = states[process]
    if own is None or not own.inside:
        return "", False
    compiled = {s.index: s.compiles for s in states if s and s.compiles}
    if different := compilations.explain(compiled):
        return f"{different}. On GPUs XLA waits until all processes compile one program.", True
    others = [s for s in states if s and s.index in among and s.index != process and not s.inside]
    silent = [str(missing[k]) for k in missing if k in among]
    if not others and not silent:
        return "", False
    there = ", ".join(filter(None, [where(others), *silent]))
    if own.compiles and limit is Limit.WAIT and own.still >= waited:  # it has not gone on since
        return (
            f"a compilation has waited {waited:.0f} s (--collective-timeout). "
            f"process {process} compiles {own.compiles.title}, which XLA does on GPUs on all "
            f"processes of a program together; {there}"
        ), True
    if own.launches and limit is not Limit.WARNING:
        return (
            f"a launch has waited {own.still:.0f} s (--collective-timeout). process {process} "
            f"launches {own.launches.title}, for which NCCL makes a communicator on all processes "
            f"of the program together; {there}"
        ), True
    return _warned(own, there), False


def _warned(own: ProcessState, there: str) -> str:
    what = f"in {own.inside} of JAX"
    if program := own.compiles or own.launches:
        what = f"{'compiling' if own.compiles else 'launching'} {program.title}"
    return (
        f"process {own.index} has been {what} for {own.still:.0f} s"
        f"{f' ({own.at})' if own.at else ''}. On GPUs XLA compiles, and makes communicators, on "
        f"all processes of a program together, so it may wait for another: {there}."
    )
