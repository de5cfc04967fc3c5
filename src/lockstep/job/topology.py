"""Which processes there are and which hosts they sit on, from the record of each.

Pure: `lockstep.bootstrap.engine_start` exchanges the records, this module draws the conclusions.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import typing
from collections.abc import Sequence
from typing import Any

from lockstep._errors import InitializationError


@dataclasses.dataclass(frozen=True)
class Peer:
    """What one process publishes of itself."""

    process: int
    pid: int
    host_id: str
    """Processes that agree in it can share memory."""
    host_name: str
    cpus: tuple[int, ...]
    engine: str = "not said"
    """Its version and functions: those that use it together have to have the same."""
    encryption: bool = True
    """Whether it encrypts what it sends to other hosts: all have to, or none."""
    connections: int = 1
    """How many it opens to each process of another host: the same in all."""
    algorithms: str = ""
    """Which algorithms it prescribes between hosts: all have to prescribe the same."""
    transport: str = "tcp"
    """What carries its data to other hosts: the same in all."""
    random: str = ""
    """Drawn for each job, so that no record of another job is like this one."""
    key_problem: str = ""
    """Why its key file is of no use."""
    address: str = ""
    """From which it reaches JAX's coordination service. Only with a key, and so is the next."""
    network: str = ""
    """Processes that agree in it reach each other by loopback addresses."""
    agent: int = 0
    """The pid of its agent, 0 without one: see `lockstep.hosts.worker_agent`."""
    agent_of: int | None = None
    """For an agent: the process whose agent it is. None for a process."""

    @property
    def label(self) -> str:
        if self.agent_of is not None:
            return f"the agent of process {self.agent_of} (pid {self.pid} on {self.host_name})"
        return f"process {self.process} (pid {self.pid} on {self.host_name})"

    @classmethod
    def from_fields(cls, values: Any) -> Peer:
        """The record whose `dataclasses.asdict` is ``values``, which another process has published.

        Raises `InitializationError` for anything else.
        """
        expected = typing.get_type_hints(cls)
        if not isinstance(values, dict) or values.keys() != expected.keys():
            raise InitializationError(
                "the record of a process in JAX's key-value store is not in the form of this "
                "version of Lockstep. Do all processes have the same version?"
            )
        values = {**values, "cpus": _cpus(values["cpus"])}
        for name, kind in expected.items():
            kind = tuple if name == "cpus" else kind
            value = values[name]
            if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
                raise InitializationError(f"the record of a process has {name}={value!r:.100}.")
            if isinstance(value, int) and not 0 <= value < 1 << 31:
                raise InitializationError(f"the record of a process has {name}={value}.")
        return cls(**values)


def _cpus(values: Any) -> Any:
    if isinstance(values, list | tuple) and all(isinstance(each, int) for each in values):
        return tuple(values)
    return values  # which is no tuple, and so refused


def this_process(process: int, host_id: str | None, engine: str, agent: int = 0) -> Peer:
    """The record of the calling process; ``host_id`` overrides what the system says."""
    return Peer(
        process=process,
        pid=os.getpid(),
        host_id=host_id or system_host_id(),
        host_name=platform.node(),
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        engine=engine,
        agent=agent,
    )


def system_host_id() -> str:
    """The same in processes that can share memory."""
    # Two containers of one machine have the same boot id, but cannot open each other's files in
    # /proc, which is how the shared memory is passed on.
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}/{os.getuid()}"


def host_names(peers: Sequence[Peer]) -> list[str]:
    """One name per host, in order of the first process on each."""
    first: dict[str, str] = {}
    for peer in peers:
        first.setdefault(peer.host_id, peer.host_name)
    return list(first.values())


def host_numbers(peers: Sequence[Peer]) -> list[int]:
    """A number of the host of each process, in order of the first process on each."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(peer.host_id, len(numbers)) for peer in peers]


def agents(peers: Sequence[Peer]) -> list[Peer]:
    """The agents in the network between hosts, numbered behind the processes: of each host that
    has any that of the first."""
    first: dict[str, Peer] = {}
    for peer in peers:
        if peer.agent:
            first.setdefault(peer.host_id, peer)
    return [
        dataclasses.replace(peer, process=len(peers) + i, pid=peer.agent, agent_of=peer.process)
        for i, peer in enumerate(first.values())
    ]


def share_of_cores(peers: Sequence[Peer], process: int) -> tuple[int, bool]:
    """(cores for one process, whether its host has more processes than cores)."""
    own = peers[process]
    neighbours = [peer for peer in peers if peer.host_id == own.host_id]
    cores = set().union(*(peer.cpus for peer in neighbours))
    shared = any(set(own.cpus) & set(p.cpus) for p in neighbours if p is not own)
    count = len(cores) // len(neighbours) if shared else len(own.cpus)
    return max(1, count), len(neighbours) > len(cores)
