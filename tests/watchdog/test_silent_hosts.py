"""Which connections are watched for an unreachable host, and what the user reads."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator

import pytest

from lockstep.job.topology import Peer
from lockstep.watchdog.silent_hosts import HostMonitor, Listeners, unreachable_words
from support import assert_unsaid


def peer(process: int, host: str) -> Peer:
    return Peer(process=process, pid=100 + process, host_id=host, host_name=host, cpus=(0,))


@contextlib.contextmanager
def connected() -> Iterator[tuple[int, socket.socket, socket.socket]]:
    """A port of this machine, and both ends of a connection to it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as one,
        listening.accept()[0] as other,
    ):
        yield listening.getsockname()[1], one, other


def between(port: int, here: str, there: str) -> Listeners:
    """Of process 0, which listens at ``here``, and process 1 of another host at ``there``."""
    return Listeners(0, [(peer(0, "a"), [(here, port)]), (peer(1, "b"), [(there, 1)])])


def test_the_others_hosts_by_address() -> None:
    said = [
        (peer(0, "a"), [("10.0.0.1", 1000)]),
        (peer(1, "a"), [("10.0.0.1", 1001)]),
        (peer(2, "b"), [("10.0.0.2", 1000)]),
        (peer(3, "b"), [("10.0.0.2", 1001)]),
    ]
    at = Listeners(1, said).peers_at
    assert {host: [p.process for p in peers] for host, peers in at.items()} == {"10.0.0.2": [2, 3]}


def test_only_connections_of_collectives_are_touched() -> None:
    with connected() as (port, one, other), connected():
        listeners = between(port, "127.0.0.1", "127.0.0.2")
        found = {each.fileno() for each in listeners.connections()}
        assert found == {one.fileno(), other.fileno()}


def test_a_connection_from_outside_is_no_host() -> None:
    """A connection to gloo's port on which nothing was sent."""
    with connected() as (port, one, other):
        listeners = between(port, "127.0.0.3", "127.0.0.2")
        assert listeners.silence(30.0) == {}
        other.sendall(b"hello")
        one.recv(5)
        listeners.silence(30.0)
        assert listeners.silence(30.0) == {"127.0.0.1": 0.0}


def test_connections_end_also_when_they_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected() as (port, one, _), open(os.devnull) as closed:
        listeners = between(port, "127.0.0.3", "127.0.0.1")
        monkeypatch.setattr(listeners, "silence", lambda limit: {"127.0.0.1": 31.0})
        monkeypatch.setattr(sys, "stderr", closed)  # not open for writing
        HostMonitor(listeners, peer(0, "a"), "key", 100.0)._scan()
        one.settimeout(10.0)
        assert one.recv(1) == b""


def test_the_engine_is_failed_with_the_words_before_its_connections_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with connected() as (port, one, _):
        listeners = between(port, "127.0.0.3", "127.0.0.1")
        monkeypatch.setattr(listeners, "silence", lambda limit: {"127.0.0.1": 31.0})
        one.setblocking(False)
        failed = []

        def fail(words: str) -> None:
            with pytest.raises(BlockingIOError):
                one.recv(1)  # still open
            failed.append(words)

        HostMonitor(listeners, peer(0, "a"), "key", 100.0, fail)._scan()
        one.settimeout(10.0)
        assert one.recv(1) == b""
    [words] = failed
    assert words.startswith("lockstep: process 0 (pid 100 on a) cannot reach host b (process 1)")
    assert capsys.readouterr().err == f"{words}\n"


def test_the_words_fit_an_exception() -> None:
    at = {
        f"10.0.{host}.1": [peer(10000 + 64 * host + i, f"{host:03}" + "ä" * 30) for i in range(64)]
        for host in range(200)
    }
    at["10.9.9.1"] = [peer(0, "a")]
    words = unreachable_words(peer(1, "h" * 64), list(at), at, 30.0, 100.0)
    assert len(words.encode()) <= 980
    assert "(processes 10000-10063)" in words
    assert " and 198 other hosts: the last packet" in words
    assert words.endswith("gives more time.")
    # Where they are too long all the same, no character is cut in two.
    words = unreachable_words(peer(1, "ä" * 1000), ["10.0.0.1"], at, 30.0, 100.0)
    assert 978 <= len(words.encode()) <= 980


def test_the_words_name_hosts_and_processes() -> None:
    at = {"10.0.0.3": [peer(3, "c")], "10.0.0.2": [peer(1, "b"), peer(2, "b")]}
    words = unreachable_words(peer(0, "a"), ["10.0.0.3", "10.9.9.9", "10.0.0.2"], at, 30.6, 100.0)
    assert words.startswith(
        "lockstep: process 0 (pid 100 on a) cannot reach host b (processes 1-2) and host c "
        "(process 3) and the host with the address 10.9.9.9: the last packet from there came 31 s "
        "ago."
    )
    assert_unsaid("JAX will abort", words)


def test_a_host_that_the_launcher_has_lost_is_not_called_silent() -> None:
    words = unreachable_words(peer(0, "a"), ["10.0.0.2"], {"10.0.0.2": [peer(1, "b")]}, 0.0, 100.0)
    assert "cannot reach host b (process 1): the launcher has lost it, and its report says" in words
    assert_unsaid("Is the machine up", words)


def test_without_the_service_there_is_less_time() -> None:
    at = {"10.0.0.1": [peer(0, "a"), peer(1, "a")]}
    words = unreachable_words(peer(2, "b"), ["10.0.0.1"], at, 30.0, 100.0)
    assert "host a (processes 0-1)" in words
    assert "JAX will abort it 20 to 70 s from now" in words
    assert "heartbeat_timeout_seconds" in words
