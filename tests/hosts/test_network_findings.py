"""Judgement on who reaches whom, where hosts have tried a sample of the others."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.states import REQUEST, failing, states
from lockstep._finding import OK, PROBLEM, WARNING
from lockstep.hosts.checks import network_probe
from lockstep.hosts.checks.host_pairs import sample
from lockstep.hosts.checks.network_findings import check_network
from lockstep.hosts.checks.request import HostState
from support import assert_unsaid

MANY = [chr(0x100 + i) for i in range(60)]
"""Labels of one letter."""


def sampled(seed: int = 0) -> list[HostState]:
    """Hosts that have tried a sample, and reached all of it."""
    tried = sample(MANY, random.Random(seed))
    return [
        dataclasses.replace(host, probed={other: host.probed[other] for other in tried[host.label]})
        for host in states("".join(MANY))
    ]


def bad(hosts: list[HostState]) -> dict[str, list[tuple[str, str]]]:
    """(status, text) of what is no ``ok``, by host."""
    found = check_network(hosts, REQUEST)
    return {
        label: [(each.status, f"{each.found} FIX {each.fix}") for each in own]
        for label, own in found.items()
        if any(each.status != OK for each in own)
    }


def test_hosts_that_have_not_tried_each_other_are_not_blamed() -> None:
    hosts = sampled()
    assert bad(hosts) == {}
    [finding] = check_network(hosts, REQUEST)[MANY[0]]
    count = len(hosts[0].probed)
    assert f"reaches {count} of 59 hosts, the sample that was tried" in finding.found


def test_a_host_that_nothing_reaches_is_found_in_a_sample() -> None:
    hosts = [
        failing(host, MANY[7], network_probe.TIMEOUT) if MANY[7] in host.probed else host
        for host in sampled()
    ]
    found = bad(hosts)
    assert list(found) == [MANY[7]]
    [(status, text)] = found[MANY[7]]
    assert status == PROBLEM
    assert f"no other host reaches {MANY[7]} at 10.0.0.8: nothing answers in time" in text


def test_one_direction_of_which_the_other_was_not_tried() -> None:
    hosts = sampled()
    other = next(iter(hosts[3].probed))
    hosts[3] = failing(hosts[3], other, network_probe.REFUSED)
    at = MANY.index(other)
    left = {label: own for label, own in hosts[at].probed.items() if label != MANY[3]}
    hosts[at] = dataclasses.replace(hosts[at], probed=left)
    [(status, text)] = bad(hosts)[MANY[3]]
    assert status == PROBLEM
    assert f"does not reach {other} (10.0.0.{at + 1}): connections are refused" in text


@settings(deadline=None)
@given(st.integers(0, 1 << 30))
def test_each_finding_names_a_pair_that_has_failed(seed: int) -> None:
    hosts, draw = sampled(seed), random.Random(seed)
    failed: set[tuple[str, str]] = set()
    for i, host in enumerate(hosts):
        for other in host.probed:
            if draw.random() < 0.05:
                hosts[i] = failing(hosts[i], other, network_probe.TIMEOUT)
                failed.add((host.label, other))
    for label, found in bad(hosts).items():
        for _, text in found:
            text = text.split(": nothing answers")[0]
            if "no other host reaches" in text:
                assert all((each, label) in failed for each in MANY if label in probed(hosts, each))
            else:
                named = {each for each in MANY if f" {each} (" in text and each != label}
                assert named
                assert all((label, each) in failed for each in named)


def probed(hosts: list[HostState], label: str) -> dict[str, object]:
    return dict(hosts[MANY.index(label)].probed)


def slow(hosts: list[HostState], label: str, load: float) -> list[HostState]:
    """``hosts``, all of which ``label`` did not answer, which has that load on 2 cores."""
    reason, detail = network_probe.SLOW, "no answer for 3 s"
    return [
        dataclasses.replace(host, load=load, cores=2)
        if host.label == label
        else failing(host, label, reason, detail)
        if label in host.probed
        else host
        for host in hosts
    ]


def test_a_loaded_host_is_called_loaded_and_the_job_may_start() -> None:
    found = bad(slow(states("abc"), "b", 51.2))
    assert list(found) == ["b"]
    [(status, text)] = found["b"]
    assert status == WARNING
    assert "b took the connections of a and c but did not answer (no answer for 3 s, twice)" in text
    assert "the hosts are loaded (b has 51 threads for 2 cores)" in text
    assert "--check-timeout 32" in text
    for words in ("firewall", "ufw"):
        assert_unsaid(words, text)


def test_a_host_that_is_silent_without_a_load_is_a_problem_of_the_network() -> None:
    [(status, text)] = bad(slow(states("abc"), "b", 0.1))["b"]
    assert status == PROBLEM
    assert "no host is loaded: something between them lets connections be made" in text


def test_a_loaded_host_that_a_firewall_hides_from_another() -> None:
    hosts = slow(states("abcd"), "b", 9.0)
    hosts[0] = failing(hosts[0], "c", network_probe.UNREACHABLE, "No route to host")
    found = bad(hosts)
    assert "a (10.0.0.1) does not reach c (10.0.0.3), only the other way" in found["a"][0][1]
    assert found["b"][0][0] == WARNING
