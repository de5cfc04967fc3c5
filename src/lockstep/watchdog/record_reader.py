"""What the watchdog reads: the records of all processes, and the lines behind this one's calls."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep import _config, _jax_compat
from lockstep._run_files import DIFFERENCE, ErrorRecord, Exit, read_ending
from lockstep.callsites import frames
from lockstep.callsites.first_use import Uses
from lockstep.callsites.hlo_metadata import (
    Collective,
    CompiledProgram,
    Digests,
    Matcher,
    Programs,
    digests,
    near,
)
from lockstep.flight_recorder import format, run_records
from lockstep.flight_recorder.program_difference import Difference
from lockstep.flight_recorder.waits import read_waits
from lockstep.job.topology import Peer
from lockstep.programs import compilations
from lockstep.programs.compilations import Program
from lockstep.system import memory_files, stack_dump
from lockstep.system.remote_clock import RemoteClock
from lockstep.watchdog.artifacts import FILES, MEMORY_NAMES, Artifacts, descriptor
from lockstep.watchdog.remote import RemoteHosts


class Records:
    """Where the records of the processes of this host are, and reading them."""

    def __init__(
        self, peers: Sequence[Peer], own: Peer, artifacts: Mapping[int, Artifacts]
    ) -> None:
        """``artifacts``: at least those of the processes of this host; ``own`` may be an agent."""
        self.own = own.process
        self._attempt = _config.current().attempt
        self._peers = peers
        self.difference: Difference | None = None
        """What was found to differ between the programs of the processes."""
        self.gone: dict[int, tuple[ErrorRecord | None, Exit]] = {}
        """Processes that have ended without a word, and what is known of it."""
        # Opened now: what is in memory can be opened only while its process lives.
        self._files: list[int] = []
        self._local = [peer for peer in peers if peer.host_id == own.host_id]
        self._artifacts = {p.process: self._opened(artifacts[p.process]) for p in self._local}

    def note_difference(self, found: Difference) -> None:
        """Writes it down, for the launcher and the report."""
        self.difference = found
        if folder := self.folder(self.own):
            with contextlib.suppress(OSError):
                found.write(folder / DIFFERENCE)

    def _opened(self, artifacts: Artifacts) -> Artifacts:
        held = {name: self._held(getattr(artifacts, name)) for name in FILES}
        return Artifacts(**held, folder=artifacts.folder)

    def _held(self, path: str) -> str:
        if (where := descriptor(path)) is None:
            return path
        try:
            self._files.append(memory_files.open_of(*where, MEMORY_NAMES, os.O_RDONLY))
        except (FileNotFoundError, ProcessLookupError):  # the process has died since it published
            return ""
        return f"/proc/self/fd/{self._files[-1]}"

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())

    def folder(self, process: int) -> Path | None:
        """The directory of one process's files; None without a launcher, or on another host."""
        artifacts = self._artifacts.get(process)
        return Path(artifacts.folder) if artifacts and artifacts.folder else None

    def record(
        self, process: int, latest: int | None = None, after: Mapping[int, int] | None = None
    ) -> format.ProcessRecord:
        artifacts = self._artifacts.get(process)
        if artifacts and artifacts.record:
            # Its agent removes the file when it ends, where two agents share a machine.
            with contextlib.suppress(FileNotFoundError):
                return run_records.read_record(artifacts.record, latest, after)
        peer = self._peers[process]  # it keeps none, or keeps it in another place
        return format.ProcessRecord(process, len(self._peers), peer.pid, peer.host_name, peer.label)

    def ending(self, process: int) -> tuple[ErrorRecord | None, Exit | None]:
        """The error that ended a process, and its exit."""
        told, gone = self.gone.get(process, (None, None))
        if not (folder := self.folder(process)):
            return told, gone
        error, ending = read_ending(folder, self._peers[process].pid)
        return error or told, ending or gone

    def stacks(self, process: int) -> str:
        """The Python stacks of a process of this host."""
        pid = next(peer.pid for peer in self._local if peer.process == process)
        return stack_dump.request(pid, Path(self._artifacts[process].stacks))

    def of_host(
        self, own_sites: Sequence[run_records.Site], latest: int | None
    ) -> list[run_records.Process]:
        """The processes of this host: endings and waits, then records, then sites."""
        endings = {peer.process: self.ending(peer.process) for peer in self._local}
        waits = {index: read_waits(self._artifacts[index].waits) for index in endings}
        alive = (index for index, (_, exit) in endings.items() if exit is None)
        waits |= {index: waits[index].at(time.monotonic()) for index in alive}
        records = {index: self.record(index, latest) for index in endings}
        found = []
        for index, record in records.items():
            sites, callers = tuple(own_sites), frames.known()
            if index != self.own:
                artifacts = self._artifacts[index]
                sites = (
                    run_records.read_sites(artifacts.sites)[0]
                    + run_records.read_sites(artifacts.possible_sites)[0]
                )
                callers = run_records.read_callers(artifacts.callers)
            known = (record, sites, *endings[index])
            found.append(run_records.Process(index, *known, callers=callers, waits=waits[index]))
        return found

    def read(
        self,
        own_sites: Sequence[run_records.Site],
        vary: bool,
        latest: int | None = None,
        remote: RemoteHosts | None = None,
    ) -> run_records.Run:
        """All that is known, of other hosts too.

        ``latest`` is how many entries of each device are read.
        """
        endings = {peer.process: self.ending(peer.process) for peer in self._peers}
        here = self.of_host(own_sites, latest)
        there, clocks = remote.scan(latest) if remote else ([], {})
        known = {one.index: one for one in here}
        for one in on_one_clock(here, there, clocks):
            if self._is_of_job(one, here):
                error, ending = endings[one.index]
                known[one.index] = dataclasses.replace(
                    one, error=one.error or error, exit=_exact(one.exit, ending)
                )
        processes = (known.get(p.process) or _silent(p, *endings[p.process]) for p in self._peers)
        # Each of two hosts that are not this one may be off.
        hosts = 2 * max((clock.error for clock in clocks.values()), default=0)
        error = hosts + format.TIME_ERROR_NS
        return run_records.Run(tuple(processes), self._attempt, vary, error, self.difference)

    def _is_of_job(
        self, received: run_records.Process, here: Sequence[run_records.Process]
    ) -> bool:
        """Whether a record is of the process that it was received for, and of this start of
        engines."""
        record = received.record
        nonces = {process.record.nonce for process in here if process.record}
        return record is None or (record.process == received.index and record.nonce in nonces)


def _compiled(execution: int, programs: Sequence[CompiledProgram]) -> list[Program]:
    """What the programs of an execution were compiled from, on the devices of that execution."""
    found = [(p, c) for p in programs for c in compilations.of_executable(p.fingerprint)]
    sure = [c for p, c in found if near(execution, p.first_number(c.devices))]
    return sure or [c for _, c in found]


def _exact(fresh: Exit | None, kept: Exit | None) -> Exit | None:
    """The ending of two that was seen, or else the one that was kept."""
    return fresh if fresh is not None and fresh.is_seen else kept or fresh


def _silent(peer: Peer, error: ErrorRecord | None, ending: Exit | None) -> run_records.Process:
    why = () if ending else ("no process of its host has answered",)
    return run_records.Process(
        peer.process, error=error, exit=ending, problems=why, label=peer.label
    )


def on_one_clock(
    here: Sequence[run_records.Process],
    there: Sequence[run_records.Process],
    clocks: Mapping[int, RemoteClock],
) -> Iterator[run_records.Process]:
    """The processes of other hosts, as if their hosts' clocks were set as this one's. Pure.

    The times in a record become those of all by its two clocks: see `flight_recorder.timeline`. An
    exit has a time of the host's wall clock.
    """
    records = (process.record for process in here)
    [real] = itertools.islice((r.realtime_ns - r.monotonic_ns for r in records if r), 1)
    for process in there:
        record, exit = process.record, process.exit
        if record:
            there_now = record.realtime_ns
            ahead = record.monotonic_ns + clocks[process.index].shift
            record = dataclasses.replace(record, realtime_ns=ahead + real)
            exit = exit and exit.later_by(record.realtime_ns - there_now)
        yield dataclasses.replace(process, record=record, exit=exit)


class SiteWriter:
    """Finds the lines of this process's collectives, and writes them down for the others."""

    def __init__(self, records: Records, artifacts: Artifacts, live: Callable[[], Any]) -> None:
        self._artifacts = artifacts
        self._records = records
        self._programs = Programs(live)
        self._matcher = Matcher(_jax_compat.device_lists)
        self._seen: dict[int, int] = {}
        self._open: dict[int, set[tuple[str, int]]] = {}
        self._certain: list[run_records.Site] = []
        self._possible: list[run_records.Site] = []
        self._uses = Uses()
        self._known: list[tuple[int, CompiledProgram]] = []
        """The programs whose first execution is certain, and that."""
        self.digests: dict[int, Digests] = {}
        """The digests of the programs that each first number may belong to."""
        self.programs: dict[int, list[Program]] = {}
        """The same programs as they were compiled."""

    @property
    def found(self) -> list[run_records.Site]:
        return self._certain + self._possible

    def hold(self, program: Any) -> None:
        """To be called when a program was compiled or loaded, on the thread that needs it."""
        # First of all: once the program is held, its lines may be written down.
        line = frames.innermost()
        self._uses.note(program.fingerprint, line, frames.dispatching_thread() if line else "")
        self._programs.hold(program)

    def close(self) -> None:
        self._programs.drop()

    def call_native_code(self) -> bool:
        """Whether a program of this process calls native code of others (`Programs`)."""
        self._programs.all()
        return self._programs.call_native_code

    def has_collectives(self, fingerprint: bytes) -> bool | None:
        """Whether a program has them; None: it was not read."""
        return self._programs.has_collectives(fingerprint)

    def update(self) -> None:
        """Looks at what was recorded since the last time."""
        self._programs.read_held()
        self._add_late_uses()
        if not self._gather():
            return
        matched = self._matcher.match(self._open, self._programs.all())
        before, self._possible = self._possible, []
        for execution, programs in matched.items():
            self.digests[execution] = digests(programs)
            self.programs[execution] = _compiled(execution, programs)
            sites = [site for program in programs for site in self._sites(execution, program)]
            if self._matcher.is_known(execution):
                del self._open[execution]
                self._known += [(execution, program) for program in programs]
                self._add(sites)
            else:
                self._possible += sites
        if self._possible != before:
            write_sites(self._artifacts.possible_sites, "w", self._possible)

    def _sites(self, execution: int, program: CompiledProgram) -> Iterator[run_records.Site]:
        used = self._uses.of(program.fingerprint)
        thread = self._uses.thread(program.fingerprint)
        first = used[0].short if used else ""
        for collective in program.collectives:
            for line in (used if not collective.file else ()) or (None,):
                site = _site(execution, program, collective, line)
                yield dataclasses.replace(
                    site, thread=thread, first_line=first if collective.file else ""
                )

    def _add(self, sites: Sequence[run_records.Site]) -> None:
        self._certain += sites
        write_sites(self._artifacts.sites, "a", sites)

    def _add_late_uses(self) -> None:
        fresh = self._uses.fresh()
        known = [one for one in self._known if one[1].fingerprint in fresh]
        sites = [site for one in known for site in self._sites(*one)]
        self._add([site for site in sites if site not in self._certain])

    def _gather(self) -> bool:
        """Whether there are executions of programs that are not known."""
        for ring in self._records.record(self._records.own, after=self._seen).rings:
            self._seen[ring.device] = ring.written
            for entry in ring.entries:
                if entry.run_id:
                    self._add_call(entry)
        return bool(self._open)

    def _add_call(self, entry: format.Entry) -> None:
        if self._matcher.is_known(entry.run_id):
            return
        # The first execution that was seen stands for the program.
        same = (execution for execution in self._open if near(execution, entry.run_id))
        calls = self._open.setdefault(next(same, entry.run_id), set())
        calls.add((format.OPS[entry.op], entry.op_id))


def write_sites(path: str, mode: str, sites: Sequence[run_records.Site]) -> None:
    """Writes call sites for the other processes; does nothing where they cannot be written."""
    lines = [json.dumps({name: getattr(site, name) for name in site.__slots__}) for site in sites]
    with contextlib.suppress(OSError), open(path, mode, encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


def _site(
    execution: int,
    program: CompiledProgram,
    collective: Collective,
    used: run_records.Caller | None,
) -> run_records.Site:
    is_first = collective is program.collectives[0]
    return run_records.Site(
        program=execution % (1 << 32),
        fingerprint=program.fingerprint.decode(errors="replace"),
        module=program.module,
        channel=collective.channel,
        op=collective.op,
        op_name=collective.op_name,
        file=collective.file,
        line=collective.line,
        shape=collective.shape,
        used_file=used.file if used else "",
        used_line=used.line if used else 0,
        function=collective.function,
        through_file=collective.through_file,
        through_line=collective.through_line,
        arguments=program.arguments if is_first else (),
    )
