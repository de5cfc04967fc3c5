"""The hosts of ``lockstep bench --hosts``: how jobs are started there, and the links between."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep._errors import ConfigError
from lockstep._finding import PROBLEM
from lockstep.doctor import hosts as doctor_hosts
from lockstep.hosts import host_list
from lockstep.hosts.host_list import Placed
from lockstep.launch import hosts_command

if TYPE_CHECKING:
    from rich.console import Console


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The first hosts of those that the user has named, and what each runs."""

    words: tuple[str, ...]
    """The options of ``lockstep run`` that name all of them."""
    placed: tuple[Placed, ...]

    @property
    def processes(self) -> int:
        return sum(each.count for each in self.placed)

    @property
    def count(self) -> int:
        return len(self.placed)

    @property
    def even(self) -> bool:
        """Whether all run equally many processes."""
        return len({each.count for each in self.placed}) == 1

    def first(self, count: int) -> Hosts:
        """The first of these: ``-n`` fills the slots host by host."""
        return Hosts(self.words, self.placed[:count])

    def labels(self) -> list[str]:
        return host_list.labels([each.host for each in self.placed])


def of(args: argparse.Namespace) -> Hosts | None:
    """The hosts of the command line; None: this machine. Raises `ConfigError`."""
    if not (args.hosts or args.hostfile):
        for option in ("host_counts", "gbit"):
            if getattr(args, option) is not None:
                raise ConfigError(f"--{option.replace('_', '-')} is for --hosts or --hostfile.")
        return None
    placed = host_list.place(hosts_command.hosts_of(args), args.processes)
    # The directory of here need not be on the hosts, and the processes use none.
    words = ["--chdir", "/", "--ssh", shlex.join(args.ssh), "--interface", args.interface]
    for name in ("hosts", "hostfile", "python"):
        if value := getattr(args, name):
            words += [f"--{name}", value]
    for name in ("reach_timeout", "check_timeout"):
        if value := getattr(args, name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    for count in args.host_counts or ():
        if not 2 <= count <= len(placed):
            raise ConfigError(f"--host-counts {count}: there are 2 to {len(placed)} hosts.")
    return Hosts(tuple(words), tuple(placed))


def counts(args: argparse.Namespace, hosts: Hosts) -> list[int]:
    """How many hosts each part of the run measures: all in the end."""
    return sorted({*(args.host_counts or ()), hosts.count})


def measure_links(args: argparse.Namespace, console: Console) -> doctor_hosts.Measured | None:
    """What `lockstep doctor --hosts` measures of each pair; None, with the findings shown, where a
    host has a problem. Raises `LockstepError`."""
    from lockstep.doctor import report

    areas, measured = doctor_hosts.examine(args)
    bad = [(area, own) for area, own in areas if any(finding.status == PROBLEM for finding in own)]
    for area, findings in bad:
        report.show_area(area, findings, console)
    return None if bad else measured


def line(gbit: float | None, pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The rate of a host's link: as given, else the slowest pair's; None: not known."""
    if gbit is not None:
        return {"bytes_per_second": gbit * 1e9 / 8, "source": "given"}
    rates = [pair["bandwidth"] for pair in pairs if pair["bandwidth"]]
    return {"bytes_per_second": min(rates), "source": "measured"} if rates else None
