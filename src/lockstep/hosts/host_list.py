"""Which hosts a job runs on, and how many processes each of them gets. Pure.

``--hosts a:4,b,user@c:2`` and host files in two forms: Open MPI's (``a slots=4``) and MLX's JSON
(``[{"ssh": "a", "ips": ["10.0.0.1"]}, ...]``).

Slots and ``-n`` mean what they mean for mpirun: a host has one slot unless it says more, ``-n`` is
the number of all processes, and slots are filled host by host. Without ``-n`` every slot gets a
process.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

from lockstep._errors import ConfigError

_SLOTS = re.compile(r"(?P<host>.+?):(?P<slots>\d+)")
_KEYS = ("slots", "max_slots", "max-slots")
_USAGE = "Write --hosts HOST[:SLOTS],..., such as --hosts a:4,b:4,user@c"


@dataclasses.dataclass(frozen=True)
class Host:
    """One host of the list."""

    name: str
    """What ssh takes: ``a``, ``user@a``, a name of the user's ssh configuration, an address."""
    slots: int = 1
    addresses: tuple[str, ...] = ()
    """The addresses by which a host file says that other hosts reach it; empty: not said."""

    @property
    def label(self) -> str:
        """The name without the user, as output and errors show it."""
        return self.name.rpartition("@")[2]


@dataclasses.dataclass(frozen=True)
class Placed:
    """A host with its share of the processes: ``first``, ``first + 1``, ..."""

    host: Host
    first: int
    count: int

    @property
    def processes(self) -> range:
        return range(self.first, self.first + self.count)


def parse_hosts(text: str) -> list[Host]:
    """The hosts of ``--hosts``. Raises `ConfigError`."""
    hosts = []
    for item in (part.strip() for part in text.split(",")):
        if not item:
            raise ConfigError(f"--hosts {text}: a host's name is missing. {_USAGE}.")
        hosts.append(_parse_item(item, text))
    return _checked(hosts, f"--hosts {text}")


def _parse_item(item: str, text: str) -> Host:
    user, at, rest = item.rpartition("@")
    if rest.startswith("["):  # [IPv6]:SLOTS
        address, bracket, slots = rest[1:].partition("]")
        if bracket and (not slots or re.fullmatch(r":\d+", slots)):
            return Host(f"{user}{at}{address}", int(slots[1:] or 1))
    elif rest.count(":") > 1:
        raise ConfigError(f"--hosts {text}: write the IPv6 address in brackets: [{rest}]:SLOTS.")
    elif match := _SLOTS.fullmatch(rest):
        return Host(f"{user}{at}{match['host']}", int(match["slots"]))
    elif ":" not in rest:
        return Host(item)
    raise ConfigError(f"--hosts {text}: {item!r} is not HOST or HOST:SLOTS. {_USAGE}.")


def parse_file(text: str, name: str) -> list[Host]:
    """The hosts of the host file ``name`` with the contents ``text``. Raises `ConfigError`."""
    if text.lstrip().startswith(("[", "{")):
        return _checked(_parse_json(text, name), f"--hostfile {name}")
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].split():
            host = _parse_line(words, f"--hostfile {name}, line {number}")
            hosts = _added(hosts, host)
    return _checked(hosts, f"--hostfile {name}")


def _parse_line(words: Sequence[str], where: str) -> Host:
    name, *settings = words
    if "=" in name:
        raise ConfigError(f"{where}: begins with {name!r}, not with the name of a host.")
    values: dict[str, int] = {}
    # Open MPI allows blanks around the equals sign.
    joined = re.sub(r"\s*=\s*", "=", " ".join(settings))
    for setting in joined.split():
        key, equals, value = setting.partition("=")
        if key not in _KEYS or not equals or not value.isdecimal():
            raise ConfigError(
                f"{where}: {setting!r} is not slots=N or max_slots=N. A line is HOST slots=N."
            )
        values[key.replace("-", "_")] = int(value)
    slots = values.get("slots", 1)
    if slots > values.get("max_slots", slots):
        raise ConfigError(f"{where}: slots={slots} is more than max_slots={values['max_slots']}.")
    return Host(name, slots)


def _added(hosts: list[Host], host: Host) -> list[Host]:
    """``hosts`` and ``host``; a name on several lines has the slots of all, as for mpirun."""
    for i, known in enumerate(hosts):
        if known.name == host.name:
            more = dataclasses.replace(known, slots=known.slots + host.slots)
            return [*hosts[:i], more, *hosts[i + 1 :]]
    return [*hosts, host]


def _parse_json(text: str, name: str) -> list[Host]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--hostfile {name} is not JSON: {error}.") from None
    # Newer versions of MLX put the list below "hosts", beside settings of their own.
    entries = values.get("hosts") if isinstance(values, dict) else values
    if not isinstance(entries, list):
        raise ConfigError(f'--hostfile {name}: expected a list such as [{{"ssh": "a"}}].')
    return [_parse_entry(entry, f"--hostfile {name}, host {i}") for i, entry in enumerate(entries)]


def _parse_entry(entry: Any, where: str) -> Host:
    if not isinstance(entry, dict) or not isinstance(entry.get("ssh"), str):
        raise ConfigError(f'{where}: expected {{"ssh": NAME, "ips": [ADDRESS, ...]}}.')
    addresses, slots = entry.get("ips", []), entry.get("slots", 1)
    if not isinstance(addresses, list) or not all(isinstance(each, str) for each in addresses):
        raise ConfigError(f'{where}: "ips" is {addresses!r}, expected a list of addresses.')
    if not isinstance(slots, int) or isinstance(slots, bool):
        raise ConfigError(f'{where}: "slots" is {slots!r}, expected a whole number.')
    return Host(entry["ssh"], slots, tuple(addresses))


def _checked(hosts: list[Host], where: str) -> list[Host]:
    if not hosts:
        raise ConfigError(f"{where} names no host.")
    for host in hosts:
        # A name that begins with a dash would be an option of ssh.
        if not re.fullmatch(r"[^-\s@][^\s@]*(@[^-\s@][^\s@]*)?", host.name):
            raise ConfigError(f"{where}: {host.name!r} is not the name of a host.")
        if host.slots < 1:
            raise ConfigError(
                f"{where}: {host.name} has {host.slots} slots. A host has 1 or more; leave out a "
                "host that is to run nothing."
            )
    names = [host.name for host in hosts]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{where}: {twice} is there twice. Write it once, as {twice}:SLOTS.")
    return hosts


def place(hosts: Sequence[Host], processes: int | None = None) -> list[Placed]:
    """The share of each host, in order; hosts that get no process are left out.

    ``processes`` is ``-n``: the number of all processes; None: one for each slot. Raises
    `ConfigError` where there are more processes than slots.
    """
    slots = sum(host.slots for host in hosts)
    wanted = slots if processes is None else processes
    if wanted > slots:
        counts = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        raise ConfigError(
            f"-n {wanted}: the hosts have {slots} slots ({counts}), and each process takes one. "
            "-n is the number of all processes, as for mpirun. Give the hosts more slots, such as "
            f"--hosts {hosts[0].name}:{hosts[0].slots + wanted - slots},..., or start fewer."
        )
    placed: list[Placed] = []
    first = 0
    for host in hosts:
        count = min(host.slots, wanted - first)
        if count:
            placed.append(Placed(host, first, count))
            first += count
    return placed


def labels(hosts: Sequence[Host]) -> list[str]:
    """A short name for each host: its first label where that is unique, else the whole name."""
    short = [_first_label(host.label) for host in hosts]
    return [
        name if short.count(name) == 1 else host.label
        for name, host in zip(short, hosts, strict=True)
    ]


def labels_of_processes(placed: Sequence[Placed]) -> tuple[str, ...]:
    """The short name of each process's host."""
    names = labels([each.host for each in placed])
    return tuple(name for name, each in zip(names, placed, strict=True) for _ in range(each.count))


def _first_label(name: str) -> str:
    is_address = ":" in name or re.fullmatch(r"[\d.]+", name)
    return name if is_address else name.partition(".")[0]
