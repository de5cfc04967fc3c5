"""What is asked of the hosts of a job before it starts, and what is known of each. Pure."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep._config import DEFAULT_CHECK_TIMEOUT
from lockstep.hosts.checks.address_choice import Choice
from lockstep.hosts.checks.ssh_errors import Failure


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user wants to run, and how the hosts are reached."""

    directory: str = ""
    """Where the processes will run; "": not asked, as by ``lockstep doctor``."""
    program: tuple[str, ...] = ()
    interface: str = ""
    port: int = 0
    """The port of JAX's coordination service on the first host; 0: any that is free."""
    collectives: str = "lockstep"
    platform: str = ""
    """That of ``--platform``."""
    ssh: str = "ssh"
    python: str = "python"
    version: str = ""
    """The version of this launcher's Lockstep."""
    lacking: frozenset[str] = frozenset()
    """The paths, of the directory and the program, that this machine does not have either."""
    answer_seconds: float = DEFAULT_CHECK_TIMEOUT
    """How long an agent may take for one answer."""
    srun: bool = False
    """Whether srun reaches the hosts; ``ssh`` is then its command."""

    @property
    def connect_seconds(self) -> float:
        """How long a connection to another host may take: a probe ends before its answer is due."""
        return 0.375 * self.answer_seconds


@dataclasses.dataclass(frozen=True)
class HostState:
    """What is known of one host; fields that were not asked for stay empty."""

    label: str
    name: str
    """What ssh takes."""
    processes: int = 1
    addresses: tuple[str, ...] = ()
    """Its addresses in the host file."""
    by_ssh: bool = True
    failure: Failure | None = None
    """Why it was not reached."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    clock_ahead: float = 0.0
    """Seconds by which its clock is ahead of the launcher's, less the way of the message."""
    choice: Choice = dataclasses.field(default_factory=Choice)
    listening: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    probed: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Label of another host -> the result of `network_probe.probe`; no other host was tried."""
    load: float = 0.0
    """The average number of runnable threads in the minute before the end of the probes."""
    cores: int = 0

    @property
    def is_loaded(self) -> bool:
        """Whether threads wait for a core there."""
        return self.load > self.cores

    @property
    def address(self) -> str:
        """The address that the job would use; "": there is none."""
        return str(self.listening.get("address", "")) or self.choice.address

    def there(self, request: Request, command: str) -> str:
        """What to type here, so that ``command`` runs on this host."""
        return f"{request.ssh} {shlex.quote(self.name)} {command}" if self.by_ssh else command

    def copied(self, request: Request, path: str) -> str:
        """What to type here, so that this host has ``path``, too.

        "" when it cannot be copied: to this very machine, or when this machine lacks it as well.
        """
        if not self.by_ssh or path.rstrip("/") in request.lacking:
            return ""
        if request.srun:  # which copies files alone, to all hosts of the allocation
            quoted = shlex.quote(path)
            return "" if path.endswith("/") else f"sbcast --force {quoted} {quoted}"
        ssh = "" if request.ssh == "ssh" else f" -e {shlex.quote(request.ssh)}"
        return f"rsync -a{ssh} {shlex.quote(path)} {self.name}:{shlex.quote(path)}"


def listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
