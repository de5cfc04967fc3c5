"""Matches sends with receives. Pure.

A permute does not involve the whole clique: only ranks that send or receive enter it, and the
messages of an ordered pair of ranks match in the order in which they were sent. So the sends that
the source recorded and the receives that the target recorded are the same sequence of messages, and
one side may be further than the other.

Both records may have lost their beginning. A message is then identified by the program's execution,
the collective in it, and how many messages of the pair that collective moved before. An execution
that may have been partly overwritten is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep.flight_recorder.format import Entry
from lockstep.flight_recorder.timeline import History, Track

Message = tuple[tuple[int, ...], Entry]
"""The identity of a message, and the entry of the side that recorded it."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The messages of one ordered pair of ranks, as far as both sides can be compared."""

    clique: int
    source: int
    """A device, as is `target`."""
    target: int
    differing: tuple[Entry, Entry] | None
    """The first send and receive that should be one message and are not."""
    unreceived: tuple[Entry, ...]
    """Sends whose receive the target has not begun."""
    unsent: tuple[Entry, ...]
    """Receives whose send the source has not begun."""


def pairs(history: History) -> list[Pair]:
    """Every pair of known devices between which something was sent or expected."""
    found: dict[tuple[int, int, int], None] = {}
    ranks: dict[int, dict[int, int]] = {}
    for track in history.tracks.values():
        for entry in track.permutes:
            if entry.clique not in ranks:
                ranks[entry.clique] = history.ranks(entry.clique)
            devices = ranks[entry.clique]
            for rank in entry.targets:
                found[entry.clique, track.device, devices.get(rank, -1)] = None
            if entry.source >= 0:
                found[entry.clique, devices.get(entry.source, -1), track.device] = None
    compared = (_compare(history, ranks[key[0]], *key) for key in found)
    return [pair for pair in compared if pair]


def _compare(
    history: History, devices: dict[int, int], clique: int, source: int, target: int
) -> Pair | None:
    sender, receiver = history.tracks.get(source), history.tracks.get(target)
    if sender is None or receiver is None:
        return None
    rank_of = {device: rank for rank, device in devices.items()}
    to, back = rank_of[target], rank_of[source]
    ours = [e for e in sender.permutes if e.clique == clique]
    if any(e.target_count > len(e.targets) for e in ours):
        return None  # a target that is not listed may be this one
    named = not history.run.programs_vary and all(
        e.identified for t in (sender, receiver) for e in t.permutes
    )
    if not (named or (sender.complete and receiver.complete)):
        return None
    sends = _messages(sender, clique, lambda e: to in e.targets, named)
    receives = _messages(receiver, clique, lambda e: e.source == back, named)
    aligned = _aligned(sends, receives, sender.complete, receiver.complete)
    if aligned is None:
        return None
    sends, receives = aligned
    both = min(len(sends), len(receives))
    differing = None
    for (name, sent), (other, received) in zip(sends, receives, strict=False):
        if name != other or sent.bytes != received.bytes or sent.other_line(received):
            differing = (sent, received)
            break
    return Pair(
        clique,
        source,
        target,
        differing,
        tuple(entry for _, entry in sends[both:]),
        tuple(entry for _, entry in receives[both:]),
    )


def _messages(
    track: Track, clique: int, belongs: Callable[[Entry], bool], named: bool
) -> list[Message]:
    entries = track.entries[track.whole_from :]
    cut = entries[0].run_id if entries and not track.complete else None
    seen: dict[tuple[int, int], int] = {}
    found: list[Message] = []
    for entry in entries:
        if entry.is_permute and entry.clique == clique and belongs(entry) and entry.run_id != cut:
            key = (entry.run_id, entry.op_id) if named else (0, 0)
            seen[key] = seen.get(key, -1) + 1
            found.append(((*key, seen[key]), entry))
    return found


def _aligned(
    sends: Sequence[Message], receives: Sequence[Message], all_sends: bool, all_receives: bool
) -> tuple[Sequence[Message], Sequence[Message]] | None:
    """Both sequences from their first common message on; None: it is not known which that is."""
    if all_sends and all_receives:
        return sends, receives
    if not sends or not receives:
        return None
    sent = [name for name, _ in sends]
    received = [name for name, _ in receives]
    if not all_receives and received[0] in sent:
        return sends[sent.index(received[0]) :], receives
    if not all_sends and sent[0] in received:
        return sends, receives[received.index(sent[0]) :]
    return None
