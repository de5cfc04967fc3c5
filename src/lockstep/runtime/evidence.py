"""What the watcher reads: the records of all processes, and the lines behind this one's calls."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep import _config, _jax_compat
from lockstep._records import ErrorRecord, process_dir
from lockstep.record import format, run
from lockstep.runtime import callsite
from lockstep.runtime.sites import (
    Collective,
    Digests,
    Matcher,
    Program,
    Programs,
    digests,
    near,
)
from lockstep.runtime.topology import Peer


class Records:
    """Where the records of all processes are, and reading them."""

    def __init__(self, peers: Sequence[Peer], paths: Sequence[str]) -> None:
        config = _config.current()
        self._peers = peers
        self._top = Path(config.run_dir) if config.run_dir else None
        self._attempt = config.attempt
        # Opened now: a record in memory can be opened only while its process lives.
        self._files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())

    def folder(self, process: int) -> Path | None:
        """The directory of one process's files; None without a launcher."""
        return process_dir(self._top, self._attempt, process) if self._top else None

    def record(
        self, process: int, latest: int | None = None, after: Mapping[int, int] | None = None
    ) -> format.ProcessRecord:
        return run.read_record(f"/proc/self/fd/{self._files[process]}", latest, after)

    def ending(self, process: int) -> run.Exit | None:
        folder = self.folder(process)
        return run.read_exit(folder) if folder else None

    def read(
        self, own: int, own_sites: Sequence[run.Site], vary: bool, latest: int | None = None
    ) -> run.Run:
        """All that is known: endings first, then records, then sites (see `record.run`).

        ``latest`` is how many entries of each device are looked at.
        """
        folders = [self.folder(peer.process) for peer in self._peers]
        errors = [ErrorRecord.read(folder) if folder else None for folder in folders]
        endings = [self.ending(peer.process) for peer in self._peers]
        records = [self.record(peer.process, latest) for peer in self._peers]
        processes = []
        for peer, folder in zip(self._peers, folders, strict=True):
            index, sites, callers = peer.process, tuple(own_sites), callsite.known()
            if index != own and folder is not None:
                sites = run.read_sites(folder / run.SITES)[0]
                sites += run.read_sites(folder / run.PERHAPS)[0]
                callers = run.read_callers(folder / run.CALLERS)
            known = (errors[index], endings[index])
            processes.append(run.Process(index, records[index], sites, *known, callers=callers))
        return run.Run(tuple(processes), self._attempt, vary)


class Sites:
    """Finds the lines of this process's collectives, and writes them down for the others."""

    def __init__(self, records: Records, process: int, live: Callable[[], Any]) -> None:
        self._folder = records.folder(process)
        self._records = records
        self._process = process
        self._programs = Programs(live)
        self._matcher = Matcher(_jax_compat.device_lists)
        self._seen: dict[int, int] = {}
        self._open: dict[int, set[tuple[str, int]]] = {}
        self._sure: list[run.Site] = []
        self._perhaps: list[run.Site] = []
        self.digests: dict[int, Digests] = {}
        """Of the programs that each first number may belong to."""

    @property
    def found(self) -> list[run.Site]:
        return self._sure + self._perhaps

    def hold(self, program: Any) -> None:
        """To be called when a program was compiled or loaded."""
        self._programs.hold(program)

    def close(self) -> None:
        self._programs.drop()

    def update(self) -> None:
        """Looks at what was recorded since the last time."""
        self._programs.read_held()
        if not self._gather():
            return
        matched = self._matcher.match(self._open, self._programs.all())
        before, self._perhaps = self._perhaps, []
        for execution, programs in matched.items():
            self.digests[execution] = digests(programs)
            sites = [
                _site(execution, program, c) for program in programs for c in program.collectives
            ]
            if self._matcher.is_known(execution):
                del self._open[execution]
                self._sure += sites
                if self._folder is not None:
                    self._put(self._folder / run.SITES, "a", sites)
            else:
                self._perhaps += sites
        if self._folder is not None and self._perhaps != before:
            self._put(self._folder / run.PERHAPS, "w", self._perhaps)

    def _gather(self) -> bool:
        """Whether there are executions of programs that are not known."""
        for ring in self._records.record(self._process, after=self._seen).rings:
            self._seen[ring.device] = ring.written
            for entry in ring.entries:
                if entry.run_id:
                    self._meet(entry)
        return bool(self._open)

    def _meet(self, entry: format.Entry) -> None:
        if self._matcher.is_known(entry.run_id):
            return
        # The first execution that was seen stands for the program.
        same = (execution for execution in self._open if near(execution, entry.run_id))
        calls = self._open.setdefault(next(same, entry.run_id), set())
        calls.add((format.OPS[entry.op], entry.op_id))

    @staticmethod
    def _put(path: Path, mode: str, sites: Sequence[run.Site]) -> None:
        lines = [
            json.dumps({name: getattr(site, name) for name in site.__slots__}) for site in sites
        ]
        # The job goes on without the lines where they cannot be written.
        with contextlib.suppress(OSError), open(path, mode, encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))


def _site(execution: int, program: Program, collective: Collective) -> run.Site:
    return run.Site(
        program=execution % (1 << 32),
        fingerprint=program.fingerprint.decode(errors="replace"),
        module=program.module,
        channel=collective.channel,
        op=collective.op,
        op_name=collective.op_name,
        file=collective.file,
        line=collective.line,
        shape=collective.shape,
    )
