"""An address by which hosts are told apart, for tests that start agents on this machine alone."""

from __future__ import annotations

import contextlib
import socket

from lanes import needs


def own_address() -> str:
    """An address of this machine that is no loopback; "" where it has no network."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])
    return ""


networked = needs(own_address() != "", "needs a network, by which hosts are told apart")
