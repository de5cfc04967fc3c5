"""An attacker between a host and its switch, who changes one bit of the engine's traffic.

The program forwards what passes, whole packets and unfinished checksums as the kernel has them, so
that TCP takes a changed byte as it would take any other. It knows the engine's connections by the
name of the key in their first message.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PROGRAM = '''
import select, socket, struct, sys
from pathlib import Path

port, inner, what, trigger = sys.argv[1:]
PACKET_VNET_HDR, HEADER, NEEDS_CHECKSUM, OUTGOING = 15, 10, 1, 4

def tap(name):
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(263, PACKET_VNET_HDR, 1)
    made.setsockopt(263, 1, struct.pack("IHH8x", socket.if_nametoindex(name), 1, 0))
    made.bind((name, 3))
    return made

def payload(frame):
    """(flow, where the bytes of TCP begin), (None, 0) for anything else."""
    if frame[22:24] != b"\\x08\\x00" or frame[33] != 6:
        return None, 0
    start = 24 + 4 * (frame[24] & 15)
    flow = bytes(frame[36:44]) + bytes(frame[start:start + 4])
    return flow, start + 4 * (frame[start + 12] >> 4)

def flip(frame, at):
    assert frame[0] & NEEDS_CHECKSUM, "the checksum is there already"
    frame[at] ^= 1
    print("changed", what, flush=True)

engines, done = set(), False

def inspect(frame):
    global done
    flow, at = payload(frame)
    if flow is None or len(frame) <= at:
        return
    begin = bytes(frame[at:at + 3])
    if frame[at] == 22 and b"lockstep" in frame[at:]:
        engines.add(flow)
        if what == "handshakes":
            flip(frame, at + 20)
    if what == "data" and not done and flow in engines and begin == b"\\x17\\x03\\x03":
        if Path(trigger).exists():
            done = True
            flip(frame, len(frame) - 1)

sides = {tap(port): tap(inner)}
[(host, switch)] = sides.items()
print("up", flush=True)
while True:
    for ready in select.select([host, switch, sys.stdin], [], [])[0]:
        if ready is sys.stdin:  # its end, and so this program's
            sys.exit()
        data, address = ready.recvfrom(1 << 17)
        if address[2] == OUTGOING:
            continue
        frame = bytearray(data)
        if ready is host:
            inspect(frame)
        (switch if ready is host else host).send(frame)
'''


class Attacker:
    """Changes one record once `strike` is called ("data"), or each handshake ("handshakes").

    ``enter`` is what runs a command on the switch, and ``port`` the one of the host whose messages
    are changed on their way.
    """

    def __init__(self, enter: Sequence[str], port: str, what: str, folder: Path) -> None:
        self._trigger = folder / "strike"
        for command in (
            ["link", "add", "inner", "type", "veth", "peer", "name", "outer"],
            ["link", "set", "dev", port, "nomaster"],
            ["link", "set", "dev", "outer", "master", "br0", "up"],
            ["link", "set", "inner", "up"],
        ):
            subprocess.run([*enter, "ip", *command], check=True, timeout=20)
        self._process = subprocess.Popen(
            [*enter, sys.executable, "-c", _PROGRAM, port, "inner", what, str(self._trigger)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "up"

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def strike(self) -> None:
        self._trigger.touch()

    def wait(self) -> str:
        """What has been changed."""
        return self._line()

    def end(self) -> None:
        self._process.communicate(timeout=20)
