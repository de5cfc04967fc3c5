"""Asks all hosts of a job what `preflight` has to know, before anything starts.

The hosts are reached at the same time, then say what they have, then listen, then connect to each
other: some seconds at most, whatever is wrong.
"""

from __future__ import annotations

import dataclasses
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep._finding import Finding
from lockstep.hosts.checks import preflight
from lockstep.hosts.checks.address_choice import choose, network_of
from lockstep.hosts.checks.host_findings import other_version
from lockstep.hosts.checks.host_pairs import rounds, sample
from lockstep.hosts.checks.request import HostState, Request
from lockstep.hosts.checks.ssh_errors import Failure, explain, not_started
from lockstep.hosts.connection import Connection
from lockstep.hosts.fleet import Fleet
from lockstep.hosts.host_list import Host
from lockstep.hosts.starters import is_here

_KEY_BYTES = 32
_SHARE_OF_GPUS = 0.4
"""The part of the time for an answer in which the driver of GPUs has to answer."""


@dataclasses.dataclass(frozen=True)
class Checked:
    """What was found."""

    found: dict[str, list[Finding]]
    """Label of a host -> its findings."""
    states: dict[str, HostState]
    connections: dict[str, Connection]
    """To the hosts that were reached, with their agents."""


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
    check = _Check(fleet, request, states, reached)
    check.gather()
    if len(reached) > 1:
        check.probe()
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
            None if connection.parting else connection.exit_code,
            connection.stderr,
            connection.lost,
            request.ssh,
            request.python,
            request.version,
        )
    return dataclasses.replace(state, failure=failure)


def question(request: Request) -> dict[str, Any]:
    """What the message ``facts`` asks an agent."""
    asked = {"directory": request.directory, "program": list(request.program)}
    gpu_seconds = _SHARE_OF_GPUS * request.answer_seconds
    return {**asked, "platform": request.platform, "gpu_seconds": gpu_seconds}


def problem_of(
    connection: Connection,
    facts: Mapping[str, Any] | None,
    others: Sequence[HostState],
    request: Request,
) -> str:
    """What keeps a host out of the job that answers after the ``others`` were checked; "": nothing.

    It is judged by the first message of its agent and by its ``facts`` alone; None: not asked yet.
    """
    state = _state(connection, request)
    if state.failure is None and facts is None:
        return ""
    known = [each for each in others if each.label != state.label]
    try:
        if facts is not None:
            ahead = float(facts["time"]) - time.time()
            choice = choose(facts, request.interface, state.addresses, state.by_ssh)
            state = dataclasses.replace(state, facts=facts, clock_ahead=ahead, choice=choice)
        found = preflight.check([*known, state], request)[state.label]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return f"its agent has sent no facts that can be read: {error!r}"
    return preflight.first_problem(found)


@dataclasses.dataclass
class _Check:
    """Questions to all hosts at the same time; the answers go into ``states``."""

    fleet: Fleet
    request: Request
    states: dict[str, HostState]
    reached: dict[str, Connection]
    """The connections by label, as in ``states``. A host that gives no answer leaves it, and is not
    asked again."""

    def _ask(
        self, kind: str, answer: str, values: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Mapping[str, Any]]:
        """The answers by host. A host that gives none gets a failure."""
        seconds = self.request.answer_seconds
        asked = {self.reached[label]: own for label, own in values.items()}
        answers = self.fleet.ask(kind, answer, asked, seconds)
        found: dict[str, Mapping[str, Any]] = {}
        for label in values:
            connection = self.reached[label]
            if connection in answers:
                found[label] = answers[connection].head
            else:
                why = connection.lost or f"no answer within {seconds:g} s ({kind})"
                fix = f"check the load and the network of {label}, or give it more time: "
                failure = Failure("agent", why, f"{fix}--check-timeout {4 * seconds:g}")
                self._note(label, failure=failure)
                del self.reached[label]
        return found

    def _note(self, label: str, **values: Any) -> None:
        self.states[label] = dataclasses.replace(self.states[label], **values)

    def gather(self) -> None:
        """Asks for the facts of each host."""
        asked = dict.fromkeys(self.reached, question(self.request))
        answers = self._ask("facts", "facts", asked)
        now = time.time()
        for label, facts in answers.items():
            own = self.states[label]
            choice = choose(facts, self.request.interface, own.addresses, own.by_ssh)
            self._note(label, facts=facts, clock_ahead=float(facts["time"]) - now, choice=choice)

    def probe(self) -> None:
        """Makes all hosts listen, then connect to each other (`host_pairs.sample`).

        What has failed is tried once more before it is judged: where many hosts start, or busy
        ones, a connection may come too late.
        """
        able = [label for label in self.reached if not self.states[label].choice.problem]
        tried = sample(able, random.Random())
        key = secrets.token_hex(_KEY_BYTES)
        peers = self.listen(key, tried)
        wanted = {
            label: [each for each in tried[label] if each in peers]
            for label in peers
            if label in self.reached
        }
        failed = self._try(key, peers, wanted)
        self._try(key, peers, {label: own for label, own in failed.items() if own})

    def listen(self, key: str, tried: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
        """What the message ``probe`` says of each host that listens now.

        As many hosts will try to reach a host of ``tried`` as it tries to reach.
        """
        first = next(iter(self.states))
        values = {
            label: {
                "name": label,
                "key": key,
                "address": self.states[label].choice.address,
                "towards": _towards(label, self.states),
                "peers": len(own),
                "seconds": self.request.connect_seconds,
                "port": self.request.port if label == first else 0,
            }
            for label, own in tried.items()
        }
        answers = self._ask("listen", "listening", values)
        for label, own in answers.items():
            self._note(label, listening=own)
        return {
            label: {"name": label, "address": own["address"], "port": own["port"]}
            for label, own in answers.items()
            if not own["problem"]
        }

    def _try(
        self, key: str, peers: Mapping[str, Any], wanted: Mapping[str, Sequence[str]]
    ) -> dict[str, list[str]]:
        """Has each host of ``wanted`` connect to these others; those that it has not reached."""
        values = {label: [peers[each] for each in own] for label, own in wanted.items()}
        answers = self.connect(key, values)
        for label, own in answers.items():
            probed = {**self.states[label].probed, **own["results"]}
            self._note(label, probed=probed, load=float(own["load"]), cores=int(own["cores"]))
        return {
            label: [name for name, result in own["results"].items() if result["reason"]]
            for label, own in answers.items()
        }

    def connect(
        self, key: str, peers: Mapping[str, Sequence[Any]], measure: bool = False
    ) -> dict[str, Mapping[str, Any]]:
        """The answers of the hosts of ``peers``, which connect to these others."""
        seconds = self.request.connect_seconds
        values = {
            label: {"key": key, "peers": own, "seconds": seconds, "measure": measure}
            for label, own in peers.items()
        }
        return self._ask("probe", "probed", values)


def _towards(label: str, states: Mapping[str, HostState]) -> str:
    """An address of another host: the route to it shows which own address to take."""
    others = [state for name, state in states.items() if name != label]
    known = (state.choice.address for state in others if state.choice.address)
    return next(known, others[0].name.rpartition("@")[2])


def end_probes(fleet: Fleet, checked: Checked) -> None:
    """Ends what listens for probes: there is no thread left where processes are started."""
    fleet.ask("deaf", "deafened", {each: {} for each in checked.connections.values()})


def measure(
    fleet: Fleet, checked: Checked, request: Request
) -> dict[tuple[str, str], Mapping[str, Any]]:
    """(from, to) -> the result of `network_probe.probe` with its bandwidth, pair after pair.

    No host takes part in two measurements at the same time. The probes must not have ended.
    """
    able = [label for label, state in checked.states.items() if state.probed]
    if len(able) < 2:
        return {}
    key = secrets.token_hex(_KEY_BYTES)
    check = _Check(fleet, request, dict(checked.states), dict(checked.connections))
    peers = check.listen(key, {each: [other for other in able if other != each] for each in able})
    results: dict[tuple[str, str], Mapping[str, Any]] = {}
    for pairs in rounds(able):
        targets = {one: to for one, to in pairs if one in check.reached and to in peers}
        values = {source: [peers[target]] for source, target in targets.items()}
        for source, own in check.connect(key, values, measure=True).items():
            results[source, targets[source]] = own["results"][targets[source]]
    return dict(sorted(results.items(), key=lambda pair: [able.index(name) for name in pair[0]]))
