"""Which address of a host a job uses: by ``--interface``, else that which ssh has reached. Pure."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep._errors import ConfigError
from lockstep.system.interfaces import Interface, is_loopback


@dataclasses.dataclass(frozen=True)
class Choice:
    """The address of a host; empty: from where it sends to the other hosts."""

    address: str = ""
    problem: str = ""
    """Why the host has no such address, with those that it has."""


def network_of(interface: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """The network of ``--interface 10.0.0.0/24`` or ``--interface 10.0.0.7``; None: it is a name.

    Raises `ConfigError` for a network that does not exist.
    """
    try:
        return ipaddress.ip_network(interface, strict=False)
    except ValueError:
        if "/" in interface:
            raise ConfigError(
                f"--interface {interface}: expected the name of an interface, such as eth0, or a "
                "network, such as 10.0.0.0/24"
            ) from None
        return None


def choose(
    facts: Mapping[str, Any], interface: str, given: Sequence[str] = (), by_ssh: bool = True
) -> Choice:
    """The address of the host with these ``facts``.

    ``given`` are its addresses in the host file. ``by_ssh``: the agent was started by ssh, whose
    variable says how the host was reached; without it the variable is an older connection's.
    """
    own = [each for each in facts["interfaces"] if not is_loopback(each["address"])]
    if interface:
        return _on_interface(facts["interfaces"], own, interface)
    here = [each["address"] for each in own]
    if given:
        if known := next((each for each in given if each in here), ""):
            return Choice(known)
        return Choice("", f"none of its addresses in the host file ({', '.join(given)}) is there: "
                          f"it has {shown(facts)}")  # fmt: skip
    reached = str(facts["reached_at"]) if by_ssh else ""
    return Choice(reached if reached in here else "")


def interface_of(interface: str, there: Sequence[Interface]) -> str:
    """The name of the interface that ``--interface`` chooses among those of a host; "": none."""
    if not interface:
        return ""
    facts = {"interfaces": [dataclasses.asdict(each) for each in there]}
    address = choose(facts, interface).address
    return next((each.name for each in there if each.address == address), "")


def _on_interface(
    there: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]], interface: str
) -> Choice:
    network = network_of(interface)
    for each in own:
        address = ipaddress.ip_address(each["address"])
        if each["name"] == interface if network is None else address in network:
            return Choice(each["address"])
    what = f"no interface {interface}" if network is None else f"no address in {interface}"
    if any(each["name"] == interface for each in there):
        what = f"{interface} has loopback addresses alone, where no other host reaches it"
    return Choice("", f"{what}: it has {_listed(own)}")


def shown(facts: Mapping[str, Any]) -> str:
    """The addresses by which others may reach a host, with their interfaces."""
    return _listed([each for each in facts["interfaces"] if not is_loopback(each["address"])])


def _listed(own: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{each['name']} {each['address']}" for each in own) or "none but loopback"
