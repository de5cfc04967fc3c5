"""What moving whole arrays in pieces shares: their size, and the check of a process's index.

Every process takes part in every piece: one collective over all devices moves it, and the process
that wants it copies it out. So the extra memory is that of a piece, and the bytes on the wire are
those of the array, times the number of processes. Bytes are moved as they are: no value is changed,
and types that an implementation of the collectives lacks are moved too.
"""

from __future__ import annotations

import jax

PIECE_BYTES = 16 << 20
"""The size of a piece on all devices of a process together. While an array moves, a process holds
several such: what goes in, what comes out, and a copy of each."""
Index = tuple[slice, ...]


def check_process(name: str, process: int | None) -> None:
    count = jax.process_count()
    if process is not None and not 0 <= process < count:
        raise ValueError(
            f"lockstep.{name}: there is no process {process}: the job has {count} "
            f"process{'es' * (count > 1)}, from 0."
        )
