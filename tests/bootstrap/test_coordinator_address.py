"""Where JAX's coordination service listens, and which process has the port that it should have."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence

import pytest

from lockstep import _config
from lockstep._errors import InitializationError
from lockstep.bootstrap import coordinator_address

DEFAULT = "[::]:29500"
"""What JAX binds by itself."""


def local_job(monkeypatch: pytest.MonkeyPatch, on_this_host: int) -> None:
    config = _config.Config(num_processes=4, local_num_processes=on_this_host)
    monkeypatch.setattr(_config, "current", lambda: config)


def resolving(monkeypatch: pytest.MonkeyPatch, name: str, to: Sequence[str]) -> None:
    """As if /etc/hosts had ``name``."""
    resolve = socket.getaddrinfo

    def found(host: str, *args: object, **options: object) -> list:
        if host != name:
            return resolve(host, *args, **options)  # type: ignore[arg-type]
        return [each for address in to for each in resolve(address, None)]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize(
    ("coordinator", "bound"),
    [
        ("127.0.0.1:29500", "127.0.0.1:29500"),
        ("dns:///127.0.0.1:29500", "127.0.0.1:29500"),
        ("[::1]:29500", "[::1]:29500"),
        ("203.0.113.7:29500", DEFAULT),  # behind NAT: no address of this host
        ("no-such-host.invalid:29500", DEFAULT),
    ],
)
def test_the_coordinator_s_address_is_bound_where_it_is_of_this_host(
    monkeypatch: pytest.MonkeyPatch, coordinator: str, bound: str
) -> None:
    local_job(monkeypatch, 2)
    assert coordinator_address.choose(DEFAULT, coordinator) == bound


def test_a_host_s_own_name_at_a_loopback_address_cuts_no_other_host_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolving(monkeypatch, "node-a", ["127.0.1.1"])
    local_job(monkeypatch, 2)
    assert coordinator_address.choose(DEFAULT, "node-a:29500") == DEFAULT
    local_job(monkeypatch, 4)
    assert coordinator_address.choose(DEFAULT, "node-a:29500") == "127.0.1.1:29500"
    # Of several addresses gRPC takes those of this host.
    resolving(monkeypatch, "node-a", ["127.0.1.1", "127.0.0.2", "203.0.113.7"])
    assert coordinator_address.choose(DEFAULT, "node-a:29500") == "node-a:29500"


def test_the_process_that_has_a_port_is_named() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"[::]:{port}"):
            with pytest.raises(InitializationError) as raised:
                coordinator_address.wait_until_free(address, 0.2)
            assert f"taken by process {os.getpid()} (" in str(raised.value)
            assert f"which listens on 0.0.0.0:{port}" in str(raised.value)
    coordinator_address.wait_until_free(f"127.0.0.1:{port}", 0.2)


def test_a_service_of_the_same_user_has_its_port_for_itself() -> None:
    """gRPC would listen beside it, and each would get some of the processes."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        coordinator_address.wait_until_free(f"127.0.0.1:{port}", 0.2)  # a reservation
        coordinator_address.wait_until_free(f"127.0.0.2:{port}", 0.2)
        taken.listen()
        with pytest.raises(InitializationError, match=re.escape(f"listens on 127.0.0.1:{port}")):
            coordinator_address.wait_until_free(f"127.0.0.1:{port}", 0.2)


def test_an_address_of_another_host_cannot_be_bound() -> None:
    with pytest.raises(InitializationError, match="Cannot assign requested address"):
        coordinator_address.wait_until_free("203.0.113.7:29500", 0.0)


def test_a_port_that_is_taken_at_any_address_of_the_name_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients that try the other address first would reach the other program."""
    resolving(monkeypatch, "here", ["127.0.0.2", "127.0.0.1"])
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"here:{other.getsockname()[1]}"
        with pytest.raises(InitializationError, match=rf"process {os.getpid()} .* 127\.0\.0\.1:"):
            coordinator_address.wait_until_free(address, 0.2)
