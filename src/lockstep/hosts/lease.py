"""The lease under which an agent runs processes: over before its host is taken for lost.

The supervisor is that of ``lockstep run --hosts``, in the launcher, or that of ``lockstep worker``,
beside the agent of process 0. An agent asks for a lease with each answer to a sign of life
(``pong``), and the supervisor's next sign of life (``ping``) confirms the last answer that has
arrived. The lease counts from the moment at which the agent *sent* the confirmed answer (`Lease`).
The supervisor counts a host's silence from a question that follows the last answer (`Answers`). So
an agent has ended at least a second before others get its place, whichever messages are late or
lost, in one direction or in both, and however the clocks differ.

The first lease begins before the first message of an agent is sent, so the supervisor takes this
message for an answer too.

Not covered: an agent that does not run when its lease ends, because it was stopped or its machine
was suspended. It ends its processes as soon as it runs again; its clock counts such a time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

PING_SECONDS = 1.0
SILENCE_SECONDS = 10.0
"""A host that answers nothing for so long is lost."""
LEASE_SECONDS = 9.0
"""An agent ends its processes and itself so long after its last confirmed answer."""
IDLE_SECONDS = 30.0
"""An agent without processes, a spare's or between two attempts, ends when it hears nothing for so
long: the supervisor reports then, reaches lost hosts again, and may be busy for longer."""
_KEPT = 64


def clock() -> float:
    """Seconds of an agent's clock, which goes on while its machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """That of one agent, in seconds of its `clock`."""

    def __init__(self, now: float) -> None:
        self._heard_at = now
        self._confirmed_at = now
        self._asked: dict[int, float] = {}
        """When each answer was sent that is not confirmed, by the number of its question."""

    def heard(self, now: float) -> None:
        """Something has arrived from the supervisor."""
        self._heard_at = now

    def answer(self, ping: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Takes a sign of life; what the answer to it says, which is sent now."""
        if (heard := ping.get("heard")) is not None:
            self.confirmed(int(heard))
        question = int(ping["t"])
        self.answered(question, now)
        return {"t": question}

    def answered(self, question: int, now: float) -> None:
        """An answer is sent now."""
        self._asked[question] = now
        if len(self._asked) > _KEPT:
            del self._asked[next(iter(self._asked))]

    def confirmed(self, question: int) -> None:
        """The supervisor has received the answer to ``question``."""
        if question in self._asked:
            self._confirmed_at = max(self._confirmed_at, self._asked[question])
            self._asked = {q: at for q, at in self._asked.items() if at > self._confirmed_at}

    def is_good(self, now: float) -> bool:
        """Whether processes may run: more than half of the time is left at their start."""
        return now - self._confirmed_at < LEASE_SECONDS / 2

    def left(self, runs: bool, now: float) -> float:
        """Seconds until the agent has to end; ``runs``: it has processes."""
        if runs:
            return self._confirmed_at + LEASE_SECONDS - now
        return self._heard_at + IDLE_SECONDS - now


class Answers:
    """What the supervisor knows of the lease of one agent, in seconds of its own clock."""

    def __init__(self, now: float) -> None:
        self.heard_at = now
        """When the last message has arrived."""
        self._answered_at = now
        """When the last answer has arrived."""
        self._last: int | None = None
        """The question of that answer, which the next sign of life confirms."""
        self._pinged_at = float("-inf")
        self._asked_at: float | None = None
        """When the first sign of life was sent that is not answered yet."""

    def ping(self, now: float, question: int) -> dict[str, Any] | None:
        """What the next sign of life says, which is sent now; None: it is not due yet.

        ``question``: a number that no other one has.
        """
        if now - self._pinged_at < PING_SECONDS:
            return None
        self._pinged_at = now
        if self._asked_at is None:
            self._asked_at = now
        return {"t": question, "heard": self._last}

    def heard(self, now: float) -> None:
        """Something has arrived from the agent."""
        self.heard_at = now
        self._asked_at = None

    def begun(self, now: float) -> None:
        """The first message of an agent has arrived, whose first lease has begun before."""
        self._answered_at = now

    def answered(self, question: int, now: float) -> None:
        """The answer to ``question`` has arrived."""
        self._last, self._answered_at = question, now

    def is_silent(self, now: float, runs: bool = True) -> bool:
        """Whether the agent is lost: it has answered nothing for too long; ``runs``: as in `Lease`.

        Counted from a question: a supervisor that was stopped for a while has not asked.
        """
        limit = SILENCE_SECONDS if runs else IDLE_SECONDS
        return self._asked_at is not None and now - self._asked_at > limit

    @property
    def may_run_until(self) -> float:
        """When the processes of the agent have ended at the latest, if it is lost now."""
        return self._answered_at + SILENCE_SECONDS


class Lost(Protocol):
    """A connection that is lost, to an agent that had processes."""

    label: str

    @property
    def may_run_until(self) -> float:
        """When these have ended at the latest, by the supervisor's clock."""
        ...


def last_end(gone: Sequence[Lost], now: float) -> tuple[float, str]:
    """When no process of lost hosts can run any more, and what the user is told of the wait for
    it, "" where there is none: never do two attempts run at once."""
    until = max((each.may_run_until for each in gone), default=now)
    if until <= now:
        return now, ""
    labels = ", ".join(each.label for each in gone if each.may_run_until == until)
    return until, f"waiting for {until - now:.1f} s, until the processes on {labels} have ended"


def over(runs: bool, supervisor: str = "the launcher") -> str:
    """Why an agent ends whose lease is over."""
    if runs:
        return (
            f"{supervisor} has confirmed no answer of this host for {LEASE_SECONDS:g} s, so its "
            "processes may run elsewhere by now"
        )
    return f"it received nothing from {supervisor} for {IDLE_SECONDS:g} s"
