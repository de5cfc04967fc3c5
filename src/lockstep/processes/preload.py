"""``--preload``: processes that are forks of an interpreter which has imported their modules.

The processes of a job import the same modules, which takes each of them seconds of a processor, and
takes them again after a failure. With ``--preload`` each host imports them once, for all processes
and all attempts of a run: in an interpreter of its own (`preloaded`), which the agent of the host
asks for a fork where it would start a process. The fork becomes a child of the agent, as any other
process of the job.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from lockstep._errors import LaunchError
from lockstep.processes.job_spec import LaunchSpec
from lockstep.processes.process_start import Start, spawn
from lockstep.system import channel, process_tree

_MAIN = "lockstep.processes.preloaded"
_FORK_SECONDS = 5.0
"""A fork takes milliseconds, and longer on a machine that swaps. The agent of a host has to answer
its launcher meanwhile (`lockstep.hosts.lease`)."""
_OWN = ("LOCKSTEP_PROCESS_ID", "LOCKSTEP_LOCAL_PROCESS_ID", "LOCKSTEP_ATTEMPT", "JAX_PROCESS_ID")
"""Variables that are none of a host's: a module that reads one at its import fails."""
_LONGEST_ANSWER = 1 << 16
_HAS_ENDED = (
    "the interpreter that imports the modules for all processes of this host has ended. Likely "
    "causes: (a) a module crashes, which its last lines show, (b) no memory was left, (c) it was "
    "killed"
)


class PreloadError(LaunchError):
    """The modules of ``--preload`` cannot be had in a process that is forked."""


class Preloaded:
    """The interpreter of this host, which ends with this process.

    It begins with the first `is_ready`. One that has ended since begins anew.
    """

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._pid = 0
        self._ready = False
        self._began = 0.0

    @property
    def pids(self) -> frozenset[int]:
        """Its pid, while there is one: it outlives the attempts of a job."""
        return frozenset({self._pid} if self._pid else ())

    def is_ready(self, job: LaunchSpec) -> bool:
        """Whether it has imported the modules of ``job``, or there are none. Raises `PreloadError`
        if it cannot, and OSError."""
        if not job.preload:
            return True
        if self._ready and self._has_ended():
            self._forget()
        if self._line is None:
            self._begin(job)
        if not self._ready and self._readable(0.0):
            self._ready = bool(self._answer().get("ready"))
        limit = job.config.start_timeout
        if not self._ready and limit and time.monotonic() > self._began + limit:
            self._fail(f"the imports have taken more than --start-timeout ({limit:g} s)")
        return self._ready

    def starter(self, job: LaunchSpec) -> Callable[[Start], int]:
        """What starts a process of ``job``."""
        return self.fork if job.preload else spawn

    def fork(self, start: Start) -> int:
        """The pid of a new process. Raises OSError and `PreloadError`."""
        order = {
            "program": start.command[start.command.index("--") + 1 :],
            "environ": dict(start.environ),
            "inherited": list(start.inherited),
            "cores": sorted(start.cores) if start.cores is not None else None,
        }
        file = os.memfd_create("order")
        try:
            with open(file, "w", closefd=False) as text:
                json.dump(order, text)
            self._send([file, *start.streams, *start.inherited])
        finally:
            os.close(file)
        if not self._readable(_FORK_SECONDS):
            self._fail(f"the interpreter has not forked within {_FORK_SECONDS:g} s")
        answer = self._answer()
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return int(answer["pid"])

    def _begin(self, job: LaunchSpec) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            environ = {k: v for k, v in job.environ_of(job.first).items() if k not in _OWN}
            words = [str(theirs.fileno()), ",".join(job.preload), *job.program]
            with open(os.devnull) as null:
                self._pid = spawn(
                    Start(
                        command=[sys.executable, "-P", "-m", _MAIN, *words],
                        environ=environ,
                        streams=(null.fileno(), 1, 2),
                        inherited=[theirs.fileno()],
                        cores=job.cores_of(job.first),
                    )
                )
        self._line, self._began = ours, time.monotonic()

    def _send(self, fds: Sequence[int]) -> None:
        assert self._line is not None, "it is asked only when it is ready"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `_answer` says it
            self._line.sendmsg([b"!"], rights)

    def _readable(self, seconds: float) -> bool:
        assert self._line is not None
        return channel.is_ready(self._line.fileno(), select.POLLIN, seconds)

    def _has_ended(self) -> bool:
        assert self._line is not None
        return self._readable(0.0) and not self._line.recv(1, socket.MSG_PEEK)

    def _answer(self) -> dict[str, Any]:
        assert self._line is not None
        data = b""
        with contextlib.suppress(ConnectionResetError):
            data = self._line.recv(_LONGEST_ANSWER)
        if not data:
            self._pid = 0  # it may be another process's by now
        answer = json.loads(data) if data else {"problem": _HAS_ENDED}
        if "problem" in answer:
            self._fail(str(answer["problem"]))
        return answer

    def _fail(self, why: str) -> NoReturn:
        process_tree.kill(set(self.pids))
        self._forget()
        raise PreloadError(f"--preload: {why}")

    def _forget(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line, self._pid, self._ready = None, 0, False
