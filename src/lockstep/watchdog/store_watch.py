"""The watch: a thread in each process of a GPU job that finds out why a collective does not end.

NCCL waits forever for a process that does not come, and says nothing. So this thread looks once a
second at what NCCL has recorded here (`lockstep.nccl.library`). When a collective stands still, it
asks all processes for their state, through JAX's key-value store, and judges what they answer as
over the engine (`lockstep.flight_recorder`). What is proved, and a wait that is longer than
``--collective-timeout``, fails every process.

A kernel of NCCL that waits cannot be interrupted. So the main thread gets the exception where it
runs Python, and otherwise the process ends after a short time: minutes instead of hours until
``--max-restarts`` continues from a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from lockstep import _config, _jax_compat
from lockstep.callsites import frames
from lockstep.flight_recorder import diagnose, model, text_report
from lockstep.job.kv_store import Store
from lockstep.job.topology import Peer
from lockstep.nccl import compilations, ending, state
from lockstep.nccl.state import Missing, ProcessState
from lockstep.system import stack_dump

_POLL_SECONDS = 1.0
_NEWS = "lockstep/nccl/news"
_STATES = "lockstep/nccl/states"
_PLACES = "lockstep/nccl/places"
_VERDICT = "verdict"
_FIRST_QUESTION = 3.0
"""Seconds without progress after which a process asks the others; then twice as long each time."""
_LONGEST_PAUSE = 60.0
_ANSWER_SECONDS = 5.0
_FRAMES = 12
_COMPILE_OR_EXECUTE = tuple(
    os.path.join("jax", "_src", *names) for names in (["compiler.py"], ["interpreters", "pxla.py"])
)


class Watch(threading.Thread):
    """Watches one process's NCCL until the process ends."""

    def __init__(
        self, store: Store, own: Peer, count: int, record: str, folder: Path | None
    ) -> None:
        super().__init__(name="lockstep-nccl-watch", daemon=True)
        self._store = store
        self._own = own
        self._count = count
        self._record = record
        self._folder = folder
        self._over = threading.Event()
        self._is_failing = False
        self._progress: Any = None
        self._since = time.monotonic()
        self._pause = _FIRST_QUESTION
        self._questions = 0
        self._answered: dict[str, int] = {}
        self._seen: tuple[Any, ...] = ()
        """The last proof of a fault, and how far all processes had come."""
        self._warned = False
        self._position: Any = None
        self._there_since = time.monotonic()
        self._looked = 0.0
        """The last limit after which the others were asked where the main thread stands still."""

    def run(self) -> None:
        place = {"pid": self._own.pid, "host": self._own.host_id, "label": self._own.label}
        with contextlib.suppress(Exception):
            self._store.put(f"{_PLACES}/{self._own.process}", place, overwrite=True)
        while not self._over.wait(_POLL_SECONDS):
            try:
                self._poll()
            except Exception as error:
                # A service that is lost is reported where that is detected.
                if not self._over.is_set() and not _jax_compat.is_unreachable(error):
                    print(f"lockstep: the watch of NCCL failed: {error!r}", file=sys.stderr)
                return

    def stop(self) -> None:
        """Ends the watch; what this process leaves behind answers all later questions."""
        self._over.set()
        if self.is_alive() and not self._is_failing:
            self.join(2 * _ANSWER_SECONDS)
        with contextlib.suppress(Exception):
            last = {"is_last": True, **self._answer()}
            self._store.put(f"{_STATES}/{self._own.process}", last, overwrite=True)

    def _poll(self) -> None:
        record = model.read_record(self._record)
        now, progress = time.monotonic(), state.progress(record)
        if progress != self._progress or not state.waits(record):
            self._progress, self._since = progress, now
            self._pause, self._warned, self._seen = _FIRST_QUESTION, False, ()
        self._look_at_main_thread(now)
        self._read_news()
        if now - self._since >= self._pause and not self._over.is_set():
            self._pause = min(2 * self._pause, self._pause + _LONGEST_PAUSE)
            self._ask(now - self._since)

    def _look_at_main_thread(self, now: float) -> None:
        """Asks the others where the thread has stood still in JAX, in no collective."""
        frame, config = ending.main_frame(), _config.current()
        # A new frame may have the address of an old one, so what the process has done counts too.
        program = compilations.current()
        position = (id(frame), frame.f_lasti if frame else 0, id(program), self._progress)
        if position != self._position:
            self._position, self._there_since, self._looked = position, now, 0.0
        for limit in (config.stall_warning, config.collective_timeout):
            if limit and self._looked < limit <= now - self._there_since and _inside(frame):
                self._looked = limit
                if not state.waits(model.read_record(self._record)):
                    self._tell_of_jax(is_late=limit == config.collective_timeout)

    def _tell_of_jax(self, is_late: bool) -> None:
        states = self._states()
        ordered = [states.get(index) for index in range(self._count)]
        text, is_proof = state.stands_in_jax(ordered, self._own.process)
        if text and is_proof and is_late:
            self._publish(f"lockstep: {text}")
        elif text and (not is_proof or min(states) == self._own.process):
            ending.say(f"lockstep: {text}")

    # Questions and answers

    def _read_news(self) -> None:
        news = self._store.values(_NEWS)
        if text := news.pop(_VERDICT, None):
            self._fail(str(text))
        fresh = {asker: number for asker, number in news.items() if self._is_new(asker, number)}
        if fresh:
            self._answered.update(fresh)
            self._store.put(f"{_STATES}/{self._own.process}", self._answer(), overwrite=True)

    def _is_new(self, asker: str, number: Any) -> bool:
        return isinstance(number, int) and self._answered.get(asker, 0) < number

    def _answer(self) -> dict[str, Any]:
        return {"answers": self._answered, **self._state().to_json()}

    def _state(self) -> ProcessState:
        record = model.read_record(self._record, latest=state.KEPT)
        sites = {entry.site for ring in record.rings for entry in ring.entries}
        callers = {site: lines for site, lines in frames.known().items() if site in sites}
        frame = ending.main_frame()
        still = time.monotonic() - self._there_since
        return ProcessState(
            self._own.process,
            record,
            callers,
            _stack(frame),
            _place(frame),
            _inside(frame),
            still,
            compilations.current(),
        )

    def _states(self) -> dict[int, ProcessState]:
        """Asks all processes for their state; those that have answered."""
        self._questions += 1
        self._store.put(f"{_NEWS}/{self._own.process}", self._questions, overwrite=True)
        states = self._gather()
        states[self._own.process] = self._state()
        return states

    def _ask(self, waited: float) -> None:
        """Asks all processes for their state, and judges it."""
        states = self._states()
        waiting = [s.index for s in states.values() if state.waits(s.record)]
        if min(waiting, default=-1) != self._own.process:
            return  # one report is enough, and a collective may have ended meanwhile
        absent = self._absent(states)
        ordered = [states.get(index) for index in range(self._count)]
        found = state.judge(ordered, absent)
        self._act(found, ordered, absent, waited)

    def _absent(self, states: Mapping[int, ProcessState]) -> dict[int, Missing]:
        """What is known of the processes that have not answered."""
        places = self._store.values(_PLACES) if len(states) < self._count else {}
        found = {}
        for process in range(self._count):
            if process not in states:
                place = places.get(str(process), {})
                is_here = place.get("host") == self._own.host_id
                found[process] = (
                    self._seen_here(process, place)
                    if is_here
                    else Missing(str(place.get("label", f"process {process}")))
                )
        return found

    def _seen_here(self, process: int, place: Mapping[str, Any]) -> Missing:
        """A process of this host that does not answer: native code may hold its interpreter."""
        pid, label = int(place["pid"]), str(place["label"])
        if not Path(f"/proc/{pid}").exists():
            return Missing(label, is_gone=True)
        if self._folder is None:
            text = stack_dump.describe(pid)
        else:
            folder = self._folder.with_name(f"process_{process}")
            text = stack_dump.request(pid, folder / stack_dump.FILE)
        system = text.removeprefix("No Python stacks")
        is_stack = system == text
        return Missing(label, stack=text) if is_stack else Missing(label, system.lstrip(".; "))

    def _gather(self) -> dict[int, ProcessState]:
        """The answers to the last question, as far as they come in time."""
        own, end = str(self._own.process), time.monotonic() + _ANSWER_SECONDS
        found: dict[int, ProcessState] = {}
        while len(found) < self._count - 1 and time.monotonic() < end:
            if self._over.wait(_POLL_SECONDS / 4):
                break
            self._read_news()  # another process may ask at the same time
            for name, values in self._store.values(_STATES).items():
                answered = values.get("is_last") or values["answers"].get(own, 0) >= self._questions
                if name != own and int(name) not in found and answered:
                    found[int(name)] = ProcessState.from_json(int(name), values)
        return found

    # What follows

    def _act(
        self,
        found: diagnose.Diagnosis,
        states: list[ProcessState | None],
        absent: Mapping[int, Missing],
        waited: float,
    ) -> None:
        config = _config.current()
        if found.kind.is_fault and all(one.is_gone for one in absent.values()):
            # The states are of different moments, so a fault counts when nothing has moved since.
            come = tuple(state.progress(s.record) for s in states if s)
            if self._seen == (found.kind, found.culprits, found.place, come):
                self._publish(self._text(found, states, ""))
            self._seen = (found.kind, found.culprits, found.place, come)
            self._pause = waited + _FIRST_QUESTION
        elif config.collective_timeout and waited >= config.collective_timeout:
            late = f"a collective over NCCL has waited {waited:.0f} s (--collective-timeout). "
            self._publish(self._text(found, states, late))
        elif config.stall_warning and waited >= config.stall_warning and not self._warned:
            self._warned = True
            whole = state.report(found, states, absent)
            ending.say(f"lockstep: waiting for {waited:.0f} s over NCCL. {whole}")
        limits = (config.stall_warning * (not self._warned), config.collective_timeout)
        for limit in limits:
            if limit and waited < limit:
                self._pause = min(self._pause, limit)

    def _text(self, found: diagnose.Diagnosis, states: list[ProcessState | None], lead: str) -> str:
        text = f"lockstep: {lead}{text_report.short(found, 4000)}"
        place = state.where(states)
        return f"{text}\n  {place}" if place else text

    def _publish(self, text: str) -> None:
        with contextlib.suppress(Exception):  # another process was first: its text is there
            self._store.put(f"{_NEWS}/{_VERDICT}", text)
        self._read_news()

    def _fail(self, text: str) -> None:
        self._is_failing = True
        self._over.set()
        ending.end_with(text, self._folder)


def _inside(frame: FrameType | None) -> str:
    """The function of JAX in which a thread compiles or executes a program; "": it is elsewhere."""
    if frame is None or not frame.f_code.co_filename.endswith(_COMPILE_OR_EXECUTE):
        return ""
    return frame.f_code.co_name


def _stack(frame: FrameType | None) -> str:
    lines = []
    while frame is not None and len(lines) < _FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(frames.PACKAGE) and "<frozen" not in code.co_filename:
            lines.append(f'File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
        frame = frame.f_back
    return "\n".join(lines)


def _place(frame: FrameType | None) -> str:
    while frame is not None:
        file = frame.f_code.co_filename
        if not frames.is_library(file) and not frames.is_on_the_way(file):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
