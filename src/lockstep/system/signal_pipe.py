"""Signals as bytes of a pipe, for a loop that waits for descriptors."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable


def open_for(handled: Iterable[int]) -> tuple[int, int]:
    """The ends of a pipe, to read and to write, that gets a byte with the number of each signal.

    From now on the signals of ``handled`` do nothing else. Main thread only.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    for number in handled:
        signal.signal(number, lambda number, frame: None)
    return reads, writes
