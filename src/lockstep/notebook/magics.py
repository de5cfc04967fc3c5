"""``%load_ext lockstep``: the line magic ``%lockstep`` and the cell magic ``%%lockstep``."""

from __future__ import annotations

import atexit
import sys
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from lockstep._stderr import complain
from lockstep._words import counted
from lockstep.notebook import engine, options
from lockstep.notebook.cell import Cell
from lockstep.notebook.errors import RESTART, NotebookError
from lockstep.notebook.fold import label
from lockstep.notebook.job import Job
from lockstep.notebook.output import Value

_WIDTH = 88
"""Columns of a table that JupyterLab shows without breaking its lines."""
_START = "No processes run. %lockstep start -n 2 -d 4 starts two with four devices each."


@magics_class
class LockstepMagics(Magics):
    """The magics, and the job of this notebook."""

    shell: Any

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._job: Job | None = None
        self._last: Cell | None = None

    @no_var_expand
    @line_cell_magic
    def lockstep(self, line: str, cell: str | None = None) -> Value | None:
        """Runs a cell on all processes of a job; as a line, starts and controls them.

        ``%lockstep start -n 2 -d 4``, ``status``, ``restart``, ``stop``, ``push NAMES``,
        ``pull NAMES``; ``%%lockstep`` and ``%%lockstep --on 0`` on top of a cell.
        """
        if cell is not None:
            return self._run(line, cell)
        name, rest = options.command(line)
        getattr(self, f"_{name}")(rest)
        return None

    def close(self) -> None:
        """Ends the processes."""
        if self._job is not None:
            self._job.stop()
        self._job = self._last = None

    # Cells

    def _run(self, line: str, source: str) -> Value | None:
        job = self._ready()
        processes = options.cell(line, job.processes)
        if len(processes) < job.processes:
            complain(
                f"only {label(processes)} runs this cell: what computes with arrays of "
                "all processes waits for the others"
            )
        if job.problem:
            complain(f"collectives fail: {job.problem}. {RESTART}")
        # The shell has counted on by now, or not, by its version.
        number = len(self.shell.user_ns["In"]) - 1
        self._last = Cell(job, source, number, processes)
        return self._last.run()

    def _ready(self) -> Job:
        """The job, if it can run a cell; raises `NotebookError`."""
        job = self._started()
        if text := job.death():
            raise NotebookError(text)
        if self._last is not None and (busy := self._last.running):
            raise NotebookError(f"{label(busy)} still runs the cell before. Wait, or: {RESTART}")
        return job

    def _started(self) -> Job:
        """The job, whose processes may have died; raises `NotebookError`."""
        if self._job is None:
            raise NotebookError(_START)
        return self._job

    # Commands

    def _start(self, line: str) -> None:
        given = options.start(line)
        if self._job is not None:
            raise NotebookError(
                f"{self._job.processes} processes run already. {RESTART} %lockstep stop ends them."
            )
        job = Job(given)
        job.start()
        self._job = job
        _say_what_runs(job)

    def _restart(self, line: str) -> None:
        job = self._started()
        self._last = None
        try:
            job.restart()
        except BaseException:
            self.close()
            raise
        _say_what_runs(job)

    def _stop(self, line: str) -> None:
        self._started()
        self.close()
        print("the processes have ended")

    def _status(self, line: str) -> None:
        job = self._started()
        busy = self._last.running if self._last is not None else []
        places = job.places([p for p in busy if not job.ended(p)])
        for process, pid in enumerate(job.pids):
            state = "runs a cell" if process in busy else "idle"
            state += f": {places[process]}" if places.get(process) else ""
            on = f" on {job.hosts[process]}" if job.hosts else ""
            print(f"[{process}] pid {pid}{on}: {'ended' if job.ended(process) else state}")
        if job.problem:
            print(f"collectives fail: {job.problem}. {RESTART}")
        if not job.lives:
            print(job.death())
        elif (tables := job.top()) is not None:
            from rich.console import Console

            console = Console(file=sys.stdout, width=_WIDTH, force_jupyter=False, highlight=False)
            console.print(tables)

    def _push(self, line: str) -> None:
        job = self._ready()
        names, on = options.names(line, "%lockstep push")
        processes = options.chosen(on or f"0-{job.processes - 1}", job.processes, "--on")
        if missing := [name for name in names if name not in self.shell.user_ns]:
            raise NotebookError(f"%lockstep push: this notebook has no variable {missing[0]!r}.")
        values = {name: self.shell.user_ns[name] for name in names}
        job.client[processes].push(values, block=True)

    def _pull(self, line: str) -> None:
        job = self._ready()
        names, on = options.names(line, "%lockstep pull")
        processes = options.chosen(on or "0", job.processes, "--on")
        found = job.results(engine.fetch, processes, names)
        for i, name in enumerate(names):
            values = [values[i] for values in found]
            self.shell.user_ns[name] = values if len(processes) > 1 else values[0]


def _say_what_runs(job: Job) -> None:
    results = job.results(engine.devices, [0])
    hosts = len(set(job.hosts))
    on = f" on {counted(hosts, 'host')}" if hosts else ""
    print(f"{counted(job.processes, 'process')}{on}, {results[0]}")


def load(shell: Any) -> None:
    """Registers the magics. The processes end with the shell."""
    magics = LockstepMagics(shell)
    shell.register_magics(magics)
    atexit.register(magics.close)
