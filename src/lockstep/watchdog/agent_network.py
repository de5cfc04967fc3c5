"""An agent in the network between hosts, which responds to the watchdogs of other hosts.

Each process that ``lockstep worker`` started has an agent (`agent.agent`). Where there are several
hosts, that of the first such process of each becomes a member of the engine's network, behind the
processes, without a device. It answers for its host as a process would (`remote`), and goes on when
the processes cannot. Its program, which has met the others, sends it their addresses over an
inherited socket, and a socket to listen on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep import _config
from lockstep._stderr import complain
from lockstep.engine import bindings
from lockstep.engine.options import Network, Options
from lockstep.job import topology
from lockstep.job.topology import Peer
from lockstep.system import fd_limit
from lockstep.watchdog import query_server
from lockstep.watchdog.artifacts import Artifacts
from lockstep.watchdog.record_reader import Records, on_one_clock
from lockstep.watchdog.remote import LocalHost, RemoteHosts

_SEND_SECONDS = 10.0


# The program's side


@functools.cache
def _line() -> socket.socket | None:
    """To the agent; None without one."""
    fd = _config.current().agent
    if fd is None:
        return None
    os.set_inheritable(fd, False)
    line = socket.socket(fileno=fd)
    line.settimeout(_SEND_SECONDS)
    return line


def has_agent() -> bool:
    """Whether this process has an agent."""
    return _line() is not None


def hand_over(peers: Sequence[Peer], agent: Peer, nonce: int, network: Network) -> None:
    """Has the agent join the network; its listener is handed over, not the number of it."""
    labels = [peer.label for peer in (*peers, *topology.agents(peers))]
    values = {
        "kind": "join",
        "process": agent.process,
        "labels": labels,
        "agents": len(labels) - len(peers),
        "nonce": nonce,
        "addresses": network.addresses,
        "hosts": network.hosts,
        "key": network.key.hex(),
        "tls_library": network.tls_library,
        "encrypt": network.encrypt,
    }
    _send(values, [network.listener])


def publish_artifacts(peers: Sequence[Peer], agent: Peer, artifacts: Sequence[Artifacts]) -> None:
    """Sends the agent the artifacts of the processes of its host."""
    published = {
        peer.process: dataclasses.asdict(artifacts[peer.process])
        for peer in peers
        if peer.host_id == agent.host_id
    }
    members = [dataclasses.asdict(peer) for peer in (*peers, *topology.agents(peers))]
    _send({"kind": "answer", "process": agent.process, "peers": members, "artifacts": published})


def _send(values: dict[str, Any], handed: Sequence[int] = ()) -> None:
    line = _line()
    assert line is not None
    text = json.dumps(values).encode() + b"\n"
    # Without an agent that listens the job goes on: its parent is about to end, and it with it.
    with contextlib.suppress(OSError):
        sent = socket.send_fds(line, [text], list(handed))
        line.sendall(text[sent:])


# The agent's side


class AgentNetwork:
    """What the agent does for the watchdogs of other hosts, in threads of its own."""

    def __init__(self, line: socket.socket, folder: Path) -> None:
        """``folder`` is the private directory of this host's processes."""
        self._line = line
        self._folder = folder
        self._others: list[int] = []
        """The processes of other hosts, once it is in the network."""
        self._answers: RemoteHosts | None = None
        self._records: Records | None = None
        threading.Thread(target=self._receive, name="lockstep-agent", daemon=True).start()

    @property
    def knows_others(self) -> bool:
        """Whether it is in the network."""
        return bool(self._others)

    def meet_others(self) -> None:
        """Has connections made to all processes of other hosts: it learns when they have ended."""
        for process in self._others:
            bindings.connect(process)

    def others_have_ended(self) -> bool:
        """Whether all processes of other hosts have, as far as it knows; see `meet_others`."""
        return all(bindings.is_lost(p) or bindings.has_left(p) for p in self._others)

    def leave(self) -> None:
        if self._others:
            bindings.leave(bindings.Leaving.ENDED)

    def _receive(self) -> None:
        text, received = b"", []
        while True:
            data, more, _, _ = socket.recv_fds(self._line, 1 << 16, 1)
            if not data:
                return
            text += data
            received += more
            while b"\n" in text:
                one, _, text = text.partition(b"\n")
                try:
                    self._do(json.loads(one), received)
                except Exception as error:
                    complain(f"the agent of a process: {error}")

    def _do(self, values: dict[str, Any], received: list[int]) -> None:
        if values["kind"] == "join":
            self._join(values, received.pop(0))
        else:
            self._answer(values)

    def _join(self, values: dict[str, Any], listener: int) -> None:
        self._stop()
        addresses = values["addresses"]
        network = Network(
            addresses,
            [0] * len(addresses),
            values["hosts"],
            listener,
            bytes.fromhex(values["key"]),
            values["tls_library"],
            values["encrypt"],
        )
        try:
            fd_limit.make_room_in_agent(len(values["labels"]))
            arena = bindings.create_arena(values["nonce"])
            try:
                bindings.start(_options(values, arena, network))
            finally:
                os.close(arena)
        finally:
            os.close(listener)

    def _answer(self, values: dict[str, Any]) -> None:
        members = [Peer.from_fields(peer) for peer in values["peers"]]
        own = members[values["process"]]
        peers = [peer for peer in members if peer.agent_of is None]
        artifacts = {
            int(process): Artifacts(**published)
            for process, published in values["artifacts"].items()
        }
        records = self._records = Records(peers, own, artifacts)
        local = LocalHost(lambda latest: records.of_host((), latest), records.stacks, lambda: None)
        self._answers = RemoteHosts(members, own.process, local)
        self._answers.start()
        if not self._others:
            with contextlib.suppress(OSError):
                query_server.QueryServer(self._folder, self._scan_remote).start()
        self._others = [peer.process for peer in peers if peer.host_id != own.host_id]

    def _scan_remote(self) -> bytes:
        assert self._answers
        assert self._records
        there, clocks = self._answers.scan(None)
        error = 2 * max((clock.error for clock in clocks.values()), default=0)
        here = self._records.of_host((), 1)
        return query_server.pack(list(on_one_clock(here, there, clocks)), error)

    def _stop(self) -> None:
        """JAX has made other backends: these records are of earlier ones."""
        if self._answers and self._answers.stop() and self._records:
            self._records.close()
        self._answers = None


def _options(values: dict[str, Any], arena: int, network: Network) -> Options:
    """The options of a member without devices, which records nothing and waits for no process."""
    return Options(
        process=values["process"],
        labels=values["labels"],
        agents=values["agents"],
        arena_fd=arena,
        nonce=values["nonce"],
        timeout_seconds=0.0,
        cores=1,
        oversubscribed=False,
        device_id_bytes=0,
        no_members="",
        check_programs=False,
        strict=False,
        record=False,
        recorder=None,
        host="",
        attempt=0,
        single_copy=False,
        network=network,
    )
