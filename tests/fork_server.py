"""Forks of a ready interpreter, for tests that do not test the start.

Python with jax takes 0.4 s of a processor to start, and a fork of a process that has imported jax a
hundredth of that. `start` asks the server of this process for a fork (`fork_server_main`), which
becomes ``lockstep run``, say; the processes of that job are then forks of the launcher.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fork_server_main
from fork_server_main import MARK, NO_MARK, NUMBER
from processes import clean_environ

WANTED = "TESTS_WITHOUT_FORKS" not in os.environ
"""Not where an import of jax is what counts: `scripts/versions.py` sets the variable."""
START_SECONDS = 60.0
_OF_A_JOB = {
    "PYTHONHASHSEED": "0",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""What the launcher sets for the processes of a job and is read when they start."""


class Forked(subprocess.Popen[bytes]):
    """A process that the server has forked and waits for."""

    _child_created = False  # by this process: Popen's own finalizer has nothing to do

    def __init__(self, reports: int, output: tuple[Path, Path]) -> None:
        self.returncode: int | Any = None
        self.args = "a fork"
        self._reports = reports
        self._output = output
        self.pid = self._next_number(START_SECONDS)

    def _next_number(self, timeout: float | None) -> int:
        if not select.select([self._reports], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        text = os.read(self._reports, len(NUMBER % 0))
        assert text, "the server that forks interpreters has ended"
        return int(text)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(self._next_number(timeout))
            os.close(self._reports)
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def communicate(
        self, input: bytes | None = None, timeout: float | None = None
    ) -> tuple[bytes, bytes]:
        assert not input, "a forked process has no standard input"
        self.wait(timeout)
        return self._output[0].read_bytes(), self._output[1].read_bytes()


def start(
    command: Sequence[str], environ: Mapping[str, str], stdout: Path, stderr: Path, enter: int = 0
) -> Forked:
    """Starts ``python args...`` as a fork of the server; its output is appended to the files.

    ``enter`` is a process whose namespaces it enters first.
    """
    reports, theirs = os.pipe()
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
    fds = [os.open(os.devnull, os.O_RDONLY), os.open(stdout, flags), os.open(stderr, flags), theirs]
    collectives = _collectives(command)
    request = [list(command), {**_OF_A_JOB, **collectives, **environ}, os.getcwd(), enter]
    ours, _ = server(*collectives.items())
    socket.send_fds(ours, [json.dumps(request).encode()], fds)
    for fd in fds:
        os.close(fd)
    return Forked(reports, (stdout, stderr))


def _collectives(command: Sequence[str]) -> dict[str, str]:
    """What a launcher sets because of its option, which counts when lockstep is imported."""
    chosen = command[command.index("--collectives") + 1] if "--collectives" in command else ""
    return {"LOCKSTEP_COLLECTIVES": chosen} if chosen not in ("", "lockstep") else {}


@functools.cache
def server(*variables: tuple[str, str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The socket to the server of this process with these variables, and the server."""
    environ = clean_environ(**_OF_A_JOB, **dict(variables), **{MARK: NO_MARK})
    del environ["JAX_PLATFORMS"]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", fork_server_main.__file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environ,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return ours, process
