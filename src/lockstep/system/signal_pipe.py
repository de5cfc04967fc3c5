"""Signals as bytes of a descriptor, for a loop that waits for descriptors."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
from collections.abc import Callable, Iterable

_libc = ctypes.CDLL(None, use_errno=True)


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


def register(
    selector: selectors.BaseSelector, handled: Iterable[int], on_signal: Callable[[int], object]
) -> tuple[int, int]:
    """Registers, as the data of a key of ``selector``, a function for its loop to call, which calls
    ``on_signal`` with the number of each signal that has come. Returns `open_for`'s descriptors."""
    reads, writes = open_for(handled)

    def on_signals() -> None:
        for number in os.read(reads, 512):
            on_signal(number)

    selector.register(reads, selectors.EVENT_READ, on_signals)
    return reads, writes


def open_blocked(blocked: Iterable[int]) -> int:
    """A descriptor that is readable while one of these signals, which are blocked, is pending."""
    mask = sum(1 << (number - 1) for number in blocked).to_bytes(128, "little")
    fd: int = _libc.signalfd(-1, mask, os.O_CLOEXEC)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "signalfd")
    return fd
