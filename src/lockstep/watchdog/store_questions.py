"""What the processes of a job ask each other through JAX's key-value store, and what they answer.

A process that asks raises its own number, and the others answer with their whole state when they
next look: once a second. One that has ended has left its last state behind. The states are large
(a history of launches each), and process 0 serves all of them: so an asker first waits for short
records of the questions that each process has answered, and reads the states once. Where many
wait, few ask (`question_turns`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep.job.kv_store import Store
from lockstep.job.topology import Peer
from lockstep.system import stack_dump
from lockstep.system.interfaces import interfaces
from lockstep.watchdog.library_counts import Place
from lockstep.watchdog.question_turns import AT_ONCE, Turns
from lockstep.watchdog.store_state import Missing, ProcessState

ANSWER_SECONDS = 5.0
"""How long a question waits for answers."""
_PAUSE_SECONDS = 0.25
_NEWS = "lockstep/watch/news"
_STATES = "lockstep/watch/states"
_ANSWERED = "lockstep/watch/answered"
"""Which questions the state of a process answers: of each asker the last."""
_WAITS = "lockstep/watch/waits"
_PLACES = "lockstep/watch/places"
_VERDICT = "verdict"


class Questions:
    """One process's questions and answers."""

    def __init__(
        self,
        store: Store,
        own: Peer,
        count: int,
        folder: Path | None,
        state: Callable[[], ProcessState],
    ) -> None:
        """``state`` gives the state of this process."""
        self._store = store
        self._own = own
        self._count = count
        self._folder = folder
        self._state = state
        self._asked = 0
        self._answered: dict[str, int] = {}
        self._numbers: dict[int, int] = {}
        """How many questions each process has asked."""
        self._turns = Turns(own.process)
        self._has_noted_wait = False

    def publish_place(self) -> None:
        place = {"pid": self._own.pid, "host": self._own.host_id, "label": self._own.label}
        with contextlib.suppress(Exception):
            place["addresses"] = sorted({each.address for each in interfaces()})
            self._store.put(f"{_PLACES}/{self._own.process}", place, overwrite=True)

    def publish_verdict(self, text: str) -> None:
        """Publishes what all processes are to fail with."""
        with contextlib.suppress(Exception):  # another process was first: its text is there
            self._store.put(f"{_NEWS}/{_VERDICT}", text)

    def leave(self) -> None:
        """Leaves a state that answers all later questions."""
        with contextlib.suppress(Exception):
            self._answer(is_last=True)

    def read_news(self) -> str:
        """Answers what was asked; returns what all processes are to fail with, "" while well."""
        news = self._store.values(_NEWS)
        if text := news.pop(_VERDICT, None):
            return str(text)
        self._numbers = {
            int(asker): number
            for asker, number in news.items()
            if asker.isdigit() and isinstance(number, int)
        }
        fresh = {asker: number for asker, number in news.items() if self._is_new(asker, number)}
        if fresh:
            self._answered.update(fresh)
            self._answer(is_last=False)
        return ""

    def _is_new(self, asker: str, number: Any) -> bool:
        return isinstance(number, int) and self._answered.get(asker, 0) < number

    def _answer(self, is_last: bool) -> None:
        own = self._own.process
        self._store.put(f"{_STATES}/{own}", self._state().to_json(), overwrite=True)
        answered = {"is_last": is_last, "answers": self._answered}
        self._store.put(f"{_ANSWERED}/{own}", answered, overwrite=True)

    def is_my_turn(self) -> bool:
        """Whether this process, which waits, asks now, and does not leave it to others."""
        if self._count <= AT_ONCE:
            return True
        if not self._has_noted_wait:
            self._has_noted_wait = True
            self._store.put(f"{_WAITS}/{self._own.process}", True, overwrite=True)
        waiting = {int(process) for process, waits in self._store.values(_WAITS).items() if waits}
        return self._turns.is_mine(waiting, self._numbers)

    def end_wait(self) -> None:
        """This process goes on."""
        self._turns.restart(self._numbers)
        if self._has_noted_wait:
            self._has_noted_wait = False
            self._store.put(f"{_WAITS}/{self._own.process}", False, overwrite=True)

    def ask(self, over: threading.Event) -> tuple[dict[int, ProcessState], str]:
        """The states of all processes that have answered in time, and the news by then.

        ``over`` ends the wait for answers.
        """
        self._asked += 1
        self._store.put(f"{_NEWS}/{self._own.process}", self._asked, overwrite=True)
        own, end = str(self._own.process), time.monotonic() + ANSWER_SECONDS
        answered: set[str] = set()
        verdict = ""
        while time.monotonic() < end:
            verdict = self.read_news()  # another process may ask at the same time
            answered = {
                name
                for name, values in self._store.values(_ANSWERED).items()
                if values["is_last"] or values["answers"].get(own, 0) >= self._asked
            } - {own}
            if verdict or len(answered) == self._count - 1 or over.wait(_PAUSE_SECONDS):
                break
        found = {
            int(name): ProcessState.from_json(int(name), values)
            for name, values in (self._store.values(_STATES) if answered else {}).items()
            if name in answered
        }
        found[self._own.process] = self._state()
        return found, verdict

    def places(self) -> dict[int, Place]:
        """The host and pid of each process that has published them."""
        return {int(n): Place.from_json(own) for n, own in self._store.values(_PLACES).items()}

    def absent(self, states: Mapping[int, ProcessState]) -> dict[int, Missing]:
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
