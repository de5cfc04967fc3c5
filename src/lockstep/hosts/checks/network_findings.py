"""Which hosts reach each other, and why not. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep._finding import Finding, ok, problem, warning
from lockstep._words import format_seconds
from lockstep.hosts.checks import network_probe
from lockstep.hosts.checks.address_choice import shown
from lockstep.hosts.checks.request import HostState, Request, listed

_CAUSES = {
    network_probe.TIMEOUT: "nothing answers in time: a firewall on one of them or between them",
    network_probe.UNREACHABLE: "they are on different networks, or a firewall forbids it",
    network_probe.REFUSED: "connections are refused: a firewall rejects them, or the address is "
    "another machine's",
    network_probe.FOREIGN: "another machine answers at this address; several hosts may have it, as "
    "they have the bridge of their containers",
    network_probe.BROKEN: "connections break",
}
_CONNECTED = (None, "", network_probe.SLOW)
"""What `reason` gives where no network is to blame."""


def reason(source: HostState, target: HostState) -> str | None:
    """Why ``source`` does not reach ``target``; "": it does; None: it has not tried."""
    result = source.probed.get(target.label)
    return None if result is None else str(result["reason"])


def check_network(hosts: Sequence[HostState], request: Request) -> dict[str, list[Finding]]:
    """Whether the hosts reach each other, as far as they have tried: findings by label.

    A pair is reported by one of its hosts; a host that no other host reaches by that host alone.
    """
    able = {each.label: each for each in hosts if each.listening and not each.listening["problem"]}
    if len(able) < 2:
        return {}
    sources: dict[str, list[HostState]] = {label: [] for label in able}
    for host in able.values():
        for label in host.probed.keys() & able.keys():
            sources[label].append(host)
    isolated = {label for label, own in sources.items() if _is_isolated(able[label], own)}
    found: dict[str, list[Finding]] = {}
    for label, host in able.items():
        own = [_load(host, sources[label], request)]
        if label in isolated:
            own.append(_isolated(host, sources[label], request))
        elif pairs := _reported(host, able, isolated):
            own.append(_pairs(host, pairs))
        found[label] = [each for each in own if each] or _reaches(host, able)
    return found


def _is_isolated(host: HostState, sources: Sequence[HostState]) -> bool:
    return len(sources) > 1 and all(reason(each, host) not in _CONNECTED for each in sources)


def _reported(
    host: HostState, able: Mapping[str, HostState], isolated: set[str]
) -> list[HostState]:
    """The hosts of which ``host`` reports that it does not reach them."""
    place = {label: i for i, label in enumerate(able)}
    others = [able[label] for label in able if label in host.probed and label not in isolated]
    return [
        other
        for other in others
        if reason(host, other) not in _CONNECTED
        # What fails in both directions is reported by the first of the two.
        and (reason(other, host) in _CONNECTED or place[host.label] < place[other.label])
    ]


def _reaches(host: HostState, able: Mapping[str, HostState]) -> list[Finding]:
    tried = [able[label] for label in able if label in host.probed]
    reached = [each for each in tried if reason(host, each) == ""]
    if not reached:
        return []  # its only pair is reported by the other host
    slowest = max(float(host.probed[each.label]["latency"]) for each in reached)
    names = listed([each.label for each in reached])
    if len(tried) < len(able) - 1:
        names = f"{len(reached)} of {len(able) - 1} hosts, the sample that was tried"
    return [ok("network", f"reaches {names}, within {format_seconds(slowest)}")]


def _load(host: HostState, sources: Sequence[HostState], request: Request) -> Finding | None:
    """What is said where ``host`` has taken connections and not answered."""
    waited = [each for each in sources if reason(each, host) == network_probe.SLOW]
    if not waited:
        return None
    names = listed([each.label for each in waited])
    detail = waited[0].probed[host.label]["detail"]
    what = f"{host.label} took the connections of {names} but did not answer ({detail}, twice)"
    loaded = [each for each in (host, *waited) if each.is_loaded]
    if not loaded:
        return problem(
            "network",
            f"{what}, and no host is loaded: something between them lets connections be made, and "
            "drops what is sent",
            f"check firewalls and the MTU between {host.label} and {names}, or name another "
            f"network with --interface: {_addresses([host, waited[0]])}",
        )
    loads = [f"{each.label} has {each.load:.0f} threads for {each.cores} cores" for each in loaded]
    return warning(
        "network",
        f"{what}: the hosts are loaded ({listed(loads)})",
        "end what else runs there, start fewer processes, or give them more time: --check-timeout "
        f"{4 * request.answer_seconds:g}",
    )


def _isolated(host: HostState, sources: Sequence[HostState], request: Request) -> Finding:
    allow = host.there(request, f"sudo ufw allow from {sources[0].address}")
    return problem(
        "network",
        f"no other host reaches {host.label} at {host.address}: {_cause(sources[0], host)}",
        f"let TCP pass to {host.label}, for each host ({allow}), or name another network with "
        f"--interface: {_addresses([host, sources[0]])}",
    )


def _pairs(host: HostState, others: Sequence[HostState]) -> Finding:
    first = others[0]
    names = listed([f"{each.label} ({each.address})" for each in others])
    back = {reason(each, host) for each in others}
    found = f"{host.label} ({host.address}) does not reach {names}"
    if back.isdisjoint(_CONNECTED):
        found = f"no route between {host.label} ({host.address}) and {names}"
    elif None not in back:
        found += ", only the other way"
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
    detail = str(source.probed[target.label]["detail"])
    cause = _CAUSES[str(reason(source, target))]
    return f"{cause} ({detail})" if detail else cause


def _addresses(hosts: Sequence[HostState]) -> str:
    return "; ".join(f"{each.label} has {shown(each.facts)}" for each in hosts)
