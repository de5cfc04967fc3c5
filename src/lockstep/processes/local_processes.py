"""The processes of a job on this host, which the supervisor starts itself."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence

from lockstep import _run_files
from lockstep.processes import console as consoles
from lockstep.processes.child_process import ChildProcess
from lockstep.processes.console import Console, Stream
from lockstep.processes.first_failure import EndedProcess, not_started
from lockstep.processes.job_processes import Loop, Output
from lockstep.processes.job_spec import LaunchSpec
from lockstep.processes.pmi import PmiServer
from lockstep.processes.preload import Preloaded, PreloadError
from lockstep.processes.process_start import Start
from lockstep.system import fd_limit, process_tree
from lockstep.system.oom import OomKills

LEFTOVER_GRACE = 0.5
"""Seconds in which children of the processes may notice that their parents have ended, and clean
up. Python's tracker of shared memory does this."""

STARTING_TURN = 0.05
"""Seconds between two turns of the loop while processes are being started."""


class LocalProcess(ChildProcess):
    """A child whose output the console shows."""

    def __init__(
        self,
        job: LaunchSpec,
        process_id: int,
        console: Console,
        prefixes: tuple[bytes, bytes],
        pmi: PmiServer | None,
        start: Callable[[Start], int],
    ) -> None:
        """Raises what ``start`` raises."""
        self._output = Output(job, process_id)
        environ = pmi.environ(process_id) if pmi else {}
        inherited = (pmi.inherited(process_id),) if pmi else ()
        super().__init__(job, process_id, environ, inherited, start=start)
        fds = (self.stdout_fd, self.stderr_fd)
        self.stdout, self.stderr = self._output.streams(fds, console, prefixes)

    def ended(self) -> EndedProcess:
        return self._output.ended(self.exit, self.ended_at, self.record())


class LocalProcesses:
    """See `job_processes.Processes`."""

    not_stored = ""

    def __init__(self, job: LaunchSpec, loop: Loop, preloaded: Preloaded | None = None) -> None:
        """``preloaded`` outlives the attempts of a job."""
        self._job = job
        self._preloaded = preloaded or Preloaded()
        self._loop = loop
        self._oom_kills = OomKills()
        self._pmi = PmiServer(job.processes) if job.config.collectives == "mpi" else None
        self._bell = -1
        self._held = False
        self.members: list[LocalProcess] = []

    def listen(self) -> None:
        self._bell = make_wake_up(self._job)
        self._watch(self._bell, self._on_recorded_error)

    def _watch(self, fd: int, action: Callable[[], object]) -> None:
        self._loop.selector.register(fd, selectors.EVENT_READ, action)

    def close(self) -> None:
        os.close(self._bell)
        if self._pmi:
            self._pmi.close()
        for name in (_run_files.WAKE_UP, _run_files.STOPPING):
            (self._job.run_dir / name).unlink(missing_ok=True)

    # Starting

    def start(self) -> None:
        count, prefixed = self._job.processes, self._job.prefixed
        fd_limit.make_room_in_launcher(count, 0)
        console = self._loop.console
        out = consoles.prefixes([""] * count, console.stdout, prefixed)
        err = consoles.prefixes([""] * count, console.stderr, prefixed)
        turn_at = 0.0
        if not self._preload():
            return
        for process_id in range(count):
            if time.monotonic() >= turn_at:
                self._loop.turn(0.0)
                turn_at = time.monotonic() + STARTING_TURN
            if self._loop.is_stopping:
                return
            try:
                self._start(process_id, (out[process_id], err[process_id]))
            except (OSError, subprocess.SubprocessError, PreloadError) as error:
                self._loop.could_not_start(process_id, not_started(error))
                return

    def _preload(self) -> bool:
        """Waits for the imports of ``--preload``; whether the processes can be started."""
        try:
            while not self._preloaded.is_ready(self._job):
                self._loop.turn(STARTING_TURN)
                if self._loop.is_stopping:
                    return False
        except (OSError, subprocess.SubprocessError, PreloadError) as error:
            self._loop.could_not_start(0, not_started(error))
            return False
        return True

    def _start(self, process_id: int, prefixes: tuple[bytes, bytes]) -> None:
        pmi = self._pmi
        process = LocalProcess(
            self._job,
            process_id,
            self._loop.console,
            prefixes,
            pmi,
            self._preloaded.starter(self._job),
        )
        self.members.append(process)
        if not self._held:
            for stream in (process.stdout, process.stderr):
                self._watch(stream.fd, self._reader(stream))
        if pmi:
            pmi.started(process_id)
            self._watch(pmi.fd(process_id), self._pmi_reader(pmi, process_id))

    def _reader(self, stream: Stream) -> Callable[[], None]:
        def read() -> None:
            fd = stream.fd
            stream.read()
            if stream.closed:
                self._loop.selector.unregister(fd)

        return read

    def _pmi_reader(self, pmi: PmiServer, process_id: int) -> Callable[[], None]:
        def read() -> None:
            if not pmi.serve(process_id):
                self._loop.selector.unregister(pmi.fd(process_id))

        return read

    # What can happen

    def _on_recorded_error(self) -> None:
        os.read(self._bell, 4096)
        self.reaped(process_tree.reap())  # a death that caused this error has happened by now
        self._loop.failed()

    def reaped(self, ended: Sequence[tuple[int, int]]) -> None:
        if reap_members(self.members, ended, self._oom_kills):
            self._loop.failed()

    def tick(self, now: float) -> None:
        pass

    def hold_output(self, held: bool) -> None:
        self._held = held
        for process in self.members:
            for stream in (process.stdout, process.stderr):
                if stream.closed:
                    continue
                if held:
                    self._loop.selector.unregister(stream.fd)
                else:
                    self._watch(stream.fd, self._reader(stream))

    def signal(self, number: int) -> None:
        signal_members(self._job, self.members, number)

    def sweep(self) -> int:
        return sweep(self._job, self._loop.turn, self._preloaded.pids)

    def collect(self) -> None:
        pass  # they write into the run's directory


# What the agent of another host does too, with the processes of its host


def make_wake_up(job: LaunchSpec) -> int:
    """The FIFO by which processes say that they have recorded an error. Raises OSError."""
    path = job.run_dir / _run_files.WAKE_UP
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def reap_members(
    members: Sequence[ChildProcess], ended: Sequence[tuple[int, int]], oom_kills: OomKills
) -> bool:
    """Records the ends of ``members`` among ``ended`` children; whether one of them has failed."""
    by_pid = {process.pid: process for process in members}
    own = [(by_pid[pid], code) for pid, code in ended if pid in by_pid]
    for process, exit_code in own:
        # The counter is read only after SIGKILL, since reading it takes a millisecond.
        process.reaped(exit_code, exit_code == -signal.SIGKILL and oom_kills.new())
    return any(exit_code != 0 for _, exit_code in own)


def signal_members(job: LaunchSpec, members: Sequence[ChildProcess], number: int) -> None:
    """Sends a signal to all members that live."""
    with contextlib.suppress(OSError):
        (job.run_dir / _run_files.STOPPING).touch()
    for process in members:
        process.send(number)


def sweep(job: LaunchSpec, turn: Callable[[float], None], spared: Collection[int] = ()) -> int:
    """Ends what the processes have started and left running; how many were killed."""
    end_coordination(job)
    deadline = time.monotonic() + LEFTOVER_GRACE
    while left := process_tree.descendants(spared):
        if time.monotonic() > deadline:
            process_tree.end_all(spared)
            return len(left)
        turn(0.02)
    return 0


def end_coordination(job: LaunchSpec) -> None:
    """Ends JAX's coordination service, which process 0 has left running."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((job.attempt_dir / _run_files.COORDINATION_PID).read_text())
        # The file may name any process: kill it only if it is a descendant of this one.
        process_tree.kill({pid} & process_tree.descendants())
