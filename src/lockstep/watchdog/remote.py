"""Asking the watchers of other hosts, and answering them: what is in the records there.

The engine carries the notes, between processes that have the job's key. One process of each host
answers for all of it, the dead ones too, whose records it has opened: where there is one, an agent
(`agent_network`), which is neither at work nor stopped with the others. A thread of its own
answers: the watchdog may be asking a process that is asking it.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lockstep.engine import bindings
from lockstep.flight_recorder import model
from lockstep.job.topology import Peer
from lockstep.watchdog import messages

PATIENCE_SECONDS = 0.35
"""For an answer; a process that gives none is not asked first again, and another one of its host is
asked. Both together are less than the engine gives the watcher for an answer of its own."""
_STACKS_PATIENCE = 3.0
_TURN_SECONDS = 1.0
_SEND_SECONDS = 0.5
_FRESH_TIMES = 10
"""What was read is told again for so many times as long as that took, when many ask at a time:
records may be read at any moment, each at its own."""
_MAX_AT_ONCE = 1000

_Packed = tuple[list[dict[str, Any]], bytes]
_Note = tuple[int, dict[str, Any], bytes, int]
"""The sender, head, body, and when it was received."""


@dataclass(frozen=True)
class Answer:
    """What one process has answered."""

    head: Mapping[str, Any]
    body: bytes
    clock: messages.Clock
    """Of its host."""


@dataclass
class _Asked:
    began: int
    processes: set[int]
    answers: dict[int, Answer] = field(default_factory=dict)


class Post(Protocol):
    """What carries notes between hosts: `lockstep.engine.bindings`."""

    def send_note(self, process: int, note: bytes, timeout: float, /) -> bool: ...
    def next_note(self, timeout: float, /) -> tuple[int, bytes] | None: ...
    def is_lost(self, process: int, /) -> bool: ...


@dataclass(frozen=True)
class Local:
    """What this process can tell of its own host."""

    processes: Callable[[int | None], Sequence[model.Process]]
    """All of the host; of how many entries of each device."""
    stacks: Callable[[int], str]
    """The Python stacks of one of them."""
    hurry: Callable[[], None]
    """Has the watcher look for the lines of what its process has met."""


class Elsewhere(threading.Thread):
    """Speaks for this process's host with the others."""

    def __init__(
        self, peers: Sequence[Peer], process: int, local: Local, post: Post = bindings
    ) -> None:
        """``peers`` are all that may answer, by their numbers, agents too."""
        super().__init__(name="lockstep-answers", daemon=True)
        here = peers[process].host_id
        self._local = local
        self._post = post
        self._hosts: dict[str, list[Peer]] = {}
        for peer in peers:
            if peer.host_id != here:
                self._hosts.setdefault(peer.host_id, []).append(peer)
        # The processes of a host ask different ones of another.
        self._turn = [p.process for p in peers if p.host_id == here].index(process)
        self._silent: set[int] = set()
        self._numbers = itertools.count()
        self._asked: dict[int, _Asked] = {}
        self._heard = threading.Condition()
        self._packed: dict[int | None, tuple[int, _Packed]] = {}
        """By how many entries: until when it is told again, and what."""
        self._now = time.monotonic_ns
        self._over = False
        self._has_stumbled = False

    # Asking

    def look(self, latest: int | None) -> tuple[list[model.Process], dict[int, messages.Clock]]:
        """The processes of other hosts that answered for, and the clocks of their hosts.

        ``latest`` is how many entries of each device are looked at.
        """
        waiting = dict(self._hosts)
        found: list[model.Process] = []
        clocks: dict[int, messages.Clock] = {}
        tried: set[int] = set()
        for _ in range(2):
            speakers = {host: self._speaker(peers, tried) for host, peers in waiting.items()}
            asked = {process: host for host, process in speakers.items() if process is not None}
            tried |= asked.keys()
            head = {"kind": "look", "latest": latest}
            for process, answer in self._ask(asked, head, PATIENCE_SECONDS).items():
                there = {peer.process for peer in waiting.pop(asked[process])}
                told = [one for one in _processes(answer) if one.index in there]
                clocks |= {one.index: answer.clock for one in told}
                found += told
        return found, clocks

    def reaches(self, peer: Peer) -> bool:
        """Whether its host has a process left that can be asked."""
        return self._speaker(self._hosts[peer.host_id], set()) is not None

    def told_of(self, peer: Peer, patience: float) -> model.Process | None:
        """What a process of its host reports of one process; None without an answer."""
        speaker = self._speaker(self._hosts[peer.host_id], set())
        asked = [] if speaker is None else [speaker]
        answers = self._ask(asked, {"kind": "look", "latest": 1}, patience)
        told = itertools.chain.from_iterable(map(_processes, answers.values()))
        return next((one for one in told if one.index == peer.process), None)

    def stacks(self, peer: Peer) -> str:
        """The Python stacks of a process of another host; what is known without an answer."""
        # Best by another one of its host: it may be unable to answer.
        others = [p for p in self._hosts[peer.host_id] if p.process != peer.process]
        others.sort(key=lambda p: p.keeps is None)
        asked = [p.process for p in (*others, peer)]
        able = [process for process in asked if not self._post.is_lost(process)]
        talkative = [process for process in able if process not in self._silent]
        for process in talkative[:1]:
            answers = self._ask([process], {"kind": "stacks", "of": peer.process}, _STACKS_PATIENCE)
            if process in answers:
                return answers[process].body.decode(errors="replace")
        return (
            f"No Python stacks: neither it nor another process of {peer.host_name} answers. It is "
            "stopped, or stuck in code that holds Python's lock, or its machine has stopped."
        )

    def hurry(self) -> None:
        """Has the others write down the lines of what they have met."""
        for peer in itertools.chain.from_iterable(self._hosts.values()):
            if peer.keeps is None:
                self._send(peer.process, {"kind": "hurry"})

    def _speaker(self, peers: Sequence[Peer], tried: set[int]) -> int | None:
        """The process of a host that is asked next; None when none is left."""
        able = [p.process for p in peers if not self._post.is_lost(p.process)]
        able = [process for process in able if process not in tried]
        talkative = [process for process in able if process not in self._silent] or able
        agents = [p.process for p in peers if p.keeps is not None and p.process in talkative]
        best = agents or talkative
        return best[self._turn % len(best)] if best else None

    def _ask(
        self, processes: Iterable[int], head: dict[str, Any], patience: float
    ) -> dict[int, Answer]:
        number = next(self._numbers)
        self._asked[number] = asked = _Asked(self._now(), set(processes))
        sent = {p for p in asked.processes if self._send(p, {**head, "number": number})}
        with self._heard:
            self._heard.wait_for(lambda: sent <= asked.answers.keys() or self._over, patience)
            del self._asked[number]
            self._silent |= sent - asked.answers.keys()
        return asked.answers

    def _send(self, process: int, head: dict[str, Any], body: bytes = b"") -> bool:
        return self._post.send_note(process, messages.pack(head, body), _SEND_SECONDS)

    # Answering

    def run(self) -> None:
        while not self._over:
            try:
                notes_here = self._all_notes()
            except bindings.NoMoreNotes:
                break
            for note in _in_order(notes_here):
                with self._forgiving(note[0]):
                    self._on_note(*note)

    def _all_notes(self) -> list[_Note]:
        """Those that are there, or the next one; none after a while."""
        found: list[_Note] = []
        wait = _TURN_SECONDS
        while len(found) < _MAX_AT_ONCE and (note := self._post.next_note(wait)) is not None:
            process, text = note
            heard, wait = self._now(), 0.0
            with self._forgiving(process):
                found.append((process, *messages.unpack(text), heard))
        return found

    @contextlib.contextmanager
    def _forgiving(self, process: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # The sender does without an answer. Printed once: it may fail with every message.
            if not self._has_stumbled:
                print(f"lockstep: a note of process {process}: {error!r}", file=sys.stderr)
            self._has_stumbled = True

    def stop(self) -> bool:
        """Ends the thread; whether it has ended within two seconds."""
        self._over = True
        with self._heard:
            self._heard.notify_all()
        self.join(2 * _TURN_SECONDS)
        return not self.is_alive()

    def _on_note(self, process: int, head: Mapping[str, Any], body: bytes, heard: int) -> None:
        kind = head["kind"]
        if kind == "hurry":
            self._local.hurry()
        elif kind == "look":
            told, records = self._look_here(head["latest"])
            self._reply(process, head, heard, {"processes": told}, records)
        elif kind == "stacks":
            self._reply(process, head, heard, {}, self._local.stacks(int(head["of"])).encode())
        elif kind == "answer":
            self._on_answer(process, head, body, heard)

    def _look_here(self, latest: int | None) -> _Packed:
        """What this host has to tell; many may ask at a time, and this process may be at work."""
        began = self._now()
        until, packed = self._packed.get(latest, (began, None))
        if packed is None or began >= until:
            packed = messages.pack_processes(self._local.processes(latest))
            cost = self._now() - began
            self._packed = {latest: (began + cost * (1 + _FRESH_TIMES), packed)}
        return packed

    def _reply(
        self, process: int, asked: Mapping[str, Any], heard: int, told: dict[str, Any], body: bytes
    ) -> None:
        head = {"kind": "answer", "number": asked["number"], "asked": heard, **told}
        self._send(process, {**head, "answered": self._now()}, body)

    def _on_answer(self, process: int, head: Mapping[str, Any], body: bytes, heard: int) -> None:
        with self._heard:
            self._silent.discard(process)
            asked = self._asked.get(head["number"])
            if asked is not None and process in asked.processes:
                clock = messages.Clock(
                    asked.began - int(head["asked"]), heard - int(head["answered"])
                )
                asked.answers[process] = Answer(head, body, clock)
                self._heard.notify_all()


def _in_order(here: Iterable[_Note]) -> list[_Note]:
    """Answers first; of like questions of one process only the last, the others are given up."""
    answers = [note for note in here if note[1].get("kind") == "answer"]
    asked = {(note[0], note[1].get("kind"), note[1].get("of")): note for note in here}
    return answers + [note for note in asked.values() if note[1].get("kind") != "answer"]


def _processes(answer: Answer) -> list[model.Process]:
    with contextlib.suppress(Exception):  # of another version, say: as good as no answer
        return messages.unpack_processes(answer.head["processes"], answer.body)
    return []
