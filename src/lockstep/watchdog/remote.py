"""Asking the watchdogs of other hosts, and answering them: what is in the records there.

The engine carries the notes, between processes that have the job's key. One process of each host
answers for all of it, the dead ones too, whose records it has opened: where there is one, an agent
(`agent_network`), which is neither busy nor stopped with the program. A thread of its own
answers: the watchdog may be asking a process that is asking it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lockstep._stderr import complain
from lockstep._words import grouped, printable
from lockstep.engine import bindings
from lockstep.flight_recorder import run_records
from lockstep.job.topology import Peer
from lockstep.system.remote_clock import RemoteClock
from lockstep.watchdog import messages

TIMEOUT_SECONDS = 0.35
"""For an answer, and the connection before it; a process that gives none is not asked first again,
and another one of its host is asked. Both together are less than the engine gives the watchdog for
an answer of its own."""
_STACKS_TIMEOUT = 3.0
_POLL_SECONDS = 1.0
_SEND_SECONDS = 0.5
_END_SECONDS, _ENDS_SECONDS = 0.05, 1.0
"""The same for a message of a program that ends, to each process and to all."""
_CONNECT_POLL_SECONDS = 0.005
_FRESH_TIMES = 10
"""A scan's result is sent to further requesters for this many times as long as the scan took."""
_MAX_AT_ONCE = 1000
_MAX_END = 200
"""Letters of how a program has ended."""

_Packed = tuple[list[dict[str, Any]], bytes]
_Message = tuple[int, dict[str, Any], bytes, int]
"""The sender, head, body, and when it was received."""


@dataclass(frozen=True)
class Response:
    """What one process has answered."""

    head: Mapping[str, Any]
    body: bytes
    clock: RemoteClock
    """The clock of its host."""


@dataclass
class _Request:
    began: int
    processes: set[int]
    responses: dict[int, Response] = field(default_factory=dict)


class Post(Protocol):
    """What carries control messages between hosts: `lockstep.engine.bindings`."""

    def connect(self, process: int, /) -> bool | None: ...
    def is_connected(self, process: int, /) -> bool: ...
    def send_message(self, process: int, message: bytes, timeout: float, /) -> bool: ...
    def next_message(self, timeout: float, /) -> tuple[int, bytes] | None: ...
    def is_lost(self, process: int, /) -> bool: ...


@dataclass(frozen=True)
class LocalHost:
    """What this process can report of its own host."""

    processes: Callable[[int | None], Sequence[run_records.Process]]
    """All of the host; of how many entries of each device."""
    stacks: Callable[[int], str]
    """The Python stacks of one of them."""
    hurry: Callable[[], None]
    """Has the watchdog look for the lines of what its process has met."""


class RemoteHosts(threading.Thread):
    """Sends requests to the other hosts, and responds to theirs."""

    def __init__(
        self, peers: Sequence[Peer], process: int, local: LocalHost, post: Post = bindings
    ) -> None:
        """``peers`` are all that may answer, by their numbers, agents too."""
        super().__init__(name="lockstep-answers", daemon=True)
        here = peers[process].host_id
        self._local = local
        self._post = post
        self._hosts = grouped((peer.host_id, peer) for peer in peers if peer.host_id != here)
        # The processes of a host ask different ones of another.
        self._own_index = [p.process for p in peers if p.host_id == here].index(process)
        self._silent: set[int] = set()
        self._numbers = itertools.count()
        self._requests: dict[int, _Request] = {}
        self._changed = threading.Condition()
        self._packed: dict[int | None, tuple[int, _Packed]] = {}
        """What is sent again, and until when, by the number of entries."""
        self._now = time.monotonic_ns
        self._over = False
        self._has_failed = False
        self.left: dict[int, str] = {}
        """How programs of other hosts have ended, as they have said themselves."""

    # The end of a program

    def tell_end(self, how: str) -> None:
        """Tells the processes of other hosts, as far as they are connected, how this program ends.

        Its host may have no time to answer when they ask.
        """
        end, message = time.monotonic() + _ENDS_SECONDS, messages.pack({"kind": "left", "how": how})
        peers = itertools.chain.from_iterable(self._hosts.values())
        for process in [peer.process for peer in peers if peer.agent_of is None]:
            if self._post.is_connected(process) and time.monotonic() < end:
                self._post.send_message(process, message, _END_SECONDS)

    # Requests

    def scan(self, latest: int | None) -> tuple[list[run_records.Process], dict[int, RemoteClock]]:
        """The processes of other hosts that answered for, and the clocks of their hosts.

        ``latest`` is how many entries of each device are read; such a scan is a quick one, and asks
        the hosts alone to which there are connections.
        """
        waiting = {
            host: [p for p in peers if latest is None or self._post.is_connected(p.process)]
            for host, peers in self._hosts.items()
        }
        found: list[run_records.Process] = []
        clocks: dict[int, RemoteClock] = {}
        tried: set[int] = set()
        for _ in range(2):
            speakers = {host: self._speaker(peers, tried) for host, peers in waiting.items()}
            requested = {process: host for host, process in speakers.items() if process is not None}
            tried |= requested.keys()
            head = {"kind": "scan", "latest": latest}
            for process, response in self._request(requested, head, TIMEOUT_SECONDS).items():
                host = requested[process]
                del waiting[host]
                there = {peer.process for peer in self._hosts[host]}
                reports = [one for one in _processes(response) if one.index in there]
                clocks |= {one.index: response.clock for one in reports}
                found += reports
        return found, clocks

    def reaches(self, peer: Peer) -> bool:
        """Whether its host has a process left that can be asked."""
        return self._speaker(self._hosts[peer.host_id], set()) is not None

    def report_of(self, peer: Peer, timeout: float) -> run_records.Process | None:
        """What a process of its host reports of one process; None without an answer."""
        speaker = self._speaker(self._hosts[peer.host_id], set())
        requested = [] if speaker is None else [speaker]
        responses = self._request(requested, {"kind": "scan", "latest": 1}, timeout)
        reports = itertools.chain.from_iterable(map(_processes, responses.values()))
        return next((one for one in reports if one.index == peer.process), None)

    def stacks(self, peer: Peer) -> str:
        """The Python stacks of a process of another host; what is known without an answer."""
        # Best by another one of its host: it may be unable to answer.
        others = [p for p in self._hosts[peer.host_id] if p.process != peer.process]
        others.sort(key=lambda p: p.agent_of is None)
        requested = [p.process for p in (*others, peer)]
        able = [process for process in requested if not self._post.is_lost(process)]
        responsive = [process for process in able if process not in self._silent]
        for process in responsive[:2]:  # the first one may have died without our knowing
            responses = self._request(
                [process], {"kind": "stacks", "of": peer.process}, _STACKS_TIMEOUT
            )
            if process in responses:
                return responses[process].body.decode(errors="replace")
        return (
            f"No Python stacks: neither it nor another process of {peer.host_name} answers. It is "
            "stopped, or stuck in code that holds Python's lock, or its machine has stopped."
        )

    def hurry(self, processes: Iterable[int]) -> None:
        """Has those of them that are on other hosts write down the lines of what they have met."""
        peers = itertools.chain.from_iterable(self._hosts.values())
        remote = {peer.process for peer in peers if peer.agent_of is None}
        self._send_to_all(remote.intersection(processes), {"kind": "hurry"}, TIMEOUT_SECONDS)

    def _speaker(self, peers: Sequence[Peer], tried: set[int]) -> int | None:
        """The process of a host that is asked next; None when none is left."""
        able = [p.process for p in peers if not self._post.is_lost(p.process)]
        able = [process for process in able if process not in tried]
        responsive = [process for process in able if process not in self._silent] or able
        agents = [p.process for p in peers if p.agent_of is not None and p.process in responsive]
        best = agents or responsive
        return best[self._own_index % len(best)] if best else None

    def _request(
        self, processes: Iterable[int], head: dict[str, Any], timeout: float
    ) -> dict[int, Response]:
        end = time.monotonic() + timeout
        number = next(self._numbers)
        self._requests[number] = requested = _Request(self._now(), set(processes))
        sent = self._send_to_all(requested.processes, {**head, "number": number}, timeout)
        with self._changed:
            self._changed.wait_for(
                lambda: sent <= requested.responses.keys() or self._over,
                max(0.0, end - time.monotonic()),
            )
            del self._requests[number]
            self._silent |= requested.processes - requested.responses.keys()
        return requested.responses

    def _send_to_all(
        self, processes: Iterable[int], head: dict[str, Any], timeout: float
    ) -> set[int]:
        """Those to which it was sent. Where there are no connections yet, all are made at the same
        time."""
        end = time.monotonic() + timeout
        waiting, sent = set(processes), set[int]()
        while True:
            states = {process: self._post.connect(process) for process in waiting}
            sent |= {
                process for process in waiting if states[process] and self._send(process, head)
            }
            waiting = {process for process in waiting if states[process] is False}
            if not waiting or self._over or time.monotonic() >= end:
                return sent
            time.sleep(_CONNECT_POLL_SECONDS)

    def _send(self, process: int, head: dict[str, Any], body: bytes = b"") -> bool:
        return self._post.send_message(process, messages.pack(head, body), _SEND_SECONDS)

    # Responses

    def run(self) -> None:
        while not self._over:
            try:
                here = self._all_messages()
            except bindings.NoMoreMessages:
                break
            for message in _in_order(here):
                with self._forgiving(message[0]):
                    self._on_message(*message)

    def _all_messages(self) -> list[_Message]:
        """Those that are there, or the next one; none after a while."""
        found: list[_Message] = []
        wait = _POLL_SECONDS
        while len(found) < _MAX_AT_ONCE and (message := self._post.next_message(wait)) is not None:
            process, text = message
            received, wait = self._now(), 0.0
            with self._forgiving(process):
                found.append((process, *messages.unpack(text), received))
        return found

    @contextlib.contextmanager
    def _forgiving(self, process: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # The sender does without an answer. Printed once: it may fail with every message.
            if not self._has_failed:
                complain(f"a message of process {process}: {error!r}")
            self._has_failed = True

    def stop(self) -> bool:
        """Ends the thread; whether it has ended within two seconds."""
        self._over = True
        with self._changed:
            self._changed.notify_all()
        self.join(2 * _POLL_SECONDS)
        return not self.is_alive()

    def _on_message(
        self, process: int, head: Mapping[str, Any], body: bytes, received: int
    ) -> None:
        kind = head["kind"]
        if kind == "hurry":
            self._local.hurry()
        elif kind == "left":
            self.left[process] = printable(str(head["how"]), _MAX_END)
        elif kind == "scan":
            reports, records = self._scan_here(head["latest"])
            self._reply(process, head, received, {"processes": reports}, records)
        elif kind == "stacks":
            self._reply(process, head, received, {}, self._local.stacks(int(head["of"])).encode())
        elif kind == "answer":
            self._on_response(process, head, body, received)

    def _scan_here(self, latest: int | None) -> _Packed:
        """The processes of this host; many may ask at a time, and this process may be at work."""
        began = self._now()
        until, packed = self._packed.get(latest, (began, None))
        if packed is None or began >= until:
            packed = messages.pack_processes(self._local.processes(latest))
            cost = self._now() - began
            self._packed = {latest: (began + cost * (1 + _FRESH_TIMES), packed)}
        return packed

    def _reply(
        self,
        process: int,
        requested: Mapping[str, Any],
        received: int,
        reports: dict[str, Any],
        body: bytes,
    ) -> None:
        head = {"kind": "answer", "number": requested["number"], "asked": received, **reports}
        self._send(process, {**head, "answered": self._now()}, body)

    def _on_response(
        self, process: int, head: Mapping[str, Any], body: bytes, received: int
    ) -> None:
        with self._changed:
            self._silent.discard(process)
            requested = self._requests.get(head["number"])
            if requested is not None and process in requested.processes:
                clock = RemoteClock(
                    requested.began - int(head["asked"]), received - int(head["answered"])
                )
                requested.responses[process] = Response(head, body, clock)
                self._changed.notify_all()


def _in_order(here: Iterable[_Message]) -> list[_Message]:
    """Answers first; of like questions of one process only the last, the others are given up."""
    responses = [message for message in here if message[1].get("kind") == "answer"]
    requested = {
        (message[0], message[1].get("kind"), message[1].get("of")): message for message in here
    }
    return responses + [
        message for message in requested.values() if message[1].get("kind") != "answer"
    ]


def _processes(response: Response) -> list[run_records.Process]:
    with contextlib.suppress(Exception):  # of another version, say: as good as no answer
        return messages.unpack_processes(response.head["processes"], response.body)
    return []
