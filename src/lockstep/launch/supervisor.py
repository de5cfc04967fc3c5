"""Starting the processes of a job, watching them, and stopping them.

One thread, one loop, one selector. Whatever can happen is a readable descriptor: output, a signal
(through the wake-up descriptor), the end of a process (SIGCHLD), an error that was recorded (the
doorbell), the end of the guard (the lifeline). Each carries the function to call, and none of them
ever waits. Time is the loop's timeout. Nothing is shared, so nothing is locked.

Rejected: a thread for each pipe (n processes, 2n threads, and signals only in one of them), asyncio
(slow to import, and its child watching knows nothing of adopted orphans), polling at an interval
(late to notice, and never idle).

**Stopping.** Every process is told politely, then killed. Politely means SIGINT: Python raises
KeyboardInterrupt, so ``finally`` blocks run. SIGTERM will not do, because JAX's preemption notifier
swallows it once ``jax.distributed`` is up. It is still what processes get first when
the launcher itself gets SIGTERM: it tells programs that ask
``multihost_utils.reached_preemption_sync_point`` to save their state. A process inside native code
notices neither; SIGKILL after the grace period ends that.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path

from lockstep.launch import console as consoles
from lockstep.launch import process_tree, records
from lockstep.launch.console import Console, Stream
from lockstep.launch.failure import Ending, first_failure, headline, signal_name
from lockstep.launch.guard import PASSED_ON
from lockstep.launch.job import Job, command
from lockstep.launch.pmi import PmiServer

FAILURE_GRACE = 3.0
"""Seconds between the first failure and the end of processes that do not end by themselves."""
LEFTOVER_GRACE = 0.5
"""Seconds for what the processes had started to notice that they are gone. Python's tracker of
shared memory, for one, then unlinks what they have left."""
REPEATED_SIGNAL = 0.3
"""Seconds in which the same signal counts once: GNU timeout, for one, sends SIGTERM twice."""
LAST_WORDS = 20

FAILURE = 0
"""A cause to stop that is no signal. Other causes are: SIGKILL, the guard is gone; SIGPIPE, nobody
reads the output."""

_NO_OUTPUT_LEFT = signal.SIGPIPE
_GUARD_GONE = signal.SIGKILL


class Worker:
    """One process of the job."""

    def __init__(self, process_id: int, pid: int, stdout: Stream, stderr: Stream) -> None:
        self.process_id = process_id
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.exit_code: int | None = None
        self.ended_at = float("inf")
        self.was_killed = False

    def send(self, number: int) -> None:
        """Signals the process and what runs in its session, as a terminal would."""
        if self.exit_code is None:
            self.was_killed |= number == signal.SIGKILL
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


class Supervisor:
    """Runs a job from start to end: `run`."""

    def __init__(self, job: Job, lifeline: int) -> None:
        self._job = job
        self._lifeline = lifeline
        self._selector = selectors.PollSelector()
        self._console = Console(self._selector)
        self._workers: list[Worker] = []
        self._streams: list[Stream] = []
        self._pmi = PmiServer(job.processes) if job.config.collectives == "mpi" else None
        self._reading = True
        self._cause: int | None = None
        self._stopping_at = float("inf")
        self._plan: list[tuple[float, int]] = []

    def run(self) -> int:
        """The exit status of the job, once no process of it is left."""
        self._listen()
        if not self._start_all():
            self._stop_now()
        while any(worker.exit_code is None for worker in self._workers):
            self._turn()
        self._sweep()
        while any(not stream.closed for stream in self._streams):
            self._turn()
        self._console.end_lines()
        status = self._report()
        while self._console.backlog:
            self._turn()
        return status

    # Listening

    def _watch(self, fd: int, action: object) -> None:
        self._selector.register(fd, selectors.EVENT_READ, action)

    def _listen(self) -> None:
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        heard = {s for s in PASSED_ON if signal.getsignal(s) != signal.SIG_IGN} | {signal.SIGCHLD}
        for number in heard:
            signal.signal(number, lambda number, frame: None)
        self._watch(wake, lambda: [self._on_signal(n) for n in os.read(wake, 512)])
        self._watch(self._lifeline, self._on_lifeline)
        path = self._job.run_dir / records.DOORBELL
        os.mkfifo(path, 0o600)
        bell = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._watch(bell, lambda: self._on_doorbell(bell))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)

    def _turn(self, longest: float = 1.0) -> None:
        """Waits until something happens, at most ``longest`` seconds, and deals with it."""
        now = time.monotonic()
        times = [s.show_at for s in self._streams] + [at for at, _ in self._plan[:1]]
        for key, _ in self._selector.select(max(0.0, min([now + longest, *times]) - now)):
            key.data()
        now = time.monotonic()
        for stream in self._streams:
            if stream.show_at <= now:
                stream.show_unfinished()
        while self._plan and self._plan[0][0] <= now:
            self._tell(self._plan.pop(0)[1])
        if self._console.gone and self._cause is None:
            self._stop(_NO_OUTPUT_LEFT)
        self._read_unless(self._console.congested)

    def _read_unless(self, congested: bool) -> None:
        if self._reading == congested:
            self._reading = not congested
            for stream in self._streams:
                if not stream.closed:
                    if congested:
                        self._selector.unregister(stream.fd)
                    else:
                        self._watch(stream.fd, self._reader(stream))

    def _reader(self, stream: Stream) -> object:
        def read() -> None:
            fd = stream.fd
            stream.read()
            if stream.closed:
                self._selector.unregister(fd)

        return read

    # What can happen

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._collect()
        elif self._cause is None:
            self._stop(number)
        elif number != self._cause or time.monotonic() > self._stopping_at + REPEATED_SIGNAL:
            self._stop_now()
            self._console.abandon()

    def _on_lifeline(self) -> None:
        self._selector.unregister(self._lifeline)
        self._cause = _GUARD_GONE
        self._stop_now()
        self._console.abandon()

    def _on_doorbell(self, bell: int) -> None:
        os.read(bell, 4096)
        self._collect()  # a death that led to this error is there by now
        if self._cause is None:
            self._stop(FAILURE)

    def _collect(self) -> None:
        now = time.monotonic()
        by_pid = {worker.pid: worker for worker in self._workers}
        for pid, exit_code in process_tree.bury():
            if worker := by_pid.get(pid):
                worker.exit_code = exit_code
                worker.ended_at = now
                if exit_code != 0 and self._cause is None:
                    self._stop(FAILURE)

    # Starting

    def _start_all(self) -> bool:
        out = consoles.prefixes(self._job.processes, self._console.stdout, self._job.prefixed)
        err = consoles.prefixes(self._job.processes, self._console.stderr, self._job.prefixed)
        for process_id in range(self._job.processes):
            try:
                self._start(process_id, out[process_id], err[process_id])
            except (OSError, subprocess.SubprocessError) as error:
                self._console.say(
                    f"process {process_id} of {self._job.processes} could not be started: {error}. "
                    "Likely causes: (a) a limit on processes or open files (ulimit -u, ulimit -n), "
                    "(b) no memory left, (c) --log-dir cannot be written",
                    alarm=True,
                )
                return False
        return True

    def _start(self, process_id: int, out_prefix: bytes, err_prefix: bytes) -> None:
        job = self._job
        folder = self._folder(job.run_dir, process_id)
        folder.mkdir(parents=True)
        log_dir = self._folder(job.log_dir, process_id) if job.log_dir else None
        logs = [consoles.open_log(log_dir, name) for name in ("stdout.log", "stderr.log")]
        if log_dir:
            (log_dir / records.ERROR).unlink(missing_ok=True)
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        try:
            process = subprocess.Popen(
                command(job.program),
                stdin=None if process_id == 0 else subprocess.DEVNULL,
                stdout=out_end,
                stderr=err_end,
                env=job.environ_of(process_id) | self._pmi_environ(process_id),
                pass_fds=(self._pmi.inherited(process_id),) if self._pmi else (),
                start_new_session=True,
                preexec_fn=lambda: _prepare(job.cores[process_id] if job.cores else None),
            )
        finally:
            os.close(out_end)
            os.close(err_end)
        process.returncode = 0  # `_collect` waits for it; Popen's own finalizer must not
        worker = Worker(
            process_id,
            process.pid,
            Stream(out, self._console.stdout, self._console, out_prefix, logs[0]),
            Stream(err, self._console.stderr, self._console, err_prefix, logs[1]),
        )
        self._workers.append(worker)
        for stream in (worker.stdout, worker.stderr):
            self._streams.append(stream)
            self._watch(stream.fd, self._reader(stream))
        if self._pmi:
            self._pmi.started(process_id)
            self._watch(self._pmi.fd(process_id), self._pmi_reader(self._pmi, process_id))

    def _pmi_environ(self, process_id: int) -> dict[str, str]:
        return self._pmi.environ(process_id) if self._pmi else {}

    def _pmi_reader(self, pmi: PmiServer, process_id: int) -> object:
        def read() -> None:
            if not pmi.serve(process_id):
                self._selector.unregister(pmi.fd(process_id))

        return read

    def _folder(self, top: Path, process_id: int) -> Path:
        return records.process_dir(top, self._job.config.attempt, process_id)

    # Stopping

    def _stop(self, cause: int) -> None:
        grace = self._job.grace
        plan = [(0.0, signal.SIGINT), (grace, signal.SIGKILL)]
        if cause == FAILURE:
            plan = [(0.0, signal.SIGINT), (FAILURE_GRACE, signal.SIGKILL)]
        elif cause in (signal.SIGTERM, signal.SIGHUP):
            plan = [(0.0, signal.SIGTERM), (grace / 2, signal.SIGINT), (grace, signal.SIGKILL)]
        self._cause = cause
        self._stopping_at = time.monotonic()
        (self._job.run_dir / records.STOPPING).touch()
        self._plan = [(self._stopping_at + after, number) for after, number in plan]

    def _stop_now(self) -> None:
        self._stopping_at = min(self._stopping_at, time.monotonic())
        self._plan = []
        self._tell(signal.SIGKILL)

    def _tell(self, number: int) -> None:
        for worker in self._workers:
            # One that has recorded its error is on its way out and must not be disturbed.
            if number == signal.SIGKILL or not self._record(worker):
                worker.send(number)

    def _sweep(self) -> None:
        """Ends what the processes have started and left."""
        deadline = time.monotonic() + LEFTOVER_GRACE
        while left := process_tree.descendants():
            if time.monotonic() > deadline:
                process_tree.end_all()
                if self._cause is None:
                    self._console.say(
                        f"ended {len(left)} processes that the program had left running"
                    )
                break
            self._turn(0.02)

    # The end

    def _record(self, worker: Worker) -> records.ErrorRecord | None:
        return records.ErrorRecord.read(self._folder(self._job.run_dir, worker.process_id))

    def _ending(self, worker: Worker) -> Ending:
        record = self._record(worker)
        if record and self._job.log_dir:
            with contextlib.suppress(OSError):
                record.write(self._folder(self._job.log_dir, worker.process_id))
        return Ending(
            worker.process_id,
            worker.exit_code or 0,
            worker.ended_at,
            record,
            worker.stderr.last_lines(LAST_WORDS),
            was_stopped=worker.was_killed
            or (self._folder(self._job.run_dir, worker.process_id) / records.INTERRUPTED).exists(),
        )

    def _report(self) -> int:
        endings = [self._ending(worker) for worker in self._workers]
        if len(endings) < self._job.processes:
            return 1
        first = first_failure(endings, self._stopping_at)
        if self._cause is None or first is None:
            return 0
        if first.failed_at < self._stopping_at or self._cause == FAILURE:
            logs = str(self._job.log_dir) if self._job.log_dir else None
            for i, text in enumerate(headline(first, endings, self._stopping_at, logs)):
                self._console.say(text, alarm=i == 0)
            self._say_killed()
            return first.status
        if self._cause in PASSED_ON:
            self._console.say(f"stopped by {signal_name(self._cause)}")
            self._say_killed()
        return 128 + self._cause

    def _say_killed(self) -> None:
        killed = [str(w.process_id) for w in self._workers if w.was_killed]
        if killed:
            self._console.say(
                f"had to be killed, they did not end by themselves: process {', '.join(killed)}"
            )


def _prepare(cores: frozenset[int] | None) -> None:
    # Runs between fork and exec. SIGINT is ignored until the bootstrap is ready for it, so that a
    # process that is stopped while Python starts prints no traceback from inside Python.
    process_tree.end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cores is not None:
        os.sched_setaffinity(0, cores)
