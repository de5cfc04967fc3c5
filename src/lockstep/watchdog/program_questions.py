"""Whether programs of two processes are one: asked by the ranks, and answered also when it is late.

A rank that has no answer in time uses the result: a process or the coordination service may have
had no core for seconds, and a job must not fail for that. So what is not known is compared again
until it is, and once more at the end of the program: programs that differ fail the job then.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from lockstep import _config
from lockstep._stderr import complain
from lockstep.flight_recorder.program_difference import Difference
from lockstep.watchdog import program_equality
from lockstep.watchdog.program_equality import Comparison
from lockstep.watchdog.record_reader import Records


class ProgramQuestions:
    """The answers of one process's watchdog."""

    def __init__(
        self,
        comparison: Comparison,
        records: Records,
        refresh: Callable[[], None],
        note_variation: Callable[[], None],
    ) -> None:
        """``refresh`` publishes what this process has compiled; ``note_variation`` is called where
        one program has two numbers."""
        self._comparison = comparison
        self._records = records
        self._refresh = refresh
        self._note_variation = note_variation
        self._open: dict[tuple[int, int], tuple[int, int, int]] = {}
        """The questions without an answer, by peer and by how much its number is greater."""

    def answer(self, execution: int, peer: int, theirs: int) -> bool | None:
        """Whether look-alikes whose programs carry different numbers may meet.

        None where that is not known, also because the coordination service is gone. The engine
        then asks again at a later collective, and only the first such request takes long: the rank
        waits for that one only, and other requests wait behind it.
        """
        is_first = (peer, theirs - execution) not in self._open
        seconds = program_equality.TIMEOUT_SECONDS if is_first else 0.0
        same, found = self._judged(execution, peer, theirs, seconds)
        if same is None:
            self.ask_again(execution, peer, theirs)
        # Another function, and arguments of another shape, are told by the calls themselves.
        if same is False and found and not found.is_of_arguments and found.is_of_one_function:
            self._records.note_difference(found)
        return same

    def ask_again(self, execution: int, peer: int, theirs: int) -> None:
        """Keeps a question whose answer no rank has used."""
        self._open.setdefault((peer, theirs - execution), (execution, peer, theirs))

    def late_difference(self, seconds: float = 0.0) -> str:
        """What differs in programs that were used before that was known; "": nothing is known to.

        ``seconds``: how long to wait for what is not known, for all of it together.
        """
        end = time.monotonic() + seconds
        for question in list(self._open.values()):
            same, found = self._judged(*question, end - time.monotonic())
            if same is False:
                if found:
                    self._records.note_difference(found)
                return self._words(found, question[1])
        return ""

    def _judged(
        self, execution: int, peer: int, theirs: int, seconds: float
    ) -> tuple[bool | None, Difference | None]:
        """Whether two programs may meet, and in what they differ; None: not known yet."""
        same, found = self._compare(execution, peer, theirs, seconds), None
        if same is not None:
            self._open.pop((peer, theirs - execution), None)
        if same is False:
            found = self._difference(execution, peer, theirs)
            same = self._goes_on(found, peer)
        if same:
            self._note_variation()
        return same, found

    def _compare(self, execution: int, peer: int, theirs: int, seconds: float) -> bool | None:
        def compare() -> bool | None:
            with contextlib.suppress(Exception):  # the service is slow, or gone
                return self._comparison.same(execution, peer, theirs)
            return None

        return program_equality.poll(compare, self._refresh, seconds)

    def _difference(self, execution: int, peer: int, theirs: int) -> Difference | None:
        with contextlib.suppress(Exception):
            return self._comparison.difference(execution, peer, theirs, self._has_run)
        return None

    def _has_run(self, process: int, execution: int) -> bool:
        rings = self._records.record(process).rings  # of another host: none
        return any(entry.run_id == execution for ring in rings for entry in ring.entries)

    def _goes_on(self, found: Difference | None, peer: int) -> bool:
        """Whether a difference is only to be a warning, which one of two processes prints."""
        if _config.current().check_programs != _config.WARN:
            return False
        if self._records.own < peer:
            complain(f"warning: {self._words(found, peer)}.")
        return True

    def _words(self, found: Difference | None, peer: int) -> str:
        return str(found or f"processes {self._records.own} and {peer} run different programs")
