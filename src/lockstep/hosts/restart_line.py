"""An agent's line to the server that decides about restarts: `restart_server` has the messages."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from lockstep import _run_files
from lockstep._config import Config
from lockstep._errors import ConfigError, LaunchError
from lockstep.bootstrap import coordinator_address
from lockstep.hosts import network_probe, restart_server
from lockstep.hosts.restart_server import keep_alive
from lockstep.job import job_key
from lockstep.processes import program
from lockstep.processes.host_dir import HostDir
from lockstep.system import fd_limit
from lockstep.system.channel import Channel

_PAUSE_SECONDS = 0.2


class Attempt(NamedTuple):
    """What all processes of an attempt have in common."""

    attempt: int
    """Its number."""
    coordinator: str


def begin(
    config: Config, shared: HostDir | None, name: str, restarts: int, grace: float | None
) -> tuple[RestartLine, Attempt]:
    """The line of this process, and the attempt that begins now.

    ``shared`` is the directory of this host, in which the attempt gets its folder; ``name`` is that
    of the job. Raises `LockstepError`.
    """
    if config.run_dir or config.collectives == "mpi":
        other = "lockstep run" if config.run_dir else "the launcher of MPI"
        raise ConfigError(f"--max-restarts of lockstep worker: here {other} owns the processes.")
    if shared is None:
        raise LaunchError("--max-restarts needs a private directory on this host.")
    process, address = config.process_id or 0, str(config.coordinator)
    if config.restart_line is not None:
        line = RestartLine.inherited(config.restart_line, process)
        fd_limit.close_all_but({line.fd, shared.held})  # the directory's lock of before
    else:
        key, name = _key(config, shared), f"restarts of {name}"
        if process == 0:
            size, timeout = config.num_processes or 1, config.start_timeout
            after = program.GRACE if grace is None else grace
            restart_server.start(address, size, name, key, restarts, after, timeout)
        line = RestartLine.connect(address, name, key, process, config.start_timeout)
    attempt = line.wait_for_start()
    shared.take_attempt(attempt.attempt, process)
    return line, attempt


def _key(config: Config, shared: HostDir) -> bytes:
    """The job's; empty where it has none. Raises `LaunchError` for a key file of no use."""
    file = job_key.read_key(config.key_file)
    if file.problem:
        raise LaunchError(f"{file.problem} {file.fix}")
    if file.key is None and config.local_num_processes == config.num_processes:
        file = job_key.read_key(str(shared.path / _run_files.SECRET))
    return job_key.derive(file.key, "restarts") if file.key else b""


def start_again(
    line: RestartLine, shared: HostDir, environ: Mapping[str, str], config: Config
) -> NoReturn:
    """Becomes the agent of the next attempt: a process can have the engine only once.

    The lock on ``shared`` keeps the records in it until that agent has it.
    """
    (shared.path / _run_files.STOPPING).unlink(missing_ok=True)
    for fd in (line.fd, shared.held):
        os.set_inheritable(fd, True)
    again = dataclasses.replace(Config(), coordinator=config.coordinator, restart_line=line.fd)
    attempt = {"LOCKSTEP_ATTEMPT": str(line.attempt + 1)}
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(command[0], command, {**environ, **again.to_environ(), **attempt})


class RestartLine:
    """The connection, which stays open while this process executes itself for the next attempt."""

    def __init__(self, connection: socket.socket, process: int) -> None:
        keep_alive(connection)
        self._channel = Channel.of(connection)
        self._process = process
        self.attempt = 0
        """The number of the present one."""
        self.fd = self._channel.fileno()
        os.set_inheritable(self.fd, False)

    @classmethod
    def inherited(cls, fd: int, process: int) -> RestartLine:
        """That of the agent of the attempt before, which was this process."""
        return cls(socket.socket(fileno=fd), process)

    @classmethod
    def connect(
        cls, address: str, name: str, key: bytes, process: int, timeout: float
    ) -> RestartLine:
        """Connects to the agent of process 0, which may still have to start.

        ``timeout``: after so many seconds it raises `LaunchError`; 0: never.
        """
        host, port = coordinator_address.split(address)
        end = time.monotonic() + (timeout or float("inf"))
        while True:
            try:
                seconds = network_probe.CONNECT_SECONDS
                return cls(network_probe.connect(host, port, name, key, seconds), process)
            except OSError as error:
                if time.monotonic() > end:
                    raise LaunchError(
                        f"process {process} does not reach the agent of process 0 at {address} "
                        f"within {timeout:g} s: {error}. Does it run, with --max-restarts and the "
                        "same key (LOCKSTEP_KEY_FILE), and does a firewall let the port pass?"
                    ) from error
            time.sleep(_PAUSE_SECONDS)

    def wait_for_start(self) -> Attempt:
        """Reports that this process is ready, and waits for all others.

        Raises `LaunchError` where the job cannot start.
        """
        self._send("ready")
        while True:
            message = self._channel.next()
            if message is None or message.kind == "over":
                why = message.head["why"] if message else "the agent of process 0 has ended"
                raise LaunchError(f"process {self._process} was not started: {why}")
            if message.kind == "start":
                self.attempt = int(message.head["attempt"])
                return Attempt(self.attempt, str(message.head["coordinator"]))

    def failure(self) -> str:
        """Why the program has to end, if that has become known since the last call; else empty."""
        with contextlib.suppress(TimeoutError):
            message = self._channel.next(0.0)
            if message is None:
                return "the agent of process 0 has ended"
            if message.kind == "failed":
                return "another has failed"
        return ""

    def ended(self, status: int, stopped: bool, consequence: bool = False) -> None:
        """Reports how the program has ended: its exit code, below 0 a signal; whether a signal to
        the agent, or another program's failure, has ended it."""
        host = platform.node()
        self._send("ended", status=status, stopped=stopped, consequence=consequence, host=host)

    def decision(self, seconds: float) -> bool | None:
        """Whether the job starts again; None: not decided within ``seconds``."""
        end = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            while True:
                message = self._channel.next(max(0.0, end - time.monotonic()))
                if message is None or message.kind == "over":
                    return False
                if message.kind == "again":
                    return True
        return None

    def close(self) -> None:
        """The server takes this agent for lost."""
        self._channel.close()

    def _send(self, kind: str, **values: Any) -> None:
        self._channel.send(kind, process=self._process, **values)
