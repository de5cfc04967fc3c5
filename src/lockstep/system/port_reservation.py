"""A port that stays ours from the moment it is found until the coordination service listens on it.

Finding a free port and letting it go again leaves a gap in which anybody can take it. Here the port
stays bound, by a socket that never listens and so never takes a connection away. The service binds
the same port beside it, which SO_REUSEPORT on both sockets allows (gRPC sets it). Everybody else is
refused: the kernel hands out no port that is bound to whoever asks for any, and
one that is asked for by number needs the same option and the same user.
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
            f"no port to be had on {host} for the coordination service: {error.strerror}. "
            "Is the loopback interface up, and are there ephemeral ports left "
            "(net.ipv4.ip_local_port_range)?"
        ) from error
    return held


def address(held: socket.socket) -> str:
    """``HOST:PORT`` of a reservation."""
    host, port = held.getsockname()
    return f"{host}:{port}"
