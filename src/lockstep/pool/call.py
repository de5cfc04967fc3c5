"""One call of a function on all processes of a pool: sends it, and waits for how it ends."""

from __future__ import annotations

import dataclasses
import pickle
import time
from typing import Any

from lockstep import _words
from lockstep._errors import SpawnError
from lockstep._stderr import complain
from lockstep.pool import stalled_calls
from lockstep.pool.outcome import NOT_READ, Failure, Kind, Outcome
from lockstep.pool.processes import Processes
from lockstep.system import stack_dump
from lockstep.system.channel import Message

FAILURE_SECONDS = 5.0
"""Seconds for the other processes to come back once one has raised, like ``--grace``."""
DEATH_SECONDS = 2.0
"""The same once one has died: less than the launcher waits before it interrupts the others."""
INTERRUPT_SECONDS = 2.0
"""Seconds to come back after Ctrl-C."""
OUTPUT_SECONDS = 2.0
"""Seconds for the last lines of the output to come, through the launcher."""
EXIT_SECONDS = 15.0
"""Seconds for the launcher to write how a process has died, also on a busy machine."""
CONFIRM_SECONDS = 0.5
"""Seconds for which processes must wait in vain before their collectives are aborted."""
NOTICE_SECONDS = 10.0
"""Seconds after which the caller is told which processes are still in the function, where there are
no records."""
_FIRST_CHECK = 0.1
_MAX_PAUSE = 1.0
_MAX_PLACES = 8
_BACKOFF = 4.0
"""Pause after a check of the records, as a multiple of its duration."""


class Call:
    """The state of one call."""

    def __init__(
        self, processes: Processes, number: int, timeout: float | None, patient: bool = False
    ) -> None:
        self._processes = processes
        self._number = number
        self._count = processes.layout.processes
        self._outcomes: dict[int, Outcome] = {}
        self._patient = patient
        self._deadline = time.monotonic() + timeout if timeout else float("inf")
        self._check_at = float("inf")
        self._pause = _FIRST_CHECK
        self._progress: tuple[int, ...] | None = None
        self._still_since = float("inf")
        self._notice_at = float("inf")
        self.verdict: str | None = None
        """What the records show, where processes wait in vain."""

    def run(self, payload: bytes) -> list[Outcome]:
        """The outcome of each process, in the order of their ranks."""
        self._processes.send("call", payload, number=self._number)
        try:
            self._wait()
        except KeyboardInterrupt:
            self._processes.send("interrupt", number=self._number)
            self._deadline = time.monotonic() + INTERRUPT_SECONDS
            self._wait()
            raise
        finally:
            self._wait_for_output()
        return self.outcomes

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes that are known, in the order of their ranks."""
        return [self._outcomes[rank] for rank in sorted(self._outcomes)]

    def _wait(self) -> None:
        while len(self._outcomes) < self._count:
            now = time.monotonic()
            if now >= self._deadline:
                self._give_up()
                return
            if now >= self._check_at:
                self._check()
            if now >= self._notice_at:
                self._tell_who_is_left()
            self._processes.turn(min(self._check_at, self._deadline, now + 1.0) - now)
            self._collect()

    def _collect(self) -> None:
        before = len(self._outcomes)
        messages, self._processes.messages = self._processes.messages, []
        for rank, message in messages:
            if message.head.get("number") == self._number:
                self._outcomes[rank] = self._outcome(rank, message)
        for rank, when in self._processes.lost.items():
            if rank not in self._outcomes:
                self._outcomes[rank] = self._of(rank, Kind.LOST, ended_at=when)
        if len(self._outcomes) > before:
            self._after_news()

    def _outcome(self, rank: int, message: Message) -> Outcome:
        value, aborted = self._processes.loaded(rank, message), message.head["aborted"]
        if message.kind == "returned":
            return self._of(rank, Kind.RETURNED, value=value, aborted=aborted)
        assert isinstance(value, Failure)
        at = self._processes.here(rank, value.record.time)
        failure = dataclasses.replace(value, record=dataclasses.replace(value.record, time=at))
        error = _loaded(value.pickled)
        return self._of(rank, Kind.RAISED, value=error, failure=failure, aborted=aborted)

    def _of(self, rank: int, kind: Kind, **values: Any) -> Outcome:
        return Outcome(rank, kind, host=self._processes.layout.labels[rank], **values)

    def _after_news(self) -> None:
        now = time.monotonic()
        failed = any(outcome.kind is not Kind.RETURNED for outcome in self._outcomes.values())
        if failed and not self._patient:
            limit = DEATH_SECONDS if self._processes.lost else FAILURE_SECONDS
            self._deadline = min(self._deadline, now + limit)
        if len(self._outcomes) == 1 and not self._processes.has_records:
            self._notice_at = now + NOTICE_SECONDS
        # A process that has died is the watchdog's affair.
        if self.verdict is None and not self._processes.lost:
            self._pause, self._check_at = _FIRST_CHECK, now + _FIRST_CHECK

    def _check(self) -> None:
        """Ends the waits of processes that wait for those that have left the function.

        Records are judged after a while without any progress: they are read while processes run,
        and devices of a process that has returned may be behind.
        """
        began = time.monotonic()
        if self._is_still(began):
            run_dir = self._processes.run_dir
            self.verdict = stalled_calls.waits_in_vain(run_dir, self._outcomes, self._count)
        if self.verdict:
            self._processes.send("abort", text=self.verdict)
            self._deadline = min(self._deadline, time.monotonic() + FAILURE_SECONDS)
            self._check_at = float("inf")
            return
        now = time.monotonic()
        self._check_at = now + max(self._pause, _BACKOFF * (now - began))
        self._pause = min(2 * self._pause, _MAX_PAUSE)

    def _is_still(self, now: float) -> bool:
        """Whether nothing has moved for a while; then the records are whole and up to date."""
        processes = self._processes
        if not processes.refresh(latest=True):
            return False  # a host is slow
        progress = stalled_calls.progress(processes.run_dir)
        if progress != self._progress:
            self._still_since, self._progress = now, progress
            return False
        if now - self._still_since < CONFIRM_SECONDS or not processes.refresh():
            return False
        return stalled_calls.progress(processes.run_dir) == progress

    def _tell_who_is_left(self) -> None:
        """Names the missing once: over gloo or an MPI nothing shows whether they wait in vain."""
        self._notice_at = float("inf")
        back, missing = sorted(self._outcomes), self._missing
        text = (
            f"{_words.processes(back)} left the function {NOTICE_SECONDS:g} s ago. Still "
            f"in it, perhaps in a collective that waits for {'it' if len(back) == 1 else 'them'}: "
        )
        places = [f"process {r} at {at}" for r, at in self._places(missing).items()]
        complain(text + "; ".join(places))

    def _places(self, ranks: list[int]) -> dict[int, str]:
        stacks = self._processes.stacks(ranks[:_MAX_PLACES])
        return {rank: stack_dump.outside_libraries(text) for rank, text in stacks.items()}

    @property
    def _missing(self) -> list[int]:
        return sorted(set(range(self._count)) - self._outcomes.keys())

    def _give_up(self) -> None:
        stacks = self._processes.stacks(self._missing)
        self._processes.refresh()
        awaited = stalled_calls.awaited(self._processes.run_dir, self._outcomes, stacks)
        for rank, text in stacks.items():
            words, waits_for = tuple(text.splitlines()), awaited.get(rank, ())
            self._outcomes[rank] = self._of(rank, Kind.STUCK, words=words, waits_for=waits_for)

    def _wait_for_output(self) -> None:
        came_back = (Kind.RETURNED, Kind.RAISED)
        ranks = {rank for rank, o in self._outcomes.items() if o.kind in came_back}
        end = time.monotonic() + OUTPUT_SECONDS
        output = self._processes.output
        while not output.has_all(ranks, self._number) and not self._processes.is_over:
            if time.monotonic() >= end:
                break
            self._processes.turn(end - time.monotonic())
        for rank, outcome in self._outcomes.items():
            if outcome.kind is Kind.LOST:
                exit = self._processes.exit_of(rank, EXIT_SECONDS)
                if rank in self._processes.unread:
                    exit = exit or NOT_READ
                words = tuple(output.last_words[rank])
                self._outcomes[rank] = dataclasses.replace(outcome, exit=exit, words=words)


def wait_until_ready(processes: Processes, timeout: float) -> None:
    """Returns once every process has joined the job. Raises `SpawnError` with the first error."""
    deadline = time.monotonic() + timeout if timeout else float("inf")
    ready: set[int] = set()
    while len(ready) < processes.layout.processes:
        processes.turn(min(1.0, deadline - time.monotonic()))
        messages, processes.messages = processes.messages, []
        for rank, message in messages:
            if message.kind == "raised":
                raise _not_started(rank, processes.loaded(rank, message))
            ready.add(rank)
        if processes.is_over or processes.lost:
            _end_of_launcher(processes)
        if time.monotonic() > deadline:
            missing = sorted(set(range(processes.layout.processes)) - ready)
            raise SpawnError(
                f"{_words.processes(missing)} of {processes.layout.processes} did not "
                f"start within {timeout:g} s:\n" + "\n".join(processes.stacks(missing[:2]).values())
            )


def _not_started(rank: int, failure: Failure) -> SpawnError:
    return SpawnError(
        f"process {rank} of the pool could not start: {failure.record.summary}\n"
        f"{failure.record.traceback}"
    )


def _end_of_launcher(processes: Processes) -> None:
    """Raises `SpawnError` with what the launcher and the lost processes have said."""
    end = time.monotonic() + OUTPUT_SECONDS
    while not processes.is_over and time.monotonic() < end:
        processes.turn(end - time.monotonic())
    said = list(processes.output.said)
    for rank in processes.lost:
        exit = processes.exit_of(rank, 0.0)
        said.append(f"process {rank} {exit.words() if exit else 'has ended'}")
        said += processes.output.last_words[rank]
    raise SpawnError("the pool's processes did not start:\n" + "\n".join(said))


def _loaded(pickled: bytes | None) -> BaseException | None:
    if pickled is None:
        return None
    try:
        return pickle.loads(pickled)
    except Exception:
        return None
