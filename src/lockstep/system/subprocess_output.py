"""Runs other programs and reads their output."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence

PROBE_SECONDS = 10.0
"""A command that takes longer is considered hung."""
_END_SECONDS = 1.0
"""For a process that was killed to end."""


def run(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """The status and the output of a command. Raises OSError or `subprocess.TimeoutExpired`.

    Unlike `subprocess.run` it returns in time also where the process waits in the kernel, in a
    driver or a file system that hangs: no signal ends such a process before that wait is over.
    """
    none, pipe = subprocess.DEVNULL, subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=none, stdout=pipe, stderr=pipe, text=True, errors="replace"
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except BaseException:  # the time is over, or the user interrupts
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        for each in filter(None, (process.stdout, process.stderr)):
            each.close()
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def said_by(*command: str) -> str:
    """The output of a command; empty when it fails or takes longer than `PROBE_SECONDS`."""
    try:
        done = run(command, PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout
