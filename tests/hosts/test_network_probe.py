"""Probes between listeners of this machine: real sockets on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.hosts.checks import agent_checks, network_probe
from lockstep.hosts.checks.network_probe import Listener, listen, probe

KEY, OTHER = bytes(32), bytes(31) + b"x"


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener(listen("127.0.0.1"), "b", KEY)
    yield listener
    listener.close()


def peer(port: int, name: str = "b", address: str = "127.0.0.1") -> list[dict[str, Any]]:
    return [{"name": name, "address": address, "port": port}]


def test_a_host_that_is_reached_is_measured(listener: Listener) -> None:
    result = probe(peer(listener.port), KEY)["b"]
    assert result["reason"] == ""
    assert 0 < result["latency"] < network_probe.CONNECT_SECONDS
    assert "bandwidth" not in result
    assert probe(peer(listener.port), KEY, measure=True)["b"]["bandwidth"] > 1 << 20


def test_a_listener_with_another_name_or_key_is_another_host(listener: Listener) -> None:
    both = [*peer(listener.port), *peer(listener.port, "c")]
    results = probe(both, KEY)
    assert results["b"]["reason"] == ""
    assert results["c"] == {"reason": network_probe.FOREIGN, "detail": "another host answers"}
    assert probe(peer(listener.port), OTHER)["b"]["reason"] == network_probe.FOREIGN


def test_a_client_without_the_key_gets_nothing(listener: Listener) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), timeout=10) as client:
        client.sendall(network_probe.MAGIC + bytes(32))
        assert len(client.recv(64, socket.MSG_WAITALL)) == 64
        client.sendall(bytes(32) + b"p")
        with contextlib.suppress(ConnectionResetError):  # a byte was not read
            assert client.recv(1) == b""
    with socket.create_connection(("127.0.0.1", listener.port), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.0\r\n" + bytes(64))
        with contextlib.suppress(ConnectionResetError):  # some bytes were not read
            assert client.recv(1) == b""


def test_why_a_host_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        # The kernel takes the connection, so no firewall is in the way.
        result = probe(peer(port), KEY, seconds=0.2)["b"]
        assert result == {"reason": network_probe.SLOW, "detail": "no answer for 0.2 s"}
    assert probe(peer(port), KEY)["b"]["reason"] == network_probe.REFUSED


def test_a_connection_that_nothing_takes_has_another_reason_than_a_slow_answer() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with contextlib.ExitStack() as waiting:
            # The queue has room for some; the kernel answers no further ones.
            for _ in range(8):
                client = waiting.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
            assert probe(peer(port), KEY, seconds=0.5)["b"]["reason"] == network_probe.TIMEOUT


def test_a_host_that_answers_and_then_stops_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_probe, "_answer_probes", lambda peer: time.sleep(1))
    stops = Listener(listen("127.0.0.1"), "b", KEY)
    try:
        assert probe(peer(stops.port), KEY, seconds=0.3)["b"]["reason"] == network_probe.SLOW
    finally:
        stops.close()


def test_the_agent_listens_probes_and_leaves_no_thread() -> None:
    before = threading.active_count()
    checks = agent_checks.AgentChecks()
    order = {"name": "b", "key": KEY.hex(), "address": "", "towards": "127.0.0.1", "port": 0}
    order |= {"peers": 1, "seconds": 3.0}
    listening = checks.answer("listen", order)
    assert listening["address"] == "127.0.0.1"
    assert listening["problem"] == listening["port_problem"] == ""
    question = {"key": KEY.hex(), "peers": peer(listening["port"]), "seconds": 3.0}
    answer = checks.answer("probe", question)
    assert answer["results"]["b"]["reason"] == ""
    assert answer["load"] >= 0
    assert answer["cores"] >= 1
    taken = checks.answer("listen", {**order, "port": 1 << 20})
    assert taken["port_problem"] == "the port is not between 1 and 65535"
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = checks.answer("listen", {**order, "port": other.getsockname()[1]})
        assert f"the port is taken by process {os.getpid()} (" in taken["port_problem"]
    nowhere = checks.answer("listen", {**order, "address": "192.0.2.1"})
    assert "assign" in nowhere["problem"]
    assert checks.answer("deaf", {}) == {}
    assert threading.active_count() == before


def test_a_listener_serves_all_hosts_of_a_large_job_at_the_same_time() -> None:
    hosts = 100
    checks = agent_checks.AgentChecks()
    values = {"name": "b", "key": KEY.hex(), "address": "127.0.0.1", "towards": ""}
    values |= {"peers": hosts, "seconds": 10.0}
    port = int(checks.answer("listen", values)["port"])
    try:
        with contextlib.ExitStack() as connected:
            clients = [
                connected.enter_context(network_probe.connect("127.0.0.1", port, "b", KEY, 10.0))
                for _ in range(hosts)
            ]
            # All are served while all stay connected.
            for client in clients:
                client.sendall(b"p")
                assert client.recv(1) == b"p"
    finally:
        checks.close()
