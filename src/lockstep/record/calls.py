"""A collective as the user knows it: which line of which program called it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.record.format import OPS, Entry
from lockstep.record.history import History, Track
from lockstep.record.run import Run, Site


@dataclass(frozen=True, slots=True)
class Call:
    """A collective on one device, with the lines of the program that it may come from."""

    entry: Entry
    device: int
    sites: tuple[Site, ...] = ()
    """Several where the compiler's metadata fits several; none where nothing is known."""
    members: tuple[int, ...] = ()
    times: int = 1
    """How many of the same came one after another."""

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(sorted({site.module for site in self.sites}))

    @property
    def fingerprints(self) -> frozenset[str]:
        return frozenset(site.fingerprint for site in self.sites)

    @property
    def execution(self) -> int | None:
        """Which execution of its program this is (from 0), where the program is known."""
        found = {site.execution(self.entry.run_id) for site in self.sites}
        return found.pop() if len(found) == 1 else None

    @property
    def kind(self) -> tuple:
        """The same for every execution of the same line of the same program."""
        return (*self.entry.signature, self.entry.op_id, self.fingerprints)


class Sites:
    """The call sites of a run, by process."""

    def __init__(self, run: Run) -> None:
        self._own: dict[int, dict[int, list[Site]]] = {}
        self._all: dict[int, list[Site]] = {}
        self.programs: dict[int, frozenset[str]] = {}
        """Process -> the fingerprints of the programs that it has; no entry: not known."""
        for process in run.processes:
            own = self._own.setdefault(process.index, {})
            for site in process.sites:
                own.setdefault(site.channel, []).append(site)
                self._all.setdefault(site.channel, []).append(site)
            if process.sites:
                fingerprints = frozenset(site.fingerprint for site in process.sites)
                self.programs[process.index] = fingerprints

    def of(self, process: int, entry: Entry) -> tuple[Site, ...]:
        """Where ``entry`` of ``process`` may come from; told by the others where it could not."""
        if not entry.identified:
            return ()
        own = self._own.get(process, {}).get(entry.op_id, [])
        return _fitting(own, entry) or _fitting(self._all.get(entry.op_id, []), entry)


def _fitting(sites: list[Site], entry: Entry) -> tuple[Site, ...]:
    fitting = {
        (site.module, site.fingerprint, site.file, site.line): site
        for site in sites
        if site.execution(entry.run_id) is not None and site.op.startswith(OPS[entry.op])
    }
    # Programs' ids may lie near each other by chance. An earlier execution left an entry each.
    likely = [
        site for site in fitting.values() if (site.execution(entry.run_id) or 0) < entry.number
    ]
    return tuple(likely or fitting.values())


class Calls:
    """Makes calls of entries."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.sites = Sites(history.run)

    def of(self, track: Track, entry: Entry) -> Call:
        sites = self.sites.of(track.process, entry)
        return Call(entry, track.device, sites, self._history.devices(entry.clique))

    def before(self, track: Track, entry: Entry | None, most: int) -> tuple[Call, ...]:
        """The last calls of a device before ``entry`` (or at all), the latest last.

        Calls of the same line that follow one another are one, with their number.
        """
        found: list[Call] = []
        for other in reversed(track.entries):
            if entry is not None and other.number >= entry.number:
                continue
            call = self.of(track, other)
            if found and found[-1].kind == call.kind:
                last = found[-1]
                found[-1] = Call(last.entry, last.device, last.sites, last.members, last.times + 1)
            elif len(found) == most:
                break
            else:
                found.append(call)
        return tuple(reversed(found))

    def seen_before(self, track: Track, call: Call, entry: Entry) -> bool:
        """Whether this device made such a call before ``entry``, in the same clique."""
        return any(
            other.clique == entry.clique and self.of(track, other).kind == call.kind
            for other in track.entries
            if other.number < entry.number
        )
