"""Asks all hosts of a job what `preflight` has to know, before anything starts.

The hosts are reached at the same time, then say what they have, then listen, then connect to each
other: some seconds at most, whatever is wrong.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep._finding import Finding
from lockstep.hosts import preflight
from lockstep.hosts.address_choice import choose, network_of
from lockstep.hosts.connection import Connection
from lockstep.hosts.fleet import Fleet
from lockstep.hosts.host_findings import other_version
from lockstep.hosts.host_list import Host
from lockstep.hosts.host_state import HostState, Request
from lockstep.hosts.ssh_errors import Failure, explain, not_started
from lockstep.hosts.starters import is_here

ANSWER_SECONDS = 8.0
"""How long an agent may take for one answer. A probe of the network ends before by itself."""
_KEY_BYTES = 32


@dataclasses.dataclass(frozen=True)
class Checked:
    """What was found."""

    found: dict[str, list[Finding]]
    """Label of a host -> its findings."""
    states: dict[str, HostState]
    connections: dict[str, Connection]
    """To the hosts that were reached, with their agents."""

    @property
    def has_problems(self) -> bool:
        return bool(preflight.with_problems(self.found))


def check_hosts(fleet: Fleet, hosts: Sequence[Host], request: Request) -> Checked:
    """Starts an agent on each of ``hosts`` and checks all of them; the agents stay.

    ``slots`` of a host is how many processes it will run. Raises `ConfigError` for a
    ``request.interface`` that cannot be one, OSError where ssh cannot be started, and what
    `Fleet.connect` raises.
    """
    network_of(request.interface)
    return check_agents(fleet, fleet.connect(hosts), request)


def check_agents(fleet: Fleet, agents: Sequence[Connection], request: Request) -> Checked:
    """The checks of `check_hosts` with agents that have been started, or could not be."""
    connections = {each.label: each for each in agents}
    states = {label: _state(each, request) for label, each in connections.items()}
    reached = {label: each for label, each in connections.items() if not states[label].failure}
    _gather(fleet, reached, states, request)
    if len(reached) > 1:
        _probe(fleet, reached, states, request)
    found = preflight.check(list(states.values()), request)
    return Checked(found, states, {label: connections[label] for label in reached})


def _state(connection: Connection, request: Request) -> HostState:
    host = connection.host
    state = HostState(
        connection.label, host.name, host.slots, host.addresses, by_ssh=not is_here(host)
    )
    version = str(connection.facts.get("version", ""))
    failure = None
    if not connection.lost and version != request.version:
        failure = other_version(state, version, request)
    elif connection.pid < 0:
        failure = not_started(connection.lost, request.ssh, request.python, state.by_ssh)
    elif connection.lost:
        failure = explain(
            host.name,
            connection.exit_code,
            connection.stderr,
            connection.lost,
            request.ssh,
            request.python,
            request.version,
        )
    return dataclasses.replace(state, failure=failure)


def _ask(
    fleet: Fleet,
    kind: str,
    answer: str,
    values: Mapping[str, Mapping[str, Any]],
    reached: dict[str, Connection],
    states: dict[str, HostState],
) -> dict[str, Mapping[str, Any]]:
    """The answers by host. A host that gives none is a failure, and is not asked again."""
    asked = {reached[label]: own for label, own in values.items()}
    answers = fleet.ask(kind, answer, asked, ANSWER_SECONDS)
    found: dict[str, Mapping[str, Any]] = {}
    for label in values:
        connection = reached[label]
        if connection in answers:
            found[label] = answers[connection].head
        else:
            why = connection.lost or f"no answer within {ANSWER_SECONDS:g} s ({kind})"
            failure = Failure("agent", why, f"check the load and the network of {label}")
            states[label] = dataclasses.replace(states[label], failure=failure)
            del reached[label]
    return found


def _gather(
    fleet: Fleet,
    reached: dict[str, Connection],
    states: dict[str, HostState],
    request: Request,
) -> None:
    question = {"directory": request.directory, "program": list(request.program)}
    answers = _ask(fleet, "facts", "facts", dict.fromkeys(reached, question), reached, states)
    now = time.time()
    for label, facts in answers.items():
        state = states[label]
        choice = choose(facts, request.interface, state.addresses, state.by_ssh)
        states[label] = dataclasses.replace(
            state, facts=facts, clock_ahead=float(facts["time"]) - now, choice=choice
        )


def _probe(
    fleet: Fleet,
    reached: dict[str, Connection],
    states: dict[str, HostState],
    request: Request,
) -> None:
    """Makes all hosts listen, then connect to each other."""
    key = secrets.token_hex(_KEY_BYTES)
    listening = _listen(fleet, reached, states, request, key)
    peers = _peers(listening)
    values = {
        label: {"key": key, "peers": [peer for name, peer in peers.items() if name != label]}
        for label in peers
        if label in reached
    }
    for label, own in _ask(fleet, "probe", "probed", values, reached, states).items():
        states[label] = dataclasses.replace(states[label], probed=own["results"])


def _peers(listening: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the message ``probe`` says of each host that listens."""
    return {
        label: {"name": label, "address": own["address"], "port": own["port"]}
        for label, own in listening.items()
        if not own["problem"]
    }


def _listen(
    fleet: Fleet,
    reached: dict[str, Connection],
    states: dict[str, HostState],
    request: Request,
    key: str,
) -> dict[str, Mapping[str, Any]]:
    values: dict[str, dict[str, Any]] = {}
    first = next(iter(states))
    for label in reached:
        if not states[label].choice.problem:
            values[label] = {
                "name": label,
                "key": key,
                "address": states[label].choice.address,
                "towards": _towards(label, states),
                "peers": len(reached) - 1,
                "port": request.port if label == first else 0,
            }
    answers = _ask(fleet, "listen", "listening", values, reached, states)
    for label, own in answers.items():
        states[label] = dataclasses.replace(states[label], listening=own)
    return answers


def _towards(label: str, states: Mapping[str, HostState]) -> str:
    """An address of another host: the route to it shows which own address to take."""
    others = [state for name, state in states.items() if name != label]
    known = (state.choice.address for state in others if state.choice.address)
    return next(known, others[0].name.rpartition("@")[2])


def end_probes(fleet: Fleet, checked: Checked) -> None:
    """Ends what listens for probes: there is no thread left where processes are started."""
    fleet.ask("deaf", "deafened", {each: {} for each in checked.connections.values()})


def measure(fleet: Fleet, checked: Checked) -> dict[tuple[str, str], Mapping[str, Any]]:
    """(from, to) -> the result of `network_probe.probe` with its bandwidth, pair after pair.

    No host takes part in two measurements at the same time. The probes must not have ended.
    """
    key = secrets.token_hex(_KEY_BYTES)
    states, reached = dict(checked.states), dict(checked.connections)
    able = [label for label, state in states.items() if state.probed]
    if len(able) < 2:
        return {}
    peers = _peers(_listen(fleet, reached, states, Request(), key))
    results: dict[tuple[str, str], Mapping[str, Any]] = {}
    for pairs in rounds(able):
        targets = {one: to for one, to in pairs if one in reached and to in peers}
        values = {
            source: {"key": key, "measure": True, "peers": [peers[target]]}
            for source, target in targets.items()
        }
        for source, own in _ask(fleet, "probe", "probed", values, reached, states).items():
            results[source, targets[source]] = own["results"][targets[source]]
    return dict(sorted(results.items(), key=lambda pair: [able.index(name) for name in pair[0]]))


def rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """All ordered pairs, in rounds in which each name occurs once at most (the circle method)."""
    turning: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found: list[list[tuple[str, str]]] = []
    for _ in range(len(turning) - 1):
        half = len(turning) // 2
        pairs = zip(turning[:half], reversed(turning[half:]), strict=True)
        whole = [(one, other) for one, other in pairs if one and other]
        found += [whole, [(other, one) for one, other in whole]]
        turning = [turning[0], turning[-1], *turning[1:-1]]
    return found
