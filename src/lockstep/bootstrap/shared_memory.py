"""The shared memory of this host: its first process makes it, the others open it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lockstep._errors import InitializationError
from lockstep.bootstrap import startup_liveness
from lockstep.engine import bindings
from lockstep.job import kv_store
from lockstep.job.topology import Peer
from lockstep.system import memory_files

_NAME = "lockstep-arena"
"""The name that native/transport/shm/segment.cc gives it."""


def open_arena(
    shared: kv_store.Store, peers: Sequence[Peer], process: int, epoch: int, nonce: int
) -> int:
    """A file descriptor of the arena of this host, which the caller closes."""
    first = next(peer for peer in peers if peer.host_id == peers[process].host_id)
    name = f"{kv_store.PREFIX}/arena/{epoch}/{first.process}"
    if first.process == process:
        with kv_store.publishing_errors(shared, name):
            fd = bindings.create_arena(nonce)
        shared.put(name, fd)
        return fd
    check = startup_liveness.check(peers, process, first.process)
    fd = shared.get(name, first.label, check)
    try:
        return memory_files.open_of(first.pid, fd, [_NAME], os.O_RDWR)
    except OSError as error:
        # The other process may end at this moment: its files go before it does.
        startup_liveness.check(peers, process, first.process, timeout=1.0)()
        raise InitializationError(
            f"cannot open the shared memory of {first.label}, its file descriptor {fd!r:.100}: "
            f"{error.strerror}. The processes of one host must run as one user and see the same "
            "/proc (not hidden by hidepid). --collectives gloo needs no shared memory."
        ) from error
