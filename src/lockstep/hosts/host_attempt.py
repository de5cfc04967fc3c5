"""One attempt of a job on one host: the processes that its agent has started (`host_agent`)."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep import _run_files
from lockstep._config import Config
from lockstep._words import processes
from lockstep.hosts import host_network, host_records
from lockstep.hosts.agent import Agent
from lockstep.hosts.checks import address_choice
from lockstep.hosts.lease import clock
from lockstep.hosts.relay import KINDS, Relay
from lockstep.nccl import gpus
from lockstep.processes import cpu_affinity, run_dir
from lockstep.processes.child_process import ChildProcess
from lockstep.processes.first_failure import not_started
from lockstep.processes.job_spec import LaunchSpec
from lockstep.processes.local_processes import (
    LEFTOVER_GRACE,
    end_coordination,
    make_wake_up,
    reap_members,
    signal_members,
)
from lockstep.processes.preload import Preloaded, PreloadError
from lockstep.system import process_tree
from lockstep.system.channel import Message
from lockstep.system.interfaces import interfaces
from lockstep.system.oom import OomKills

MAX_BACKLOG = 1 << 20
"""With more unsent bytes than this, the agent stops reading from its processes."""
_CHUNK = 1 << 16
STDOUT, STDERR = "stdout", "stderr"
_DONE = object()


@dataclasses.dataclass
class _Output:
    """Stdout or stderr of a process."""

    fd: int
    process_id: int
    stream: str


class HostAttempt:
    """Starts the processes of this host, and reports what becomes of them.

    What takes long (starting many processes, sending their records) is done step by step, one in
    each turn of the agent's loop, so that the agent answers and obeys meanwhile. Every message
    carries the number of the attempt.
    """

    def __init__(
        self, agent: Agent, order: Mapping[str, Any], folder: Path, preloaded: Preloaded
    ) -> None:
        """``order`` is the launcher's message: see `several_hosts.SeveralHosts`. ``preloaded``
        outlives the attempts."""
        self._agent = agent
        self._order = order
        self._preloaded = preloaded
        self._job = _spec(order, folder)
        self._members: list[ChildProcess] = []
        self._outputs: list[_Output] = []
        self._reported: set[int] = set()
        """Processes whose recorded error has been sent."""
        self._reading = True
        self._held = False
        self._signalled_at = float("inf")
        """When the launcher's first signal came."""
        self._waits = False
        """Whether the start waits for the imports of ``--preload``."""
        self._oom_kills = OomKills()
        self._network: socket.socket | None = None
        """To the host's agent in the network between hosts, until the first process has it."""
        self._network_pid = -1
        self._relay = Relay(agent.selector, self._send, {})
        self._sent: host_records.Sent = {}
        self._stdin = self._stdin_there = -1
        """Both ends of the standard input of process 0; the second until it has started."""
        self._stdin_left = b""
        self._bell = -1
        self._sweep_until: float | None = None
        self.runs = False
        """Whether it may have something running."""
        self._work: collections.deque[Iterator[None]] = collections.deque()
        """What is being done, the first of it now."""

    @property
    def number(self) -> int:
        """The number of this attempt."""
        return self._job.config.attempt

    @property
    def words(self) -> str:
        """What runs here, for a reader on this host."""
        job = self._job
        own = processes(range(job.first, job.first + job.processes))
        return f"{own} of {job.job_processes} of {job.program[0]}, attempt {self.number}"

    def _send(self, kind: str, body: bytes = b"", **values: Any) -> None:
        self._agent.send(kind, body, attempt=self.number, **values)

    def close(self) -> None:
        """Makes room for the next attempt, when all processes have ended."""
        self._work.clear()
        self._relay.close()
        self._close_stdin()
        self._close_stdin_there()
        if self._bell >= 0:
            self._agent.selector.unregister(self._bell)
            os.close(self._bell)
        for output in list(self._outputs):
            self._close_output(output)
        for name in (_run_files.WAKE_UP, _run_files.STOPPING):
            (self._job.run_dir / name).unlink(missing_ok=True)

    # Starting

    def start(self) -> None:
        """Begins to start the processes; reports the first that cannot be started."""
        self._work.append(self._starting())
        if self._job.first == 0:  # at once: what it reads may come before it has started
            self._stdin_there, self._stdin = os.pipe()
            os.set_blocking(self._stdin, False)

    @property
    def _is_stopped(self) -> bool:
        return self._signalled_at < float("inf")

    def _starting(self) -> Iterator[None]:
        process_id = self._job.first
        try:
            while not self._agent.lease.is_good(clock()):
                yield  # an order that has arrived late, or a launcher that was busy: it confirms
            self.runs = True
            os.chdir(str(self._order["directory"]))
            secret = self._job.run_dir / _run_files.SECRET
            secret.unlink(missing_ok=True)  # that of the attempt before
            run_dir.write_secret(secret, str(self._order["key"]))
            self._bell = make_wake_up(self._job)
            self._agent.watch(self._bell, self._on_recorded_error)
            self._relay.listen(self._job.run_dir, map(str, self._order["relayed"]))
            if self._order["network"]:
                ours, self._network = socket.socketpair()
                first = self._job.config_of(self._job.first)
                self._network_pid = host_network.start(ours, self._job.run_dir, first)
            while not self._preloaded.is_ready(self._job) and not self._is_stopped:
                self._waits = True
                yield
            self._waits = False
            for process_id in range(self._job.first, self._job.first + self._job.processes):
                yield
                if self._is_stopped:  # the job is being stopped already
                    self._send("not_started", process=process_id, why="")
                    break
                self._start(process_id)
        except (OSError, subprocess.SubprocessError, PreloadError) as error:
            self._send("not_started", process=process_id, why=not_started(error))
        if self._network:
            self._network.close()

    def _start(self, process_id: int) -> None:
        variables, inherited = {}, []
        if self._network and process_id == self._job.first:
            variables["LOCKSTEP_AGENT"] = str(self._network.fileno())
            inherited.append(self._network.fileno())
        stdin = self._stdin_there if process_id == 0 else 0
        try:
            start = self._preloaded.starter(self._job)
            process = ChildProcess(self._job, process_id, variables, inherited, stdin, start)
        finally:
            if process_id == 0:
                self._close_stdin_there()
        self._members.append(process)
        for fd, stream in ((process.stdout_fd, STDOUT), (process.stderr_fd, STDERR)):
            output = _Output(fd, process_id, stream)
            self._outputs.append(output)
            if self._reading:
                self._watch_output(output)
        self._send("started", process=process_id, pid=process.pid)

    # Output

    def _watch_output(self, output: _Output) -> None:
        self._agent.watch(output.fd, lambda: self._read(output))

    def _read(self, output: _Output) -> None:
        data = os.read(output.fd, _CHUNK)
        self._send("output", data, process=output.process_id, stream=output.stream)
        if not data:
            self._close_output(output)

    def _close_output(self, output: _Output) -> None:
        if self._reading:
            self._agent.selector.unregister(output.fd)
        self._outputs.remove(output)
        os.close(output.fd)

    def after_turn(self) -> None:
        """Goes on with what takes long; reads output only while the launcher takes it."""
        if self._work and next(self._work[0], _DONE) is _DONE:
            self._work.popleft()
        if self._sweep_until is not None:
            self._go_on_sweeping(self._sweep_until)
        assert self._agent.channel
        reads = not self._held and self._agent.channel.backlog <= MAX_BACKLOG
        if reads != self._reading:
            self._reading = reads
            for output in self._outputs:
                if reads:
                    self._watch_output(output)
                else:
                    self._agent.selector.unregister(output.fd)

    # What can happen

    def reaped(self, ended: Sequence[tuple[int, int]]) -> None:
        """Reports the ends of processes among these children."""
        lived = [process for process in self._members if process.lives]
        reap_members(self._members, ended, self._oom_kills)
        for process in lived:
            if not process.lives and process.exit is not None:
                self._report_error(process)
                self._send(
                    "exit",
                    process=process.process_id,
                    exit=dataclasses.asdict(process.exit),
                    at=time.monotonic_ns(),
                    was_killed=process.was_killed,
                    after_signal=process.ended_at >= self._signalled_at,
                )

    def _on_recorded_error(self) -> None:
        os.read(self._bell, 4096)
        self.reaped(process_tree.reap())  # a death that caused this error has happened by now
        for process in self._members:
            self._report_error(process)

    def _report_error(self, process: ChildProcess) -> None:
        if process.process_id not in self._reported and (record := process.record()):
            self._reported.add(process.process_id)
            self._send(
                "error",
                process=process.process_id,
                record=dataclasses.asdict(record),
                after_signal=record.time >= self._signalled_at,
            )

    def on_message(self, message: Message) -> None:
        """Does what the launcher says of this attempt."""
        head = message.head
        if head["attempt"] != self.number:
            return
        match message.kind:
            case "signal":
                self._signalled_at = min(self._signalled_at, time.monotonic())
                signal_members(self._job, self._members, int(head["number"]))
            case "lost":
                # Lost with their host: the processes here raise an error.
                with contextlib.suppress(OSError):
                    _run_files.write_lost(self._job.attempt_dir, list(map(int, head["processes"])))
            case "hold":
                self._held = bool(head["held"])
            case "stdin":
                self._on_stdin(message.body)
            case "collect":
                records = host_records.send(self._job, head, self._send, self._sent)
                self._work.append(records)
            case "sweep":
                self._begin_sweep()
            case kind if kind in KINDS:
                self._relay.on_message(message)

    def _begin_sweep(self) -> None:
        """Ends what the processes have left running, after some time to end by itself."""
        if self._network_pid >= 0:
            process_tree.kill({self._network_pid})
        end_coordination(self._job)
        self._sweep_until = time.monotonic() + LEFTOVER_GRACE

    def _go_on_sweeping(self, until: float) -> None:
        spared = self._preloaded.pids
        left = process_tree.descendants(spared)
        if left and time.monotonic() < until:
            return
        process_tree.end_all(spared)
        self._sweep_until = None
        self.runs = False
        self._send(
            "swept",
            killed=len(left),
            notes=host_records.notes(self._job),
            continues_from=_run_files.read_continues_from(self._job.attempt_dir),
        )

    @property
    def longest_turn(self) -> float:
        """Seconds after which the agent's loop has to call `after_turn` again."""
        if self._work:
            return 0.0 if self.runs and not self._waits else 0.02
        return 1.0 if self._sweep_until is None else 0.02

    # Standard input of process 0

    def _on_stdin(self, data: bytes) -> None:
        self._stdin_left += data
        if not data:
            self._close_stdin()
        elif self._stdin >= 0:
            self._agent.selector.register(self._stdin, selectors.EVENT_WRITE, self._write_stdin)

    def _write_stdin(self) -> None:
        try:
            written = os.write(self._stdin, self._stdin_left)
        except BlockingIOError:
            return
        except OSError:  # process 0 has closed it, or ended
            self._close_stdin()
            return
        self._stdin_left = self._stdin_left[written:]
        if not self._stdin_left:
            self._agent.selector.unregister(self._stdin)
            self._send("stdin_taken")

    def _close_stdin_there(self) -> None:
        if self._stdin_there >= 0:
            os.close(self._stdin_there)
            self._stdin_there = -1

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            with contextlib.suppress(KeyError):
                self._agent.selector.unregister(self._stdin)
            os.close(self._stdin)
            self._stdin = -1


def _spec(order: Mapping[str, Any], folder: Path) -> LaunchSpec:
    """This host's part of the job. Raises `ConfigError` where it has too few GPUs."""
    count = int(order["count"])
    environ = {**os.environ, **order["environ"]}
    config = Config.from_environ(order["config"])
    # Hosts are told apart by the system, unless this host's own environment does it.
    config = dataclasses.replace(config, host_id=Config.from_environ(os.environ).host_id)
    usable = cpu_affinity.usable()
    there = gpus.shown(order["platform"], environ)
    gpus.check_each(order["devices"], there, environ)
    if not order["oversubscribe"]:
        gpus.check(count, order["devices"], there, environ)
    if there and (name := address_choice.interface_of(order["interface"], interfaces())):
        environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # "=": this very name
    return LaunchSpec(
        program=tuple(order["program"]),
        processes=count,
        config=config,
        environ=environ,
        run_dir=folder,
        devices=order["devices"],
        platform=order["platform"],
        cores=cpu_affinity.chosen(order["bind"], usable, count, order["devices"]),
        first=int(order["first"]),
        total=int(order["total"]),
        max_restarts=int(order["max_restarts"]),
        preload=tuple(order["preload"]),
    )
