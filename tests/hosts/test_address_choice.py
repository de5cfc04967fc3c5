"""Which address of a host a job uses."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep._errors import ConfigError
from lockstep.hosts.checks.address_choice import choose, network_of

FACTS: dict[str, Any] = {
    "reached_at": "192.168.0.5",
    "interfaces": [
        {"name": "lo", "address": "127.0.0.1", "prefix": 8},
        {"name": "eth0", "address": "192.168.0.5", "prefix": 24},
        {"name": "ib0", "address": "10.1.0.5", "prefix": 16},
        {"name": "ib0", "address": "fd00::5", "prefix": 64},
    ],
}


@pytest.mark.parametrize(
    ("interface", "address"),
    [
        ("", "192.168.0.5"),
        ("ib0", "10.1.0.5"),
        ("10.1.0.0/16", "10.1.0.5"),
        ("10.1.7.7/16", "10.1.0.5"),
        ("fd00::/64", "fd00::5"),
        ("192.168.0.5", "192.168.0.5"),
    ],
)
def test_the_address_that_ssh_reached_or_one_of_the_interface(interface: str, address: str) -> None:
    assert choose(FACTS, interface).address == address
    assert choose(FACTS, interface).problem == ""


@pytest.mark.parametrize(
    ("interface", "words"),
    [
        ("eth7", "no interface eth7"),
        ("lo", "lo has loopback addresses alone"),
        ("10.2.0.0/16", "no address in"),
    ],
)
def test_a_host_without_the_interface_is_told_with_what_it_has(interface: str, words: str) -> None:
    problem = choose(FACTS, interface).problem
    assert words in problem
    assert "eth0 192.168.0.5, ib0 10.1.0.5" in problem


def test_loopback_and_foreign_addresses_are_not_used() -> None:
    for reached in ("127.0.0.1", "127.0.1.1", "203.0.113.9", ""):
        assert choose({**FACTS, "reached_at": reached}, "").address == ""
    assert choose(FACTS, "", by_ssh=False).address == ""


def test_addresses_of_the_host_file_come_first() -> None:
    assert choose(FACTS, "", ("172.16.0.1", "10.1.0.5")).address == "10.1.0.5"
    problem = choose(FACTS, "", ("172.16.0.1",)).problem
    assert "none of its addresses in the host file (172.16.0.1) is there" in problem


def test_a_network_that_cannot_be() -> None:
    assert network_of("eth0") is None
    with pytest.raises(ConfigError, match=r"--interface 10\.0\.0\.0/99: expected the name"):
        network_of("10.0.0.0/99")
