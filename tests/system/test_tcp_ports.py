"""Which sockets of this machine have a port."""

from __future__ import annotations

import os
import socket

from lockstep.system import tcp_ports


def test_a_port_s_clients_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert tcp_ports.established(port) == 0
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0]:
            assert tcp_ports.established(port) == 1


def test_what_takes_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = tcp_ports.problem("127.0.0.1", port, shared=True)
        assert f"the port is taken by process {os.getpid()} (" in said
        assert said.endswith(f"which listens on 127.0.0.1:{port}")
        assert tcp_ports.taken("0.0.0.0", port) == said
        assert not tcp_ports.taken("127.0.0.2", port)
    assert tcp_ports.problem("127.0.0.1", port, shared=False) == ""


def test_a_port_that_is_bound_is_free_for_those_that_share_it() -> None:
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert tcp_ports.problem("127.0.0.1", port, shared=True) == ""
        said = tcp_ports.problem("127.0.0.1", port, shared=False)
        assert "taken by a socket that does not listen" in said
    assert tcp_ports.problem("127.0.0.1", 1 << 20, shared=True).endswith("between 1 and 65535")
