"""Runs other programs and reads their output."""

from __future__ import annotations

import subprocess

PROBE_SECONDS = 10.0
"""A command that takes longer is considered hung."""


def said_by(*command: str) -> str:
    """The output of a command; empty when it fails or takes longer than `PROBE_SECONDS`."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
