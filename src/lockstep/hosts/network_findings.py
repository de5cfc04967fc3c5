"""Which hosts reach each other, and why not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep._finding import Finding, ok, problem
from lockstep._words import format_seconds
from lockstep.hosts import network_probe
from lockstep.hosts.address_choice import shown
from lockstep.hosts.host_state import HostState, Request, listed

_CAUSES = {
    network_probe.TIMEOUT: "nothing answers in time: a firewall on one of them or between them",
    network_probe.UNREACHABLE: "they are on different networks, or a firewall forbids it",
    network_probe.REFUSED: "connections are refused: a firewall rejects them, or the address is "
    "another machine's",
    network_probe.FOREIGN: "another machine answers at this address; several hosts may have it, as "
    "they have the bridge of their containers",
    network_probe.BROKEN: "connections break",
}


def check_network(host: HostState, hosts: Sequence[HostState], request: Request) -> Finding | None:
    """Whether ``host`` and the others reach each other.

    A pair is reported by one of its hosts; a host that no other host reaches by that host alone.
    """
    asked = [each for each in hosts if each.listening and not each.listening["problem"]]
    if host not in asked or len(asked) < 2:
        return None
    if _is_isolated(host, asked):
        [*others] = (each for each in asked if each is not host)
        return _isolated(host, others, request)
    if pairs := [other for other in asked if _reports(host, other, asked)]:
        return _pairs(host, pairs)
    reached = [each for each in asked if each is not host and not reason(host, each)]
    if not reached:
        return None  # its only pair is reported by the other host
    slowest = max(float(host.probed[each.label]["latency"]) for each in reached)
    names = listed([each.label for each in reached])
    return ok("network", f"reaches {names}, within {format_seconds(slowest)}")


def reason(source: HostState, target: HostState) -> str:
    """Why ``source`` does not reach ``target``; "": it does."""
    result = source.probed.get(target.label)
    return str(result["reason"]) if result is not None else network_probe.BROKEN


def _is_isolated(host: HostState, asked: Sequence[HostState]) -> bool:
    return len(asked) > 2 and all(reason(each, host) for each in asked if each is not host)


def _reports(host: HostState, other: HostState, asked: Sequence[HostState]) -> bool:
    if other is host or _is_isolated(other, asked):
        return False
    there, back = reason(host, other), reason(other, host)
    if there and back:
        return asked.index(host) < asked.index(other)
    return bool(there)


def _isolated(host: HostState, others: Sequence[HostState], request: Request) -> Finding:
    why = _cause(others[0], host)
    allow = host.there(request, f"sudo ufw allow from {others[0].address}")
    return problem(
        "network",
        f"no other host reaches {host.label} at {host.address}: {why}",
        f"let TCP pass to {host.label}, for each host ({allow}), or name another network with "
        f"--interface: {_addresses([host, *others[:1]])}",
    )


def _pairs(host: HostState, others: Sequence[HostState]) -> Finding:
    first = others[0]
    names = listed([f"{each.label} ({each.address})" for each in others])
    if all(reason(each, host) for each in others):
        found = f"no route between {host.label} ({host.address}) and {names}"
    else:
        found = f"{host.label} ({host.address}) does not reach {names}, only the other way"
    return problem(
        "network",
        f"{found}: {_cause(host, first)}",
        f"let TCP pass between {host.label} and {listed([each.label for each in others])} "
        "(sudo ufw allow from ADDRESS), or name another network with --interface: "
        f"{_addresses([host, first])}",
    )


def _cause(source: HostState, target: HostState) -> str:
    if source.address == target.address:
        return _CAUSES[network_probe.FOREIGN]
    detail = str(source.probed.get(target.label, {}).get("detail", ""))
    cause = _CAUSES[reason(source, target)]
    return f"{cause} ({detail})" if detail else cause


def _addresses(hosts: Sequence[HostState]) -> str:
    return "; ".join(f"{each.label} has {shown(each.facts)}" for each in hosts)
