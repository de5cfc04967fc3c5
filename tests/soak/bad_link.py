"""A link that delays, drops or reorders the packets of a host: the kernel here may have no netem.

As a program, it forwards whole packets and unfinished checksums as the kernel has them.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

_PACKET_VNET_HDR, _MEMBERSHIP, _OUTGOING = 15, struct.Struct("IHH8x"), 4


class Quality(NamedTuple):
    """What a link does to its packets."""

    delay: float = 0.0
    """Seconds, of which up to a half is random: without `keeps_order` packets overtake others."""
    drops: float = 0.0
    """A share."""
    keeps_order: bool = True


class BadLink:
    """Stands between a host and its switch until `end`.

    ``enter`` is what runs a command on the switch, and ``port`` the one of the host.
    """

    def __init__(self, enter: Sequence[str], port: str, quality: Quality) -> None:
        self._enter, self._port = enter, port
        inner, outer = f"i{port}", f"o{port}"
        self._ip("link", "add", inner, "type", "veth", "peer", "name", outer)
        self._ip("link", "set", "dev", port, "nomaster")
        self._ip("link", "set", "dev", outer, "master", "br0", "up")
        self._ip("link", "set", inner, "up")
        words = [port, inner, str(quality.delay), str(quality.drops), str(quality.keeps_order)]
        self._process = subprocess.Popen(
            [*enter, sys.executable, "-P", __file__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == b"up\n"

    def end(self) -> None:
        """Gives the host its link back."""
        self._process.communicate(timeout=20)
        self._ip("link", "delete", f"i{self._port}")
        self._ip("link", "set", "dev", self._port, "master", "br0")

    def _ip(self, *words: str) -> None:
        subprocess.run([*self._enter, "ip", *words], check=True, timeout=20)


def _tap(name: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(263, _PACKET_VNET_HDR, 1)
    made.setsockopt(263, 1, _MEMBERSHIP.pack(socket.if_nametoindex(name), 1, 0))
    made.bind((name, 3))
    return made


def _forward(port: str, inner: str, quality: Quality) -> None:
    host, switch = _tap(port), _tap(inner)
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    last = count = 0
    print("up", flush=True)
    while True:
        rest = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        found = select.select([host, switch, sys.stdin], [], [], rest)[0]
        if sys.stdin in found:  # its end, and so this program's
            return
        for ready in (each for each in (host, switch) if each in found):
            frame, address = ready.recvfrom(1 << 17)
            if address[2] == _OUTGOING or random.random() < quality.drops:
                continue
            at = time.monotonic() + quality.delay * random.uniform(0.5, 1.0)
            last = max(last, at) if quality.keeps_order else at
            count += 1
            heapq.heappush(waiting, (last, count, switch if ready is host else host, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, to, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # a full queue drops packets, as real ones do
                to.send(frame)


if __name__ == "__main__":
    _, own_port, own_inner, *words = sys.argv
    _forward(own_port, own_inner, Quality(float(words[0]), float(words[1]), words[2] == "True"))
