"""The shared memory of this host: its first process makes it, the others open it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from typing import Any

from lockstep import _engine
from lockstep._errors import InitializationError
from lockstep.runtime import absent, store
from lockstep.runtime.topology import Peer


def agree_on_nonce(client: Any, peers: Sequence[Peer], process: int, epoch: int) -> int:
    """A number that all processes know and no other job has; process 0 draws it."""
    key = f"{store.PREFIX}/nonce/{epoch}"
    if process != 0:
        return store.hear(client, key, peers[0].label, absent.look(peers, process, 0))
    nonce = secrets.randbits(63)
    store.say(client, key, nonce)
    return nonce


def open_arena(client: Any, peers: Sequence[Peer], process: int, epoch: int, nonce: int) -> int:
    """A file descriptor of the arena of this host, which the caller closes."""
    first = next(peer for peer in peers if peer.host_id == peers[process].host_id)
    key = f"{store.PREFIX}/arena/{epoch}/{first.process}"
    if first.process == process:
        with store.telling_errors(client, key):
            fd = _engine.create_arena(nonce)
        store.say(client, key, fd)
        return fd
    look = absent.look(peers, process, first.process)
    path = f"/proc/{first.pid}/fd/{store.hear(client, key, first.label, look)}"
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        # It may end at this moment: its files go before it does.
        absent.look(peers, process, first.process, patience=1.0)()
        raise InitializationError(
            f"cannot open the shared memory of {first.label} at {path}: {error.strerror}. "
            "The processes of one host must run as one user and see the same /proc (not hidden "
            "by hidepid). --collectives gloo needs no shared memory."
        ) from error
