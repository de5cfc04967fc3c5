"""Runs one cell on the processes: output, errors, interrupts, and waits that cannot end.

A process of ``lockstep run`` that fails ends, and the engine tells the others. A process of a
notebook that raises goes on to the next cell, and the others of this cell would wait in their
collective until its timeout. So while some have finished the cell and others have not, the finished
ones are asked to settle: to run what they have dispatched. A process that has settled takes part in
no collective before the next cell. If the records then show that another waits for it, the wait
cannot end, and the job's collectives are aborted with that reason.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Sequence
from typing import Any

from lockstep._stderr import complain
from lockstep.flight_recorder.text_report import short, table
from lockstep.notebook import engine
from lockstep.notebook.errors import RESTART, Failure, NotebookError, cell_error
from lockstep.notebook.fold import label
from lockstep.notebook.job import Job
from lockstep.notebook.output import Output, Value
from lockstep.notebook.places import still_running

_POLL = 0.05
_SCAN_SECONDS = 1.0
"""Between two looks at the records, while some processes have finished the cell."""
_SCANS_UNTIL_TOLD = 3
_OUTPUT_SECONDS = 5.0
"""For the output of a process to arrive after its answer."""
_SETTLE_SECONDS = 3.0
"""For all processes to settle after an error."""
_INTERRUPT_SECONDS = 10.0
"""After an interrupt a process that has not come back is left alone."""
_MAX_TEXT = 900


class Cell:
    """A cell in flight."""

    def __init__(self, job: Job, source: str, number: int, processes: Sequence[int]) -> None:
        self._job = job
        self._output = Output(processes)
        for process in processes:
            job.call(engine.begin, process, number)
        # A line in place of the one with the magic: lines have the numbers that the notebook shows.
        self._results = {p: job.execute(f"# %%lockstep\n{source}", p) for p in processes}
        self._process_of = {r.msg_ids[0]: p for p, r in self._results.items()}
        self._finished: list[int] = []
        self._settling: dict[int, Any] = {}
        self._scan_at = time.monotonic() + _SCAN_SECONDS
        self._interrupted_at: float | None = None
        self._reason = ""
        self._scans = 0

    def run(self) -> Value | None:
        """Runs the cell to its end; the values of its last expression.

        Raises `CellError` if it failed, `NotebookError` if a process has died or cannot be
        interrupted.
        """
        while self.running:
            try:
                self._turn()
            except KeyboardInterrupt:
                self._interrupt()
        if self._failures() or len(self._results) < self._job.processes:
            self._settle_all()
        self._drain_to_the_end()
        self._output.show(all_of_it=True)
        if failures := self._failures():
            found = self._job.diagnosis()
            culprits, report = (found.culprits, table(found)) if found else ((), "")
            raise cell_error(failures, culprits, self._note(), report)
        return self._output.value()

    @property
    def running(self) -> list[int]:
        """The processes that have not finished."""
        return [p for p, result in self._results.items() if not result.ready()]

    def _turn(self) -> None:
        self._drain(_POLL)
        self._output.show()
        for process, result in self._results.items():
            if result.ready() and process not in self._finished:
                self._finished.append(process)
                self._scan_at = time.monotonic() + _SCAN_SECONDS
        if not self._job.lives:
            self._output.show(all_of_it=True)
            raise NotebookError(self._job.death())
        if self._finished_or_left_out and self.running and time.monotonic() > self._scan_at:
            self._scan()
        if self._interrupted_at is not None:
            self._give_up_after(_INTERRUPT_SECONDS)

    def _drain(self, seconds: float) -> None:
        """Takes the output that has arrived; waits up to ``seconds`` for the first of it."""
        with contextlib.suppress(queue.Empty):
            self._put(self._job.client.output.get(timeout=seconds))
            while True:
                self._put(self._job.client.output.get_nowait())
        for process, result in self._results.items():
            if result.wait_for_output(0):
                self._output.end(process)

    def _drain_to_the_end(self) -> None:
        end = time.monotonic() + _OUTPUT_SECONDS
        while time.monotonic() < end:
            if all(result.wait_for_output(0) for result in self._results.values()):
                break
            self._drain(_POLL)
        self._drain(0)

    def _put(self, message: dict[str, Any]) -> None:
        process = self._process_of.get(message["parent_header"]["msg_id"])
        if process is not None:
            self._output.put(process, message)

    # Waits that cannot end

    @property
    def _finished_or_left_out(self) -> list[int]:
        out = [p for p in range(self._job.processes) if p not in self._results]
        return [*self._finished, *out]

    def _scan(self) -> None:
        """Aborts the job's collectives if a process waits for one that has left this cell."""
        self._scan_at = time.monotonic() + _SCAN_SECONDS
        if self._reason:
            return
        self._scans += 1
        for process in self._finished_or_left_out:
            if process not in self._settling:
                self._settling[process] = self._job.call(engine.settle, process)
        settled = [p for p, call in self._settling.items() if call.ready()]
        found = self._job.diagnosis() if self._job.can_abort else None
        for row in found.rows if found else ():
            missing = [p for p in row.waits_for if p in settled]
            if found is not None and missing:
                self._reason = (
                    f"lockstep: {self._why_gone(missing[0])}, and process {row.index} waits for "
                    f"it, in vain.\n{short(found, _MAX_TEXT // 2)}"
                )
                self._job.problem = f"{self._why_gone(missing[0])} while others waited for it"
                self._job.call(engine.abort, missing[0], self._reason[:_MAX_TEXT])
                return
        self._tell_of_failures()

    def _tell_of_failures(self) -> None:
        """Prints failures once, while other processes run on: without the engine a wait in vain is
        not ended."""
        failures = self._failures()
        if failures and self.running and self._scans == _SCANS_UNTIL_TOLD:
            text = "; ".join(f"[{f.process}] {f.summary}" for f in failures[:3])
            where = still_running(self._job.places(self.running))
            complain(f"{text}; {where}")

    def _why_gone(self, process: int) -> str:
        failure = next((f for f in self._failures() if f.process == process), None)
        if failure is not None:
            return f"process {process} left the cell by {failure.summary}"
        if process in self._results:
            return f"process {process} has finished the cell"
        return f"process {process} does not run this cell (--on)"

    def _settle_all(self) -> None:
        """After a cell that not all processes have run alike: do their collectives match?"""
        end = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < end and not self._reason:
            self._scan()
            if len(self._settling) == self._job.processes:
                if all(call.ready() for call in self._settling.values()):
                    return
            self._drain(_POLL)
        waiting = [p for p, call in self._settling.items() if not call.ready()]
        if waiting and not self._job.problem:
            self._job.problem = f"process {waiting[0]} still waits in a collective of this cell"

    # Interrupts

    def _interrupt(self) -> None:
        if not (running := self.running):
            return
        if self._interrupted_at is not None:
            self._give_up_after(0)
        self._interrupted_at = time.monotonic()
        self._scan_at = time.monotonic() + _SCAN_SECONDS
        complain(f"interrupting {label(running)}")
        self._job.interrupt(running)

    def _give_up_after(self, seconds: float) -> None:
        if not self.running or time.monotonic() < (self._interrupted_at or 0.0) + seconds:
            return
        self._output.show(all_of_it=True)
        note = (
            f"{label(self.running)} did not react to the interrupt: compiled code runs, or a "
            f"collective waits ({still_running(self._job.places(self.running))}). The next cell "
            f"can run once it has come back. {RESTART}"
        )
        failures = self._failures()
        raise cell_error(failures, (), note) if failures else NotebookError(note)

    # The end

    def _failures(self) -> list[Failure]:
        found = []
        for process, result in sorted(self._results.items(), key=_completed):
            if not result.ready():
                continue
            error = result.get(return_exceptions=True)
            error = error[0] if isinstance(error, list) else error
            if isinstance(error, Exception):
                trace = getattr(error, "traceback", "") or ""
                trace = "\n".join(trace) if isinstance(trace, list) else trace
                found.append(Failure(process, error.ename, error.evalue, trace))  # type: ignore
        return found

    def _note(self) -> str:
        if not self._job.problem and any(f.is_engines for f in self._failures()):
            self._job.problem = "a collective has failed"
        if not self._job.problem:
            return ""
        why = "" if self._reason else f": {self._job.problem}"
        return f"The processes can run no more collectives{why}. {RESTART}"


def _completed(pair: tuple[int, Any]) -> tuple[bool, Any]:
    """When a process has finished, as a key to sort by; the unfinished come last."""
    at = pair[1].metadata["completed"] if pair[1].ready() else None
    return at is None, at or 0
