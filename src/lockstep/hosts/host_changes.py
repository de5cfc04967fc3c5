"""What is said of the hosts of a job when it starts again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from lockstep._words import counted, processes
from lockstep.hosts.checks import preflight
from lockstep.hosts.host_list import Host
from lockstep.hosts.membership import Change, Membership
from lockstep.processes.job_spec import HostChanges


def described(
    changes: Sequence[Change], own: Membership, problems: preflight.Findings = MappingProxyType({})
) -> list[str]:
    """What the user is told of the hosts of the next attempt."""
    ranks = {placed.host: placed.processes for placed in own.places}
    lines = [
        f"{each.host.label} takes the place of {each.gone.label}, which was lost, with "
        f"{processes(ranks[each.host])}"
        for each in changes
        if each.host != each.gone
    ]
    if not own.is_full():
        count = sum(map(len, ranks.values()))
        hosts = f"{counted(len(own.in_use), 'host')}, {counted(count, 'process')}"
        absent = ", ".join(each.label for each in own.absent)
        without = f"\n{preflight.table(problems)}" if problems else f" {absent}"
        lines.append(f"going on with {hosts}, without{without}")
    return lines


def summed_up(before: Sequence[Host], changes: Sequence[Change], own: Membership) -> HostChanges:
    """The same for the account of restarts; ``before``: the hosts of the last attempt."""
    return HostChanges(
        tuple(each.label for each in before if each not in own.in_use),
        tuple((each.gone.label, each.host.label) for each in changes if each.host != each.gone),
        len(own.in_use),
        own.seats,
    )
