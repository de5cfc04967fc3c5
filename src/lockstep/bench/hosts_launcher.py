"""Starts a benchmark's job on several hosts: ``... -m lockstep.bench.hosts_launcher SOCKET WORDS``.

It is ``lockstep run --hosts``, and the benchmark's socket is one in the private directories of all
hosts (`lockstep.hosts.relay`). The words are options of ``lockstep run``.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep._errors import LockstepError
from lockstep.hosts.relay import short_path
from lockstep.launch import hosts_command, options, run_command, run_dir

SOCKET = "bench"
"""Its name in the private directory of a run."""
WORKER = ("-m", "lockstep.bench.worker")


def _connect_to(path: Path) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        connected = socket.socket(socket.AF_UNIX)
        try:
            with short_path(path.parent) as folder:
                connected.connect(f"{folder}/{path.name}")
        except OSError:
            connected.close()
            raise
        return connected

    return connect


def command(path: Path, words: Sequence[str]) -> list[str]:
    """The command line of a launcher whose processes connect to the socket at ``path``."""
    return [sys.executable, "-m", __name__, str(path), *words]


def main() -> int:
    """Runs the job; the exit status. Raises `LockstepError`."""
    path, *words = sys.argv[1:]
    # The directory of here need not be on the hosts, and the worker uses none.
    args = options.run_parser().parse_args([*words, "--chdir", "/"])
    environ = dict(os.environ)
    own = run_dir.make_locked()[0]
    try:
        config = run_command.configure(args, environ)
        caller = hosts_command.Caller({SOCKET: _connect_to(Path(path))}, own)
        return hosts_command.run(args, WORKER, config, environ, caller)
    finally:
        shutil.rmtree(own, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LockstepError as error:
        print(f"lockstep: {error}", file=sys.stderr)
        sys.exit(2)
