"""Polls NCCL's RAS port while something stands still, on a thread of its own.

The watch of a process (`lockstep.watchdog.store_watch`) never waits for the port: it begins and
ends the polls, and looks at the latest answers.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Mapping

from lockstep.nccl import ras_port, ras_report
from lockstep.nccl.ras_report import Communicator
from lockstep.watchdog.library_counts import Lag, Place

NEEDED = 3
"""So many equal answers are a proof."""
_KEPT = 8
_PAUSE_SECONDS = 1.0
_LATER_SECONDS = 10.0
"""The pause when there are enough answers, or the port does not answer."""
_ANSWER_SECONDS = 6.0


class RasPolls:
    """The answers of the port since the last `begin`."""

    def __init__(
        self,
        ask: Callable[[], bytes] = lambda: ras_port.ask(ras_port.address(), _ANSWER_SECONDS),
        pause: float = _PAUSE_SECONDS,
    ) -> None:
        self._ask = ask
        self._pause = pause
        self._over = threading.Event()
        self._over.set()
        self._answers: collections.deque[tuple[Communicator, ...]] = collections.deque()
        self._asked = 0
        self._can_answer = True

    def begin(self) -> None:
        if self._over.is_set() and self._can_answer:
            # A thread of before may still wait for an answer, which belongs to no new question.
            self._over, self._asked = threading.Event(), 0
            self._answers = collections.deque(maxlen=_KEPT)
            run = (self._over, self._answers)
            poll = threading.Thread(target=self._poll, args=run, name="lockstep-ras", daemon=True)
            try:
                poll.start()
            except RuntimeError:  # no thread is left: the launches alone are judged
                self._can_answer = False

    def end(self) -> None:
        self._over.set()
        self._answers = collections.deque()

    @property
    def is_settled(self) -> bool:
        """Whether there are as many answers as a proof needs, or there will hardly be any."""
        return not self._can_answer or self._asked >= NEEDED

    def lag(self, places: Mapping[int, Place]) -> Lag | None:
        return ras_report.lag(list(self._answers), places, NEEDED)

    def _poll(self, over: threading.Event, answers: collections.deque) -> None:
        while not over.is_set():
            try:
                answers.append(ras_report.parse(self._ask()))
                has_answered = True
            except ras_port.Unsupported:
                self._can_answer = False
                return
            except (OSError, ValueError):
                has_answered = False
            if not over.is_set():
                self._asked = self._asked + 1 if has_answered else NEEDED
            over.wait(self._pause if self._asked < NEEDED else _LATER_SECONDS)
