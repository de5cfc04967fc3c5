"""Lists of hosts, host files, and who gets which processes."""

from __future__ import annotations

import json

import pytest

from lockstep._errors import ConfigError
from lockstep.hosts.host_list import Host, labels, parse_file, parse_hosts, place


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [Host("a")]),
        ("a:4, b ,user@c:2", [Host("a", 4), Host("b"), Host("user@c", 2)]),
        ("10.0.0.1:3", [Host("10.0.0.1", 3)]),
        ("[fd00::1]:2,u@[fd00::2]", [Host("fd00::1", 2), Host("u@fd00::2")]),
    ],
)
def test_hosts_of_the_command_line(text: str, hosts: list[Host]) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a host's name is missing"),
        ("a,,b", "a host's name is missing"),
        ("a:x", "'a:x' is not HOST or HOST:SLOTS"),
        ("a:", "'a:' is not HOST or HOST:SLOTS"),
        ("a:0", "a has 0 slots. A host has 1 or more"),
        ("a,b,a", "a is there twice. Write it once, as a:SLOTS"),
        ("fd00::1", r"brackets: \[fd00::1\]:SLOTS"),
        ("a b", "is not the name of a host"),
    ],
)
def test_bad_lists_are_explained(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_hosts(text)


def test_host_files_of_open_mpi() -> None:
    text = "# cluster\n\na slots=4 max_slots=8\nb  # one slot\nuser@c slots = 2\na slots=1\n"
    assert parse_file(text, "F") == [Host("a", 5), Host("b"), Host("user@c", 2)]


def test_host_files_of_mlx() -> None:
    entries = [{"ssh": "a", "ips": ["10.0.0.1"], "rdma": []}, {"ssh": "u@b", "slots": 2}]
    found = [Host("a", 1, ("10.0.0.1",)), Host("u@b", 2)]
    assert parse_file(json.dumps(entries), "F") == found
    assert parse_file(json.dumps({"backend": "x", "hosts": entries}), "F") == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# nothing\n", "--hostfile F names no host"),
        ("a\nb slot=2\n", "line 2: 'slot=2' is not slots=N"),
        ("a slots=-1\n", "line 1: 'slots=-1' is not slots=N"),
        ("a slots=4 max_slots=2\n", "slots=4 is more than max_slots=2"),
        ("slots=4\n", "line 1: begins with 'slots=4'"),
        ("[{", "--hostfile F is not JSON"),
        ('{"a": 1}', "expected a list"),
        ('[{"ips": []}]', "host 0: expected"),
        ('[{"ssh": "a", "ips": "x"}]', '"ips" is'),
        ('[{"ssh": "a", "slots": true}]', '"slots" is True'),
    ],
)
def test_bad_files_are_explained(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_file(text, "F")


def test_processes_fill_the_slots_host_by_host() -> None:
    hosts = parse_hosts("a:4,b:4,c")

    def shares(processes: int | None) -> list[tuple[str, list[int]]]:
        return [(each.host.name, list(each.processes)) for each in place(hosts, processes)]

    assert shares(None) == [("a", [0, 1, 2, 3]), ("b", [4, 5, 6, 7]), ("c", [8])]
    assert shares(5) == [("a", [0, 1, 2, 3]), ("b", [4])]
    assert shares(1) == [("a", [0])]
    with pytest.raises(ConfigError, match=r"-n 10: the hosts have 9 slots .a:4,b:4,c:1."):
        place(hosts, 10)


def test_labels_are_short_and_unique() -> None:
    assert labels(parse_hosts("u@n1.x.org,n2.x.org:2,10.0.0.1")) == ["n1", "n2", "10.0.0.1"]
    assert labels(parse_hosts("n.x.org,n.y.org,m")) == ["n.x.org", "n.y.org", "m"]
