"""Lines on stderr, of a process and of what starts it."""

from __future__ import annotations

import contextlib
import sys


def complain(text: str) -> None:
    """Prints ``text`` as a line of Lockstep's, if stderr can be written."""
    print_line(f"lockstep: {text}")


def print_line(text: str) -> None:
    """Prints ``text``, if it can: stderr may be closed, or its reader gone."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
