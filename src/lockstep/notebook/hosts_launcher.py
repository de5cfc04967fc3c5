"""Starts a notebook's processes on several hosts: ``... -m lockstep.notebook.hosts_launcher DIR``.

It is ``lockstep run --hosts``, and the ports of ipyparallel's controller, which listens on this
machine's loopback alone, are sockets in the private directories of all hosts (`hosts.relay`). The
controller's file, with the key that signs its messages, travels as a variable: through ssh's input.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from lockstep._errors import LockstepError
from lockstep.launch import hosts_command, options, run_command, run_dir
from lockstep.notebook import tether

INFO = "IPP_CONNECTION_INFO"
"""ipyparallel's variable with the contents of the controller's file for engines."""


def socket_name(port: int) -> str:
    """The name of a port's socket, as ipyparallel makes addresses: interface, colon, port."""
    return f"port:{port}"


def ports(info: str) -> list[int]:
    """The ports of a controller."""
    found: list[int] = []
    for value in json.loads(info).values():
        each = value if isinstance(value, list) else [value]
        found += [port for port in each if isinstance(port, int)]
    return found


def _connects(info: str) -> dict[str, Callable[[], socket.socket]]:
    return {
        socket_name(port): functools.partial(socket.create_connection, ("127.0.0.1", port))
        for port in ports(info)
    }


def main() -> int:
    """Runs the processes; the exit status. Raises `LockstepError`."""
    folder, *words = sys.argv[1:]
    args = options.run_parser().parse_args([*words, "--auto-init", "--export", INFO])
    environ = dict(os.environ)
    program = ("-m", "lockstep.notebook.engine")
    own = run_dir.make_locked()[0]
    try:
        Path(folder, tether.RUN_DIR).write_text(str(own))
        config = run_command.configure(args, environ)
        caller = hosts_command.Caller(_connects(environ[INFO]), own)
        return hosts_command.run(args, program, config, environ, caller)
    finally:
        shutil.rmtree(own, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LockstepError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        sys.exit(2)
