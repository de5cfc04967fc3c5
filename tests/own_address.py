"""An address by which hosts are told apart, for tests that start agents on this machine alone."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from lanes import needs
from processes import write_command


def own_address() -> str:
    """An address of this machine that is no loopback; "" where it has no network."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])
    return ""


def ssh_here(folder: Path, variables: str = "") -> str:
    """A command in the place of ssh: the last word, a command, runs here, as on another host.

    Its environment gets these ``variables``, as words of ``env``.
    """
    own = own_address()
    there = f'{variables} SSH_CONNECTION="{own} 1 {own} 22"'
    return write_command(folder / "ssh", f'for last; do :; done\nexec env {there} sh -c "$last"')


networked = needs(own_address() != "", "needs a network, by which hosts are told apart")
