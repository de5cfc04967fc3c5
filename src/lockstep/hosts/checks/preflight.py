"""Judges what is known of the hosts of a job before anything starts. Pure.

`host_check` asks the hosts. Each check gives a `Finding` as ``lockstep doctor`` shows it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from lockstep._finding import OK, PROBLEM, STATUSES, Finding, problem
from lockstep._words import counted
from lockstep.hosts.checks import gpu_findings
from lockstep.hosts.checks import host_findings as each_host
from lockstep.hosts.checks.network_findings import check_network
from lockstep.hosts.checks.request import HostState, Request

Findings = Mapping[str, Sequence[Finding]]
"""Label of a host -> its findings."""

_CHECKS = (
    each_host.check_lockstep,
    each_host.check_python,
    functools.partial(each_host.check_package, "jax"),
    functools.partial(each_host.check_package, "jaxlib"),
    each_host.check_directory,
    each_host.check_program,
    each_host.check_disk,
    each_host.check_memory,
    each_host.check_files,
    each_host.check_clock,
    each_host.check_host_name,
    each_host.check_address,
    each_host.check_port,
)


def check(hosts: Sequence[HostState], request: Request) -> dict[str, list[Finding]]:
    """All findings of each host, by its label."""
    reached = [host for host in hosts if not host.failure]
    network = check_network(reached, request)
    found: dict[str, list[Finding]] = {}
    for host in hosts:
        if host.failure:
            found[host.label] = [problem(*host.failure)]
        else:
            judged = (judge(host, reached, request) for judge in _CHECKS)
            own = [finding for finding in judged if finding]
            own += gpu_findings.check(host, reached, request)
            found[host.label] = own + network.get(host.label, [])
    return found


def with_problems(found: Findings) -> list[str]:
    """The labels of the hosts on which the job cannot start."""
    return [label for label, own in found.items() if any(f.status == PROBLEM for f in own)]


def first_problem(own: Sequence[Finding]) -> str:
    """The first problem of a host in one line; "": it has none."""
    bad = (each for each in own if each.status == PROBLEM)
    return next((f"{each.name} {each.found} (fix: {each.fix})" for each in bad), "")


def table(found: Findings) -> str:
    """All warnings and problems, host by host, each with its fix; "" when there are none."""
    bad = [(label, f) for label, own in found.items() for f in own if f.status != OK]
    if not bad:
        return ""
    width = max(len(label) for label, _ in bad)
    names = max(len(finding.name) for _, finding in bad)
    statuses = max(map(len, STATUSES))
    lines = []
    last = ""
    for label, finding in bad:
        # A host's name stands in the first of its rows.
        head = f"  {label if label != last else '':{width}}  {finding.status:{statuses}}  "
        lines.append(f"{head}{finding.name:{names}}  {finding.found}")
        lines.append(f"{' ' * (len(head) + names)}  fix: {finding.fix}")
        last = label
    return "\n".join(lines)


def headline(found: Findings) -> str:
    """Why nothing has started."""
    bad = with_problems(found)
    problems = sum(f.status == PROBLEM for own in found.values() for f in own)
    return (
        f"nothing was started: {counted(problems, 'problem')} on {len(bad)} of "
        f"{counted(len(found), 'host')}"
    )
