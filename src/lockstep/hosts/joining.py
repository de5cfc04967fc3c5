"""Hosts that join a job without a number: which number each gets, and what keeps one out. Pure.

``lockstep worker --nnodes MIN:MAX`` is started by hand, or by a fleet of spot machines, on each
host. The agent on the host of the coordinator's address has the supervisor and number 0; the others
get theirs in the order in which they come. A number names an agent, not the processes of its host:
those go by seats (`membership`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping

from lockstep._config import Config
from lockstep.bootstrap import cluster_env
from lockstep.hosts.checks import facts
from lockstep.hosts.node_range import NodeRange

MAX_SPARES = 64
"""Hosts that may wait beside those that a job uses."""
NAME = "hosts that join"
"""What the supervisor proves to be, with the job's key."""
OTHER_SECONDS = 10.0
"""How long a listener with another key may stay, that of a job that ends."""
ALONE = {"local_process_id": 0, "local_num_processes": 1}
"""The place of a process on a host that joins."""


def joins(config: Config, asked: NodeRange | None, environ: Mapping[str, str]) -> bool:
    """Whether this host gets its number by joining: neither a variable nor a launcher has one.

    Raises `LaunchError` for variables that contradict each other.
    """
    has_number = config.process_id is not None or config.num_processes is not None
    if not asked or not config.coordinator or has_number or config.run_dir:
        return False
    return cluster_env.detect(environ) is None and cluster_env.missing(environ) is None


def without_number(config: Config, nodes: NodeRange) -> Config:
    """``config`` of a host that joins: one process of any of these nodes."""
    most = nodes.most + MAX_SPARES
    return dataclasses.replace(config, num_processes=most, **ALONE)


class Wait:
    """How long an agent tries to reach the supervisor, in seconds of any clock."""

    def __init__(self, address: str, is_local: bool, seconds: float, now: float) -> None:
        """``is_local``: the address is one of this host; ``seconds``: 0 for no limit."""
        self._address, self._is_local, self._seconds = address, is_local, seconds
        self._end = now + (seconds or float("inf"))

    def over(self, error: OSError, now: float) -> str:
        """Why it does not try again; "": it does."""
        is_other = isinstance(error, PermissionError)
        if is_other or self._is_local:  # else this host would listen
            self._end = min(self._end, now + OTHER_SECONDS)
        if now < self._end:
            return ""
        start = f"this host has not joined the job at {self._address}: {error}."
        if is_other:
            return (
                f"{start} What listens there has another key, or is of another job: give all hosts "
                "the same LOCKSTEP_KEY_FILE, and each job a port of its own."
            )
        if self._is_local:
            return (
                f"{start} Another program has this port (ss -ltnp shows it): give all hosts "
                "another LOCKSTEP_COORDINATOR."
            )
        return (
            f"{start} None of this host's addresses is that of LOCKSTEP_COORDINATOR, so another "
            f"host has to begin the job, and has not within {self._seconds:g} s (--start-timeout). "
            "Does the same command run there, and does a firewall let the port pass?"
        )


class Numbers:
    """Which host had each number last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._hosts: dict[int, str] = {}

    def take(self, number: int, host: str) -> None:
        self._hosts[number] = host

    def free(self, host: str, taken: Container[int]) -> int | None:
        """That of ``host`` where it comes back, else the first free one; None: there is none.

        Number 0 is that of the supervisor's own host.
        """
        free = [number for number in range(1, self._size) if number not in taken]
        own = [number for number in free if self._hosts.get(number) == host]
        return next(iter(own + free), None)


def same_on_all(nodes: NodeRange | None) -> dict[str, str]:
    """What has to be equal on all hosts of a job: versions, and the range of nodes."""
    return facts.versions() | ({"--nnodes": str(nodes)} if nodes else {})


def difference(own: Mapping[str, str], there: Mapping[str, str]) -> str:
    """What differs on a host that wants to join; "": nothing."""
    parts = [
        f"{name} {there.get(name) or '(none)'}, and the host of process 0 has {value or '(none)'}"
        for name, value in own.items()
        if there.get(name) != value
    ]
    return f"it has {'; '.join(parts)}" if parts else ""
