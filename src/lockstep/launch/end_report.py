"""What the launcher prints when a job has ended: the failure, its records, and where they are.

`failure_report` makes the sentences; here they are put beside what the records of the run say.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from lockstep import _run_files
from lockstep._words import processes
from lockstep.launch import usage
from lockstep.launch.failure_report import (
    explains,
    headline,
    is_consequence,
    last_line,
    told_already,
)
from lockstep.processes import failed_runs, tracebacks
from lockstep.processes.console import Console
from lockstep.processes.first_failure import EndedProcess, is_engines
from lockstep.processes.job_processes import Processes
from lockstep.processes.job_spec import LaunchSpec

USAGE = 2
"""The exit code of a program that does not know its arguments."""


class EndReport:
    """The report of one attempt of a job."""

    def __init__(
        self,
        job: LaunchSpec,
        members: Processes,
        console: Console,
        before_keeping: Callable[[], str],
    ) -> None:
        """``before_keeping`` is called before the records of the run are moved to be kept; what it
        returns is printed."""
        self._job = job
        self._processes = members
        self._console = console
        self._before_keeping = before_keeping

    def culprits(self) -> Sequence[int]:
        """The processes that have caused the failure, by the records."""
        return failed_runs.culprits(self._job.run_dir, self._job.config.attempt)

    def failure(
        self,
        first: EndedProcess,
        endings: Sequence[EndedProcess],
        stopping_at: float,
        restart: str,
    ) -> None:
        """The headline, what is known beside it, and the headline again as the last line.

        ``restart`` says that another attempt follows, and is the last line then; "": none does.
        """
        full = self._job.config.full_tracebacks or tracebacks.jax_shows_all(os.environ)
        table = self._diagnosis([e for e in endings if e.failed])
        told = table if table and told_already(table, first) else ""
        count = self._job.job_processes
        differences = failed_runs.differences(self._job.run_dir, self._job.config.attempt)
        found = table if explains(table, first) or self._is_explained(table, first) else ""
        report = headline(first, endings, stopping_at, count, full, told, differences, found)
        stopped = self._stopped(first)
        report += [stopped, self.killed(), "" if told or found else table]
        if first.status == USAGE:
            report.append(usage.behind_program(self._job.program, ("...",)))
        report = list(filter(None, report))
        is_one_line = len(report) == 1 and "\n" not in report[0]
        if is_one_line and not restart and not self._job.log_dir:
            self.folders(headline=report[0])
            return
        for i, text in enumerate(report):
            self._console.report(text, highlight=i == 0)
        if restart:
            self._console.report(restart)
        else:
            last = last_line(first, endings, count, found, differences, table)
            self.folders(headline="; ".join(filter(None, (last.removesuffix("."), stopped))))

    def _stopped(self, first: EndedProcess) -> str:
        """The place at which the process that the others waited for was stopped by the launcher."""
        for process in self.culprits():
            with contextlib.suppress(OSError):
                place = (self._job.process_dir(process) / _run_files.INTERRUPTED).read_text()
                if place and process != first.process_id:
                    return f"process {process} was stopped{place}"
        return ""

    def _is_explained(self, table: str, first: EndedProcess) -> bool:
        if not table or not is_consequence(first):
            return False
        place = self._job.run_dir, self._job.config.attempt
        return failed_runs.show_fault_before(*place, first.process_id)

    def _diagnosis(self, failed: Sequence[EndedProcess]) -> str:
        """What the records say beside that the processes ``failed`` have failed."""
        if not self._has_records():
            return ""
        told = [e.process_id for e in failed if e.record and not is_engines(e.record)]
        numbers = [e.process_id for e in failed]
        return failed_runs.diagnosis(self._job.run_dir, self._job.config.attempt, numbers, told)

    def _has_records(self) -> bool:
        """Whether the records of all processes are here, or the reasons why some are not."""
        if not self._job.agents_keep_records:
            return True
        with contextlib.suppress(OSError):  # no descriptor is left: then they cannot be read
            here = len(list(self._job.attempt_dir.glob("process_*")))
            return here == self._job.job_processes
        return False

    def folders(self, report: Callable[[str], None] | None = None, headline: str = "") -> None:
        """Prints where logs and records are, and keeps the records; the last line has ``headline``.

        ``report`` prints a line where the console is closed already.
        """
        say = report or self._console.report
        if text := self._before_keeping():
            say(text)
        words = ""
        if not self._job.agents_keep_records:
            if self._job.log_dir:
                say(f"complete logs: {self._job.log_dir}")
            words = failed_runs.kept(self._job.run_dir, self._job.log_dir)
            if why := self._processes.not_stored:
                words = "; ".join(filter(None, (words, failed_runs.not_kept(why))))
        if text := "; ".join(filter(None, (headline.removesuffix("."), words))):
            if headline:
                self._console.report(text, highlight=True)
            else:
                say(text)

    def none_joined(self) -> None:
        """Says it if each process has used JAX by itself."""
        if self._job.job_processes < 2 or not self._has_records():
            return
        with contextlib.suppress(OSError):
            if _run_files.none_joined(self._job.attempt_dir):
                self._console.report(
                    f"no process joined the job: each of the {self._job.job_processes} ran alone. "
                    "Call jax.distributed.initialize() before using JAX, or add --auto-init"
                )

    def killed(self) -> str:
        """Which processes the launcher has killed, and why; "" for none."""
        killed = [p.process_id for p in self._processes.members if p.was_killed]
        if not killed:
            return ""
        return f"killed because they did not end within --grace: {processes(killed)}"
