"""Reserves a free port until the coordination service listens on it.

A port that is found and released again could be taken by another process in between. So the port
stays bound, by a socket that never listens and therefore accepts no connections. The service binds
the same port as well, which SO_REUSEPORT on both sockets allows (gRPC sets it). Other processes
cannot get the port: the kernel does not assign bound ports, and binding it by number needs the same
option and the same user.
"""

from __future__ import annotations

import socket

from lockstep._errors import LaunchError

LOOPBACK = "127.0.0.1"


def reserve(host: str = LOOPBACK) -> socket.socket:
    """A bound socket on a free port of ``host``. The reservation lasts until it is closed.

    Raises `LaunchError` when there is none.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, 0))
    except OSError as error:
        held.close()
        raise LaunchError(
            f"no port on {host} is available for the coordination service: {error.strerror}. "
            "Check that the loopback interface is up, and that there are free ephemeral ports "
            "(net.ipv4.ip_local_port_range)."
        ) from error
    return held


def address(held: socket.socket) -> str:
    """``HOST:PORT`` of a reservation."""
    host, port = held.getsockname()
    return f"{host}:{port}"
