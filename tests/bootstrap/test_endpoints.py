"""How the engine reaches other hosts: addresses, OpenSSL, and what it is told."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import socket
from collections.abc import Iterator

import pytest

from fake_job import Client, peer
from lockstep import InitializationError
from lockstep.bootstrap import endpoints
from lockstep.engine.options import Network, Options
from lockstep.job import kv_store, topology
from lockstep.job.kv_store import Store
from lockstep.job.topology import Peer

# Addresses


def test_the_way_to_a_host() -> None:
    assert endpoints.route_to("127.0.0.1") == "127.0.0.1"
    assert endpoints.route_to("[127.0.0.2]", "80").startswith("127.")
    for prefix in ("dns:///", "dns://1.1.1.1/", "dns:", "ipv4:"):
        assert endpoints.route_to(f"{prefix}127.0.0.1", "80") == "127.0.0.1"
    for host, port in (("no such name", "80"), ("127.0.0.1", "no such port")):
        assert endpoints.route_to(host, port) == ""


def at(*addresses: str, networks: str = "") -> list[Peer]:
    ids = networks or "n" * len(addresses)
    return [peer(i, address=a, network=ids[i]) for i, a in enumerate(addresses)]


def test_the_address_towards_the_coordinator_is_the_one() -> None:
    assert endpoints.own_address(at("10.0.0.1", "10.0.0.2"), 1) == "10.0.0.2"


def test_a_host_whose_name_is_loopback_uses_the_route_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = {"10.0.0.2": "", "10.0.0.3": "10.0.0.1"}
    monkeypatch.setattr(endpoints, "route_to", ways.__getitem__)
    peers = at("127.0.0.1", "10.0.0.2", "", "10.0.0.3", networks="abac")
    assert endpoints.own_address(peers, 0) == "10.0.0.1"
    assert endpoints.own_address(peers, 2) == "10.0.0.1"


def test_loopback_will_do_within_one_network() -> None:
    peers = at("127.0.0.1", "127.0.0.1")
    assert endpoints.own_address(peers, 1) == "127.0.0.1"


def test_without_an_address_the_error_names_what_to_set() -> None:
    with pytest.raises(InitializationError) as caught:
        endpoints.own_address(at("127.0.0.1", "::1", networks="ab"), 1)
    text = str(caught.value)
    assert text.startswith("process 1 (pid 101 on b) knows no address by which other hosts ")
    assert "leads through ::1. Set LOCKSTEP_COORDINATOR=HOST:PORT for all processes, or " in text
    with pytest.raises(InitializationError, match="leads through no interface"):
        endpoints.own_address(at("127.0.0.1", ""), 1)


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    if request.param == "::1" and not endpoints.route_to("::1"):
        pytest.skip("no IPv6 here")
    with endpoints.listen(request.param, 2) as made:
        yield made


def test_a_listener_takes_connections_at_one_address(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    assert host in ("127.0.0.1", "::1")
    assert port != 0
    assert not listener.get_inheritable()
    with socket.create_connection((host, port), timeout=10.0), listener.accept()[0]:
        pass


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(InitializationError) as caught:
        endpoints.listen("192.0.2.1", 2)
    assert str(caught.value).startswith("no port to be had on 192.0.2.1 for the engine's ")


def test_all_receive_where_the_others_listen(listener: socket.socket) -> None:
    shared, peers = Store(Client()), [peer(process) for process in range(4)]
    for process in (1, 2, 3):
        shared.put(f"at/{process}", [f"10.0.0.{process}:1"])
    host, port = listener.getsockname()[:2]
    found = endpoints.meet(shared, "at", peers, 0, [listener])
    own = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    assert found == {0: own, 1: "10.0.0.1:1", 2: "10.0.0.2:1", 3: "10.0.0.3:1"}
    assert shared.get("at/0", "process 0") == [own]


def test_agents_are_numbered_behind_the_processes(listener: socket.socket) -> None:
    """One of each host that has any: on host b process 1 has none, process 3 has."""
    pids = (77, 0, 78, 79)
    shared, peers = Store(Client()), [peer(process, agent=pids[process]) for process in range(4)]
    first, second = topology.agents(peers)
    assert (first.process, first.agent_of, first.pid, first.host_id) == (4, 0, 77, "id of a")
    assert (second.process, second.agent_of, second.pid, second.host_id) == (5, 3, 79, "id of b")
    assert second.label == "the agent of process 3 (pid 79 on b)"
    for process in (1, 2, 3):
        said = [f"10.0.0.{process}:1", f"10.0.0.{process}:2"]
        shared.put(f"at/{process}", said[: 2 if process == 3 else 1])
    found = endpoints.meet(shared, "at", peers, 0, [listener, listener])
    assert (found[4], found[5]) == (found[0], "10.0.0.3:2")
    process_0 = endpoints.options(peers, peers[0], found, listener, b"k")
    assert list(process_0.addresses) == ["", "10.0.0.1:1", "", "10.0.0.3:1", "", "10.0.0.3:2"]
    assert list(process_0.pids) == [0, 0, 102, 0, 0, 0]
    agent = endpoints.options(peers, second, found, listener, b"k")
    assert list(agent.addresses) == [found[0], "", "10.0.0.2:1", "", "", ""]
    assert list(agent.pids) == [0] * 6


def test_what_one_raises_all_raise(listener: socket.socket) -> None:
    shared, peers = Store(Client()), [peer(0), peer(1)]
    with (
        contextlib.suppress(InitializationError),
        kv_store.publishing_errors(shared, "at/1"),
    ):
        raise InitializationError("no room")
    with pytest.raises(InitializationError, match=r"^process 1 \(pid 101 on b\): no room$"):
        endpoints.meet(shared, "at", peers, 0, [listener])


# What is there before


def test_what_is_missing_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints.prepare()
    monkeypatch.setattr(endpoints.openssl, "problem", lambda: "there is none")
    with pytest.raises(InitializationError, match=r"OpenSSL between hosts: there is none\. "):
        endpoints.prepare()


# What the engine is told


def test_the_pids_are_those_of_the_others_of_this_host(listener: socket.socket) -> None:
    peers = [peer(process) for process in range(5)]
    way = endpoints.options(peers, peers[2], {1: "there", 3: "there"}, listener, b"k")
    assert way.pids == [100, 0, 0, 0, 104]
    assert way.listener == listener.fileno()


OPTIONS = Options(
    1, ["p", "q"], 3, 4, 5.0, 6, True, 8, "no", True, False, True, None, "h", 0, True, None
)


def test_one_host_has_no_network() -> None:
    given = OPTIONS.to_c()
    assert [given.labels[i] for i in range(2)] == [b"p", b"q"]
    assert (bool(given.addresses), bool(given.pids), given.listener) == (False, False, -1)
    assert (given.key, given.key_bytes, given.tls_library) == (None, 0, None)


def test_the_agents_are_counted_apart_from_the_processes() -> None:
    given = dataclasses.replace(OPTIONS, labels=["p", "q", "the agent of b"], agents=1).to_c()
    assert (given.num_processes, given.num_agents) == (2, 1)
    assert [given.labels[i] for i in range(3)] == [b"p", b"q", b"the agent of b"]


def test_several_hosts_have_addresses_and_a_key() -> None:
    key = b"\0" * 16 + b"x" * 16
    way = Network(["10.0.0.1:1", ""], [0, 41], [0, 1], 7, key, "/lib/libssl.so.3")
    given = dataclasses.replace(OPTIONS, network=way).to_c()
    assert [given.addresses[i] for i in range(2)] == [b"10.0.0.1:1", b""]
    assert [given.pids[i] for i in range(2)] == [0, 41]
    assert [given.hosts[i] for i in range(2)] == [0, 1]
    assert (given.listener, given.key_bytes, given.tls_library) == (7, 32, b"/lib/libssl.so.3")
    assert given.encrypt
    unencrypted = dataclasses.replace(OPTIONS, network=dataclasses.replace(way, encrypt=False))
    assert not unencrypted.to_c().encrypt
    pointer = ctypes.c_char_p.from_buffer(given, type(given).key.offset)
    assert ctypes.string_at(ctypes.cast(pointer, ctypes.c_void_p).value or 0, 32) == key
