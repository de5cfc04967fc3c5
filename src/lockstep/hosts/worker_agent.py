"""The agent of ``lockstep worker``: the parent process of one program.

It does not run JAX, so it works when the program is dead, stopped or stuck, and as the parent it
receives the program's exit status. The cluster's launcher sees the agent as the program: the agent
forwards signals, and ends with the program's status (`worker_attempt`).

The program has a process group of its own, so that a signal to the launcher's group reaches it
once, by way of the agent. If the agent is killed, its guard decides whether the program goes on
(`program_guard`). Slurm with proctrack/cgroup signals its own children only, so the agent has to
forward signals; with proctrack/linuxproc all descendants get the signal, and the program gets it
twice, which cannot be detected. If the input is a terminal, the program stays in the agent's group,
because otherwise it could not read; then the terminal's signals reach both and are not forwarded,
and the program ends with the agent.

Launchers announce the end with SIGTERM: a time limit, a preemption, scancel. The program then ends
as under ``lockstep run`` (`lockstep.processes.stop_plan`).

Rejected: a child of the program instead of its parent, which could not forward signals (and would
learn how its parent ended only on kernels from 6.15 on), and one agent for each host (launchers
start no such process, and it would be the parent of no program).
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import time
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from lockstep._errors import LaunchError
from lockstep._run_files import ErrorRecord, Exit
from lockstep._stderr import complain
from lockstep.hosts import lease
from lockstep.hosts.agent import Agent
from lockstep.hosts.agent_messages import Ended, Ready
from lockstep.processes.program import GRACE, GRACE_AFTER_SIGTERM, STOPS, Program
from lockstep.processes.stop_plan import FAILURE
from lockstep.system import signal_pipe
from lockstep.system.channel import Channel, Message

_FLUSH_SECONDS = 15.0
LOST = "the agent of process 0 has ended"


class Attempt(NamedTuple):
    """An attempt, and the place of a process in it."""

    attempt: int
    """Its number."""
    coordinator: str
    process_id: int
    num_processes: int


class WorkerAgent(Agent):
    """The agent of one program, in all attempts of its job.

    With a connection it obeys the supervisor of ``--max-restarts``: `joined_agents` is the other
    side, and has the messages.
    """

    supervisor = "the agent of process 0"

    def __init__(
        self,
        connection: socket.socket | None = None,
        process: int | None = None,
        same: Mapping[str, str] = MappingProxyType({}),
        grace: float | None = None,
    ) -> None:
        """``process``: None until the supervisor gives it a number; ``same``: see `Ready`.

        ``grace`` is the value of ``--grace``. Without it the program gets 25 s after SIGTERM, since
        it may have to save something large, and the other processes get 5 s after a failure.
        """
        channel = None
        if connection:
            fd = connection.detach()
            channel = Channel(fd, os.dup(fd))  # a selector watches each side of it
        super().__init__(channel)
        self.process, self._same = process, same
        self.grace = GRACE if grace is None else grace
        self.grace_after_sigterm = GRACE_AFTER_SIGTERM if grace is None else grace
        self.fds = {channel.reads, channel.writes} if channel else set[int]()
        """The descriptors that it needs."""
        self.is_lost = False
        """Whether the supervisor has ended without a last word."""
        self.leaves = False
        """Whether a signal has come that stops the job, since the program has ended."""
        self._handled: Collection[int] = ()
        self._program: Program | None = None
        """The program, while it runs."""
        self._attempt: Attempt | None = None
        self._starts_again = False
        self._over = ""
        """Why no attempt follows; "": not known yet."""
        self._ends_well = False

    def listen(self, handled: Collection[int]) -> None:
        """Forwards these signals, which are blocked, to the program while it runs."""
        if not self._handled:
            self._handled = handled
            fd = signal_pipe.open_blocked(handled)
            self.fds.add(fd)
            self.watch(fd, self._on_signals)

    @property
    def runs(self) -> bool:
        return self._program is not None

    @property
    def left(self) -> float:
        is_killed = self._program and self._program.lease_is_over
        return float("inf") if is_killed else super().left

    # What can happen

    def _on_signals(self) -> None:
        while received := signal.sigtimedwait(self._handled, 0):
            if self._program and not self._program.has_ended():
                if received.si_signo != signal.SIGCHLD:
                    self._program.pass_on(received, self.grace_after_sigterm)
            else:
                self.leaves |= received.si_signo in STOPS

    def on_message(self, message: Message) -> None:
        head = message.head
        match message.kind:
            case "number":
                self.process = int(head["process"])
                complain(f"{platform.node()} has joined the job as node {self.process}")
            case "start" if not self.lease.is_good(lease.clock()):  # the order has arrived late
                self._over = lease.over(True, self.supervisor)
            case "start":
                self._starts_again = False  # of the attempt before, which a spare has heard of
                place = (int(head[name]) for name in ("process_id", "num_processes"))
                self._attempt = Attempt(int(head["attempt"]), str(head["coordinator"]), *place)
            case "signal":
                self.on_signal(int(head["number"]))
            case "again":
                self._starts_again = True
            case "over":
                self._over, self._ends_well = str(head["why"]), bool(head["well"])

    def on_signal(self, number: int) -> None:
        """The supervisor stops the program, since another one has failed."""
        # After SIGTERM the program has the whole grace period, to save what it has.
        if self._program and not self._program.was_stopped:
            self._program.stop(number)

    def on_loss(self, why: str) -> None:
        """Without its supervisor it acts alone, as after a failure."""
        assert self.channel
        self.selector.unregister(self.channel.reads)
        self.is_lost, self._over = True, self._over or LOST
        if self._program and not self._program.was_stopped:
            complain(f"{LOST}, so the program is asked to end")
            self._program.end(FAILURE, self.grace)

    def on_lease_over(self, why: str) -> None:
        if self._program:
            self._program.end_lease()
        elif not self._over:
            self._over = why
            if self._attempt:
                complain(f"the agent has ended: {why}")

    # An attempt

    def wait_for_start(self) -> Attempt | None:
        """Reports that this process is ready, and waits for the others; None: the job has ended
        well without it.

        Raises `LaunchError` where the job cannot start.
        """
        self._attempt = None
        ready = Ready(self.process, platform.node(), dict(self._same))
        self.send("ready", **ready._asdict())
        while not (self._attempt or self._over):
            self.turn(float("inf"))
        if self._over and not self._ends_well:
            own = platform.node() if self.process is None else f"process {self.process}"
            raise LaunchError(f"{own} was not started: {self._over}")
        return self._attempt

    def wait_for_end(self, program: Program) -> int:
        """Forwards signals until the program has ended; its exit code, negative for a signal."""
        self._program = program
        while not program.has_ended():
            self.turn(program.send_due())
        self._program = None
        assert program.exit_code is not None
        return program.exit_code

    def ended(
        self, ending: Exit, record: ErrorRecord | None, was_stopped: bool, was_killed: bool
    ) -> None:
        """Reports how the program has ended, and the error that it had recorded.

        ``was_stopped``, ``was_killed``: see `Ended`.
        """
        assert self.process is not None
        assert self.channel
        ended = Ended(self.process, ending, record, was_stopped, was_killed)
        self.send("exit", **ended.values(time.monotonic()))
        # A long traceback does not fit into the socket, and the agent may be about to leave.
        with contextlib.suppress(OSError):  # the supervisor is lost: `decision` finds that
            self.channel.flush(_FLUSH_SECONDS)

    def decision(self, seconds: float) -> bool | None:
        """Whether the job starts again; None: not decided within ``seconds``, or before a signal
        that stops the job."""
        end = time.monotonic() + seconds
        while not (self._starts_again or self._over or self.leaves) and time.monotonic() < end:
            self.turn(end - time.monotonic())
        return self._starts_again or (False if self._over else None)
