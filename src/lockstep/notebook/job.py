"""The job of a notebook: its processes, started and ended; what is known of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from ipyparallel.error import RemoteError

from lockstep import _run_files
from lockstep._errors import LockstepError
from lockstep.flight_recorder.diagnose import Diagnosis, diagnose
from lockstep.notebook import engine, launcher, places
from lockstep.notebook.errors import RESTART, NotebookError
from lockstep.notebook.options import Start
from lockstep.processes import run_dir
from lockstep.report import locate_run
from lockstep.system import stack_dump

_START_SECONDS = 600.0
"""At most; --start-timeout ends a start that hangs."""
_ENDING_SECONDS = 15.0
"""For `lockstep run` to end a job of which a process has died."""
_POLL = 0.05


class Job:
    """Processes that run the cells of a notebook. Made by `start`."""

    def __init__(self, given: Start) -> None:
        self.processes = given.processes
        self.hosts = given.hosts
        self.problem = ""
        """Why the processes can run no collectives any more; "" while they can."""
        self.can_abort = False
        """Whether `engine.abort` can end a wait: over gloo and MPI nothing can."""
        self.pids: list[int] = []
        """The pids of the processes that have started."""
        self._pidfds: list[int] = []
        self._death_is_told = False
        self._folder, self._lock = run_dir.make_locked()
        self._cluster = launcher.cluster(
            given.processes, given.options, str(self._folder), bool(given.hosts)
        )

    def start(self) -> None:
        """Starts controller and processes, and waits until all of them have joined the job.

        Raises `NotebookError` with what ``lockstep run`` said when they have not.
        """
        try:
            self._cluster.start_controller_sync()
            self._cluster.start_engines_sync(self.processes)
            self.client = self._cluster.connect_client_sync()
            self._wait_for_processes()
        except BaseException:
            self.stop()
            raise

    def restart(self) -> None:
        """Ends the processes, and starts others in their place."""
        self._end_processes()
        self.problem, self._death_is_told = "", False
        self._cluster.start_engines_sync(self.processes)
        self._wait_for_processes()

    def stop(self) -> None:
        """Ends the processes and the controller, and removes the files."""
        with contextlib.suppress(Exception):
            self._end_processes()
        with contextlib.suppress(Exception):
            self.client.close()
        with contextlib.suppress(Exception):
            self._cluster.stop_controller_sync()
        if self._lock >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def _wait_for_processes(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while len(self.client.ids) < self.processes:
            if not self.lives:
                raise NotebookError(f"the processes could not be started.\n{self.last_words()}")
            if time.monotonic() > deadline:
                raise NotebookError("the processes have not started in 600 s.")
            time.sleep(_POLL)
        prepared = self.results(engine.prepare, range(self.processes), deadline=deadline)
        self.pids = [pid for pid, _ in prepared]
        self.can_abort = all(can for _, can in prepared)
        engines: Any = self._cluster.engine_set
        self._run_dir = engines.run_dir
        if not self.hosts:
            self._pidfds = [os.pidfd_open(pid) for pid in self.pids]

    def _end_processes(self) -> None:
        self.pids = []
        while self._pidfds:
            os.close(self._pidfds.pop())
        self._cluster.stop_engines_sync()
        deadline = time.monotonic() + _ENDING_SECONDS
        while self.client.ids and time.monotonic() < deadline:  # the controller notices it late
            time.sleep(_POLL)

    @property
    def lives(self) -> bool:
        """Whether none of the processes has ended."""
        engines: Any = self._cluster.engine_set
        if engines is None or engines.process is None or not engines.process.is_running():
            return False
        return not any(self.ended(process) for process in range(len(self.pids)))

    def ended(self, process: int) -> bool:
        if self.hosts:  # ipyparallel's monitor beside each process tells the controller
            return process not in self.client.ids
        try:
            signal.pidfd_send_signal(self._pidfds[process], 0)
        except (ProcessLookupError, OSError, IndexError):
            return True
        return False

    def last_words(self) -> str:
        """What ``lockstep run`` says of a job that has failed, once it has ended."""
        engines: Any = self._cluster.engine_set
        deadline = time.monotonic() + _ENDING_SECONDS
        while engines.process.is_running() and time.monotonic() < deadline:
            time.sleep(_POLL)
        lines = engines.get_output().split("\n")
        lines = [line for line in lines if "[KernelNanny." not in line]  # ipyparallel's log
        begins = [i for i, line in enumerate(lines) if line.startswith("lockstep: ")]
        text = "\n".join(lines[begins[0] :] if begins else lines[-20:]).strip()
        return text.replace("\nIts last lines on stderr:\nlockstep: ", "\nlockstep: ")

    def death(self) -> str:
        """Which process has ended, and how; after the first call in short. "" while all live."""
        if self.lives:
            return ""
        words = self.last_words()
        text = words.partition("\n")[0] if self._death_is_told else words
        self._death_is_told = True
        return f"{text}\n{RESTART}"

    def interrupt(self, processes: Sequence[int]) -> None:
        """Sends SIGINT to some of the processes."""
        if self.hosts:  # ipyparallel's monitor beside each process sends it
            self.client.send_signal(int(signal.SIGINT), list(processes), block=False)
            return
        for process in processes:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfds[process], signal.SIGINT)

    # Calls

    def execute(self, source: str, process: int) -> Any:
        """Sends a cell to a process; returns ipyparallel's AsyncResult."""
        return self._view(process).execute(source, silent=False, block=False)

    def call(self, function: Callable[..., Any], process: int, *args: Any) -> Any:
        """Sends a call of a function of `lockstep.notebook.engine`; returns the AsyncResult."""
        return self._view(process).apply_async(function, *args)

    def _view(self, process: int) -> Any:
        try:
            return self.client[process]
        except IndexError:
            raise NotebookError(self.death() or f"process {process} has ended.") from None

    def results(
        self,
        function: Callable[..., Any],
        processes: Sequence[int],
        *args: Any,
        deadline: float = float("inf"),
    ) -> list[Any]:
        """The results of a call in some processes. Raises `NotebookError` if one has died."""
        calls = [self.call(function, process, *args) for process in processes]
        while not all(call.ready() for call in calls):
            if not self.lives or time.monotonic() > deadline:
                raise NotebookError(self.death() or "the processes do not answer.")
            calls[-1].wait(_POLL)
        try:
            return [call.get() for call in calls]
        except RemoteError as error:
            raise NotebookError(f"{error.ename}: {error.evalue}") from None

    # What the processes do

    def places(self, processes: Sequence[int]) -> dict[int, str]:
        """Where each process is in its cell; "" where that is not known, as on other hosts."""
        if self.hosts:
            return dict.fromkeys(processes, "")
        folders = {p: _run_files.process_dir(self._run_dir, 0, p) for p in processes}
        return {
            p: places.place(stack_dump.request(self.pids[p], folder / stack_dump.FILE))
            for p, folder in folders.items()
        }

    def diagnosis(self) -> Diagnosis | None:
        """What the records show; None where there are none (gloo, MPI)."""
        with contextlib.suppress(LockstepError, OSError):
            return diagnose(locate_run.read(self._run_dir, None))
        return None

    def top(self) -> Any:
        """The tables of ``lockstep top``; None where there are no records."""
        from lockstep.report import top

        with contextlib.suppress(LockstepError, OSError):
            run = locate_run.read(self._run_dir, None)
            now_ns = time.monotonic_ns()
            if any(process.record for process in run.processes):
                return top.frame(run, diagnose(run), now_ns)
        return None
