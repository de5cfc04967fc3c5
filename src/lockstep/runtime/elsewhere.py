"""Asking the watchers of other hosts, and answering them: what is in the records there.

The engine carries the notes, between processes that have the job's key. One process of each host
answers for all of it, the dead ones too, whose records it has opened. A thread of its own answers:
the watcher may be asking somebody who is asking it.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lockstep import _engine
from lockstep.record import run
from lockstep.runtime import notes
from lockstep.runtime.topology import Peer

PATIENCE_SECONDS = 0.5
"""For an answer; who gives none is not asked first again, and another one of its host is asked."""
_STACKS_PATIENCE = 3.0
_TURN_SECONDS = 1.0
_SEND_SECONDS = 0.5


@dataclass(frozen=True)
class Answer:
    """What one process has answered."""

    head: Mapping[str, Any]
    body: bytes
    clock: notes.Clock
    """Of its host."""


@dataclass
class _Asked:
    began: int
    answers: dict[int, Answer] = field(default_factory=dict)


class Post(Protocol):
    """What carries notes between hosts: `lockstep._engine`."""

    def send_note(self, process: int, note: bytes, timeout: float, /) -> bool: ...
    def next_note(self, timeout: float, /) -> tuple[int, bytes] | None: ...
    def is_lost(self, process: int, /) -> bool: ...


@dataclass(frozen=True)
class Local:
    """What this process can tell of its own host."""

    processes: Callable[[int | None], Sequence[run.Process]]
    """All of the host; of how many entries of each device."""
    stacks: Callable[[int], str]
    """The Python stacks of one of them."""
    wake: Callable[[], None]
    """Has the watcher look for the lines of what its process has met."""


class Elsewhere(threading.Thread):
    """Speaks for this process's host with the others."""

    def __init__(
        self, peers: Sequence[Peer], process: int, local: Local, post: Post = _engine
    ) -> None:
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
        self._over = False
        self._has_stumbled = False

    # Asking

    def look(self, latest: int | None) -> tuple[list[run.Process], dict[int, notes.Clock]]:
        """The processes of other hosts that answered for, and the clocks of their hosts.

        ``latest`` is how many entries of each device are looked at.
        """
        waiting = dict(self._hosts)
        found: list[run.Process] = []
        clocks: dict[int, notes.Clock] = {}
        for attempt in range(2):
            asked = {self._speaker(peers, attempt): host for host, peers in waiting.items()}
            head = {"kind": "look", "latest": latest}
            for process, answer in self._ask(asked, head, PATIENCE_SECONDS).items():
                host = asked[process]
                there = {peer.process for peer in waiting.pop(host)}
                told = [one for one in _processes(answer) if one.index in there]
                clocks |= {one.index: answer.clock for one in told}
                found += told
        return found, clocks

    def stacks(self, peer: Peer) -> str:
        """The Python stacks of a process of another host; what is known without an answer."""
        # Best by another one of its host: it may be unable to answer.
        others = [p.process for p in self._hosts[peer.host_id] if p is not peer]
        for process in [*others[:1], peer.process]:
            answers = self._ask([process], {"kind": "stacks", "of": peer.process}, _STACKS_PATIENCE)
            if process in answers:
                return answers[process].body.decode(errors="replace")
        return (
            f"No Python stacks: neither it nor another process of {peer.host_name} has answered "
            f"within {_STACKS_PATIENCE:g} s. It is stopped, or stuck in code that holds Python's "
            "lock, or its machine has stopped."
        )

    def hurry(self) -> None:
        """Has the others write down the lines of what they have met."""
        for peer in itertools.chain.from_iterable(self._hosts.values()):
            self._send(peer.process, {"kind": "hurry"})

    def _speaker(self, peers: Sequence[Peer], attempt: int) -> int:
        able = [p.process for p in peers if not self._post.is_lost(p.process)] or [peers[0].process]
        able.sort(key=lambda process: process in self._silent)
        talkative = [p for p in able if p not in self._silent] or able
        return talkative[(self._turn + attempt) % len(talkative)]

    def _ask(
        self, processes: Iterable[int], head: dict[str, Any], patience: float
    ) -> dict[int, Answer]:
        number = next(self._numbers)
        self._asked[number] = asked = _Asked(time.monotonic_ns())
        sent = {p for p in processes if self._send(p, {**head, "number": number})}
        with self._heard:
            self._heard.wait_for(lambda: sent <= asked.answers.keys() or self._over, patience)
            del self._asked[number]
            self._silent |= sent - asked.answers.keys()
        return asked.answers

    def _send(self, process: int, head: dict[str, Any], body: bytes = b"") -> bool:
        return self._post.send_note(process, notes.pack(head, body), _SEND_SECONDS)

    # Answering

    def run(self) -> None:
        while not self._over:
            try:
                note = self._post.next_note(_TURN_SECONDS)
            except _engine.NoMoreNotes:
                break
            if note is not None:
                self._take(*note)

    def _take(self, process: int, note: bytes) -> None:
        try:
            self._on_note(process, note, time.monotonic_ns())
        except Exception as error:
            # Who asks does without an answer. Once: what fails may do so with every note.
            if not self._has_stumbled:
                print(f"lockstep: a note of process {process}: {error!r}", file=sys.stderr)
            self._has_stumbled = True

    def stop(self) -> None:
        """Ends the thread, within a second."""
        self._over = True
        with self._heard:
            self._heard.notify_all()
        self.join(2 * _TURN_SECONDS)

    def _on_note(self, process: int, note: bytes, heard: int) -> None:
        head, body = notes.unpack(note)
        kind = head["kind"]
        if kind == "hurry":
            self._local.wake()
        elif kind == "look":
            told, records = notes.pack_processes(self._local.processes(head["latest"]))
            self._reply(process, head, heard, {"processes": told}, records)
        elif kind == "stacks":
            self._reply(process, head, heard, {}, self._local.stacks(int(head["of"])).encode())
        elif kind == "answer":
            self._on_answer(process, head, body, heard)

    def _reply(
        self, process: int, asked: Mapping[str, Any], heard: int, told: dict[str, Any], body: bytes
    ) -> None:
        head = {"kind": "answer", "number": asked["number"], "asked": heard, **told}
        self._send(process, {**head, "answered": time.monotonic_ns()}, body)

    def _on_answer(self, process: int, head: Mapping[str, Any], body: bytes, heard: int) -> None:
        with self._heard:
            self._silent.discard(process)
            asked = self._asked.get(head["number"])
            if asked is not None:
                clock = notes.Clock(asked.began - int(head["asked"]), heard - int(head["answered"]))
                asked.answers[process] = Answer(head, body, clock)
                self._heard.notify_all()


def _processes(answer: Answer) -> list[run.Process]:
    with contextlib.suppress(Exception):  # of another version, say: as good as no answer
        return notes.unpack_processes(answer.head["processes"], answer.body)
    return []
