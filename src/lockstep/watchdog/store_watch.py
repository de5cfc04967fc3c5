"""The store watch: a thread in each process that finds out why collectives do not end, or differ,
where Lockstep does not run them: over NCCL, gloo and MPI.

These libraries wait forever for a process that does not come, and say nothing; gloo adds what it
is given, whatever program it comes from. So this thread looks once a second at what is recorded
here (NCCL's collectives, or the launches of programs). When something stands still, it asks all
processes for their state, through JAX's key-value store, and judges them as over the engine
(`lockstep.flight_recorder`). Launches are compared all the time. What is proved, and a wait that is
longer than ``--collective-timeout``, fails every process.

Such a wait cannot be interrupted. So the main thread gets the exception where it runs Python, and
otherwise the process ends after a short time: minutes instead of hours until ``--max-restarts``
continues from a checkpoint.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep import _config, _jax_compat, _run_files
from lockstep._stderr import complain
from lockstep.callsites import frames
from lockstep.flight_recorder import diagnose, text_report
from lockstep.flight_recorder.format import ProcessRecord
from lockstep.job.kv_store import Store
from lockstep.job.topology import Peer
from lockstep.programs import compilations, modules
from lockstep.programs.compilations import Program
from lockstep.watchdog import (
    ending,
    library_counts,
    main_thread,
    own_waits,
    shutdown_hook,
    without_collectives,
)
from lockstep.watchdog import store_state as state
from lockstep.watchdog.launch_comparison import Launches
from lockstep.watchdog.library_counts import Lag
from lockstep.watchdog.source import Source
from lockstep.watchdog.still_thread import Limit, StillThread
from lockstep.watchdog.store_questions import ANSWER_SECONDS, Questions
from lockstep.watchdog.store_state import Missing, ProcessState

_POLL_SECONDS = 1.0
_LOOKS_PER_SECOND = 256
"""With more processes each looks less often, so that the service in process 0 is asked no more."""
_MAX_SPARING = 4.0
_FIRST_QUESTION = 3.0
"""Seconds without progress after which a process asks the others; then twice as long each time."""
_LONGEST_PAUSE = 60.0
_STOPPED_SECONDS = 2.0
"""A look that is later than this is late because the process, and mostly the whole job, was stopped
(Ctrl-Z, Slurm's suspend): no wait has become longer by it."""
_DIFFERENCES = (diagnose.Kind.MISMATCH, diagnose.Kind.ONE_SIDED, diagnose.Kind.PROGRAMS)
"""The faults of launches that are compared."""


def _processes(program: Program | None, count: int) -> set[int]:
    """The processes of a program; of None, all."""
    devices = program.devices if program else ()
    owners = {d.id: d.process_index for d in _jax_compat.all_devices()} if devices else {}
    return {owners[device] for device in devices} or set(range(count))


class Watch(threading.Thread):
    """Watches one process until it ends."""

    def __init__(
        self, store: Store, own: Peer, count: int, source: Source, folder: Path | None
    ) -> None:
        super().__init__(name="lockstep-store-watch", daemon=True)
        self._store = store
        self._own = own
        self._count = count
        self._source = source
        self._over = threading.Event()
        self._questions = Questions(store, own, count, folder, self._state)
        self._launches = None
        if source.is_of_launches:
            self._launches = Launches(store, own.process, source.owner, source.programs)
        self._without_collectives = without_collectives.Comparison(
            store, own.process, lambda: source.owner, source.has_collectives
        )
        self._folder = folder
        self._has_ended = False
        """Whether the program has ended, so that no exception reaches it any more."""
        self._is_failing = False
        self._progress: Any = None
        self._since = time.monotonic()
        self._pause = _FIRST_QUESTION
        self._seen: tuple[Any, ...] = ()
        """The last proof of a fault, and how far all processes had come."""
        self._warned = False
        self._has_warned_of_programs = False
        self._main = StillThread(time.monotonic())

    def run(self) -> None:
        self._questions.publish_place()
        try:
            while not self._pauses():
                self._poll()
        except Exception as error:
            if not self._over.is_set():
                self._report(error)
        finally:
            if self._source.counts:
                self._source.counts.end()

    def _pauses(self) -> bool:
        """Waits for the next look; whether the watch is over."""
        begun, seconds = time.monotonic(), poll_seconds(self._count)
        is_over = self._over.wait(seconds)
        late = time.monotonic() - begun - seconds
        if late > _STOPPED_SECONDS:
            self._since += late
            self._main.leave_out(late)
        return is_over

    def stop(self) -> None:
        """Ends the watch; what this process leaves behind answers all later questions.

        To be called on the main thread when the program has ended.
        """
        self._has_ended = True
        self._over.set()
        if self.is_alive() and not self._is_failing:
            self.join(2 * ANSWER_SECONDS)
        self._questions.leave()
        if self._launches and not self._is_failing and not shutdown_hook.has_failed():
            try:
                self._compare(self._source.read(None), is_last=True)
            except Exception as error:
                self._report(error)

    def explain(self) -> str:
        """Why a collective has failed, by the states of all processes; "": they do not show it.

        To be called on the main thread when the program has ended.
        """
        self._has_ended = True
        self._over.set()
        if self._is_failing:
            return ""
        if self.is_alive():
            self.join(2 * ANSWER_SECONDS)
        try:
            states, verdict = self._questions.ask(threading.Event())
        except Exception as error:
            self._report(error)
            return ""
        if verdict:
            return verdict
        ordered = [states.get(index) for index in range(self._count)]
        found = state.judge(ordered, self._questions.absent(states))
        return text_report.short(found, 4000) if found.kind.is_fault else ""

    def _report(self, error: Exception) -> None:
        # A service that is lost is reported where that is detected.
        if not _jax_compat.is_unreachable(error):
            library = self._source.library
            complain(f"the watch of {library} failed: {error!r}")

    def _poll(self) -> None:
        record = self._source.read(None)
        now, progress = time.monotonic(), state.progress(record)
        if progress != self._progress or not state.waits(record):
            self._progress, self._since = progress, now
            self._pause, self._warned, self._seen = _FIRST_QUESTION, False, ()
            if self._source.counts:
                self._source.counts.end()
            self._questions.end_wait()
        self._read_news()
        if self._source.counts:
            self._look_at_main_thread(now)
        if self._launches:
            self._compare(record)
        if now - self._since >= self._pause and not self._over.is_set():
            waited = now - self._since
            self._pause = min(2 * self._pause, self._pause + _LONGEST_PAUSE)
            if self._questions.is_my_turn():
                self._ask(waited)
            self._stop_at_limits(waited)

    def _look_at_main_thread(self, now: float) -> None:
        """Asks the others where the thread has stood still in JAX, in no collective."""
        config = _config.current()
        self._main.look(now, (compilations.current(), self._progress))
        limits = (config.stall_warning, config.collective_timeout)
        for limit in self._main.reached(now, *limits):
            if not state.waits(self._source.read(None)):
                self._tell_of_jax(limit, self._main.waited(now))

    def _tell_of_jax(self, limit: Limit, waited: float) -> None:
        states = self._states(self._over)
        ordered = [states.get(index) for index in range(self._count)]
        own, absent = states[self._own.process], self._questions.absent(states)
        among = _processes(own.compiles or own.launches, self._count)
        text, is_proof = state.stands_in_jax(ordered, absent, own.index, among, limit, waited)
        if text and is_proof and limit is not Limit.WARNING:
            self._publish(f"lockstep: {text}")
        elif text and (not is_proof or min(states) == self._own.process):
            complain(text)

    def _compare(self, record: ProcessRecord, is_last: bool = False) -> None:
        """Fails the job where this process has launched other programs than another one."""
        assert self._launches is not None
        modules.publish(self._store)
        if _config.current().check_programs == _config.OFF or self._has_warned_of_programs:
            return
        if not self._is_failing and self._launches.differ(record, is_last):
            # The others answer also when this watch is over.
            over = threading.Event() if is_last else self._over
            states = self._states(over)
            if over.is_set():
                return  # not all have answered, and `stop` compares once more
            ordered = [states.get(index) for index in range(self._count)]
            found = self._judge(ordered, self._questions.absent(states))
            where = self._launches.where
            if found.kind in _DIFFERENCES:
                self._fault(found, ordered)
            elif not self._only_warns(f"the processes have launched different programs{where}"):
                self._publish(f"lockstep: the processes have launched different programs{where}.")
        if not self._is_failing and (different := self._without_collectives.difference(is_last)):
            states = self._states(threading.Event() if is_last else self._over)
            ordered = [states.get(index) for index in range(self._count)]
            absent = self._questions.absent(states)
            self._fault(state.judge(ordered, absent, different), ordered)

    def _read_news(self) -> None:
        if text := self._questions.read_news():
            self._fail(text)

    # Questions and answers

    def _state(self) -> ProcessState:
        # Launches are compared about once a second: what differs may lie far behind.
        record = self._source.read(None if self._launches else state.KEPT)
        compiled = compilations.current()
        sites = {entry.site for ring in record.rings for entry in ring.entries}
        callers = {site: lines for site, lines in frames.known().items() if site in sites}
        frame = main_thread.frame()
        now = time.monotonic()
        return ProcessState(
            self._own.process,
            record,
            callers,
            main_thread.stack(frame),
            main_thread.place(frame),
            main_thread.inside(frame),
            self._main.still(now),
            compiled[1] if compiled else None,
            compilations.launched_in(frame),
            self._source.programs(),
            now - compiled[0] if compiled else 0.0,
            own_waits.exit_of_program(),
        )

    def _states(self, over: threading.Event) -> dict[int, ProcessState]:
        states, verdict = self._questions.ask(over)
        if verdict:
            self._fail(verdict)
        return states

    def _ask(self, waited: float) -> None:
        """Asks all processes for their state, and judges it."""
        states = self._states(self._over)
        waiting = [s.index for s in states.values() if state.waits(s.record)]
        if min(waiting, default=-1) != self._own.process:
            return  # one report is enough, and a collective may have ended meanwhile
        absent = self._questions.absent(states)
        ordered = [states.get(index) for index in range(self._count)]
        self._act(self._judge(ordered, absent), ordered, absent, waited)

    def _judge(
        self, states: list[ProcessState | None], absent: Mapping[int, Missing]
    ) -> diagnose.Diagnosis:
        """What the states show, and for programs that differ in what they do."""
        found = state.judge(states, absent)
        if found.kind not in _DIFFERENCES or diagnose.is_of_threads(found):
            return found
        launched = state.launched_at(found, states)
        if len({program.name for program in launched.values()}) != 1:
            return found
        difference = None
        with contextlib.suppress(Exception):
            difference = modules.explain(self._store, launched)
        return state.judge(states, absent, difference)

    def _only_warns(self, text: str) -> bool:
        """Whether programs that differ are no error; prints ``text`` once if they are a warning."""
        check = _config.current().check_programs
        if check == _config.WARN and not self._has_warned_of_programs:
            complain(f"warning: {text}")
        self._has_warned_of_programs |= check != _config.ERROR
        return check != _config.ERROR

    def _fault(self, found: diagnose.Diagnosis, states: list[ProcessState | None]) -> None:
        """Fails the job with a fault that is proved; a difference of programs may be a warning."""
        is_difference = self._source.is_of_launches and found.kind in _DIFFERENCES
        if is_difference and self._only_warns(text_report.short(found, 4000)):
            return
        if found.difference and self._folder:
            with contextlib.suppress(OSError):
                found.difference.write(self._folder / _run_files.DIFFERENCE)
        self._publish(self._text(found, states, ""))

    # What follows

    def _act(
        self,
        found: diagnose.Diagnosis,
        states: list[ProcessState | None],
        absent: Mapping[int, Missing],
        waited: float,
    ) -> None:
        config = _config.current()
        is_tolerated = found.kind in _DIFFERENCES and self._has_warned_of_programs
        lag, is_settled = self._lag(waited)
        # A launch that all have come to takes as long as it takes, unless the library says more.
        is_wait = bool(found.culprits or lag) or not self._source.is_of_launches
        if found.kind.is_fault and not is_tolerated and all(one.is_gone for one in absent.values()):
            # The states are of different moments, so a fault counts when nothing has moved since.
            come = tuple(state.progress(s.record) for s in states if s)
            if self._seen == (found.kind, found.culprits, found.place, come):
                self._fault(found, states)
            self._seen = (found.kind, found.culprits, found.place, come)
            self._pause = waited + _FIRST_QUESTION
        elif is_wait and config.collective_timeout and waited >= config.collective_timeout:
            late = f"a collective over {self._source.library} has waited {waited:.0f} s"
            self._publish(self._late(found, lag, states, f"{late} (--collective-timeout). "))
        elif not is_settled:
            self._pause = waited + _POLL_SECONDS
        elif (
            is_wait and config.stall_warning and waited >= config.stall_warning and not self._warned
        ):
            self._warned = True
            said = library_counts.report(found, lag, states, absent)
            complain(f"waiting for {waited:.0f} s over {self._source.library}. {said}")

    def _stop_at_limits(self, waited: float) -> None:
        """The next question comes no later than the next limit."""
        config = _config.current()
        limits = (config.stall_warning * (not self._warned), config.collective_timeout)
        for limit in limits:
            if limit and waited < limit:
                self._pause = min(self._pause, limit)

    def _lag(self, waited: float) -> tuple[Lag | None, bool]:
        """What the library says, and whether no more is to be waited for."""
        config, counts = _config.current(), self._source.counts
        limit = min(filter(None, (config.stall_warning, config.collective_timeout)), default=0.0)
        if counts is None or not limit:
            return None, True
        return library_counts.ask(counts, waited, limit, self._warned, self._questions.places)

    def _late(
        self,
        found: diagnose.Diagnosis,
        lag: Lag | None,
        states: list[ProcessState | None],
        lead: str,
    ) -> str:
        """The error after ``--collective-timeout``; its first line is the headline."""
        if lag and not found.culprits:
            return f"lockstep: {lead}{library_counts.joined(lag, states)}"
        text = self._text(found, states, lead)
        if at := state.where([states[process] for process in found.culprits]):
            text = text.replace("\n", f"; {at}\n", 1)
        return f"{text}\n  {library_counts.joined(lag, states)}" if lag else text

    def _text(self, found: diagnose.Diagnosis, states: list[ProcessState | None], lead: str) -> str:
        text = f"lockstep: {lead}{text_report.short(found, 4000)}"
        place = state.where(states)
        return f"{text}\n  {place}" if place else text

    def _publish(self, text: str) -> None:
        self._questions.publish_verdict(text)
        self._read_news()

    def _fail(self, text: str) -> None:
        self._is_failing = True
        self._over.set()
        ending.end_with(text, self._folder, self._has_ended)


def poll_seconds(processes: int) -> float:
    """How often each of so many processes looks."""
    return _POLL_SECONDS * min(max(1.0, processes / _LOOKS_PER_SECOND), _MAX_SPARING)
