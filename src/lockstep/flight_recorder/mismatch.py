"""The first place at which the members of a clique were not in the same collective. Pure.

The description of a call is written before its entry becomes valid, and never changes. So entries
of one place that differ are a mismatch, whenever they were read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lockstep.flight_recorder.format import Entry
from lockstep.flight_recorder.p2p_matching import Pair
from lockstep.flight_recorder.timeline import History, Position

Called = tuple[int, Entry]
"""A process and its call."""


@dataclass(frozen=True, slots=True)
class Group:
    """Calls that are the same collective."""

    calls: tuple[Called, ...]

    @property
    def processes(self) -> tuple[int, ...]:
        return tuple(sorted({process for process, _ in self.calls}))

    @property
    def entry(self) -> Entry:
        """One of the calls; they differ only in rank and time."""
        return self.calls[0][1]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Two or more groups at one place, the largest first."""

    place: Position
    groups: tuple[Group, ...]

    @property
    def odd(self) -> tuple[int, ...]:
        """The processes outside the majority; all processes where there is no majority."""
        sizes = [len(group.processes) for group in self.groups]
        outside = self.groups[1:] if sizes[0] > sizes[1] else self.groups
        return tuple(sorted({p for group in outside for p in group.processes}))


def same(a: Entry, b: Entry, vary: bool = False) -> bool:
    """Whether two calls are one collective, as far as both are known.

    ``vary``: one program may have several run ids (`Run.programs_vary`), so they are not compared.
    """
    if a.signature != b.signature or a.other_line(b):
        return False
    known = a.identified and b.identified and not vary
    return not known or (a.run_id, a.op_id) == (b.run_id, b.op_id)


def _suspects(history: History) -> Iterable[tuple[int, int]]:
    """The places at which calls differ in any property: nearly always there are none."""
    found: dict[tuple[int, int], None] = {}
    first: dict[tuple[int, int], Entry] = {}
    for track in history.tracks.values():
        for place, entry in track.at.items():
            other = first.setdefault(place, entry)
            # The execution, the channel, the elements; the operation, the dtype, the reduction.
            alike = entry[2:5] == other[2:5] and entry[7:10] == other[7:10]
            if not alike or entry.site != other.site:
                found[place] = None
    return found


def grouped(calls: Iterable[Called], vary: bool = False) -> tuple[Group, ...]:
    """The calls sorted into groups, the one with most processes first."""
    # Calls of known programs come first and define the groups: the others may fit several.
    ordered = sorted(calls, key=lambda call: (not call[1].identified, call[0]))
    groups: list[list[Called]] = []
    for call in ordered:
        fitting = next((g for g in groups if same(g[0][1], call[1], vary)), None)
        if fitting is None:
            groups.append([call])
        else:
            fitting.append(call)
    found = [Group(tuple(sorted(g, key=lambda call: call[0]))) for g in groups]
    found.sort(key=lambda g: (-len(g.processes), g.processes))
    return tuple(found)


def first_mismatch(history: History) -> Mismatch | None:
    """The earliest place at which members differ; without permutes."""
    found = []
    vary = history.run.programs_vary
    for place in _suspects(history):
        there = history.meeting(place)
        groups = grouped(((track.process, entry) for track, entry in there), vary)
        if len(groups) > 1:
            began = min(track.time(entry.entered_ns) for track, entry in there)
            found.append((began, Position(*place), groups))
    if not found:
        return None
    _, place, groups = min(found, key=lambda candidate: candidate[:2])
    return Mismatch(place, groups)


def first_permute_mismatch(history: History, pairs: Iterable[Pair]) -> Mismatch | None:
    """The earliest send and receive that should be one message and are not."""

    def began(pair: Pair) -> int:
        assert pair.differing is not None
        sent, received = pair.differing
        tracks = history.tracks
        return min(
            tracks[pair.source].time(sent.entered_ns), tracks[pair.target].time(received.entered_ns)
        )

    pair = min((p for p in pairs if p.differing), key=began, default=None)
    if pair is None or pair.differing is None:
        return None
    sent, received = pair.differing
    tracks = [history.tracks[pair.source], history.tracks[pair.target]]
    # There is no majority here: other members may correctly be in another permute at this moment.
    calls = [(tracks[0].process, sent), (tracks[1].process, received)]
    groups = tuple(Group((call,)) for call in sorted(calls, key=lambda call: call[0]))
    return Mismatch(Position(pair.clique, received.sequence), groups)
