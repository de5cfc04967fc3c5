"""The lease under which an agent runs processes: over before its host is taken for lost. Pure.

An agent asks for a lease with each answer to a sign of life (``pong``), and the launcher's next
sign of life (``ping``) confirms the last answer that has arrived. The lease counts from the moment
at which the agent *sent* the confirmed answer. The launcher counts a host's silence from a question
that follows the last answer. So an agent has ended at least a second before others get its place,
whichever messages are late or lost, in one direction or in both, and however the clocks differ.

Not covered: an agent that does not run when its lease ends, because it was stopped or its machine
was suspended. It ends its processes as soon as it runs again.
"""

from __future__ import annotations

PING_SECONDS = 1.0
SILENCE_SECONDS = 10.0
"""A host that answers nothing for so long is lost."""
LEASE_SECONDS = 9.0
"""An agent ends its processes and itself so long after its last confirmed answer."""
IDLE_SECONDS = 30.0
"""An agent without processes, a spare's or between two attempts, ends when it hears nothing for so
long: the launcher reports then, reaches lost hosts again, and may be busy for longer."""
_KEPT = 64


class Lease:
    """That of one agent, in seconds of its own clock."""

    def __init__(self, now: float) -> None:
        self._heard_at = now
        self._confirmed_at = now
        self._asked: dict[int, float] = {}
        """When each answer was sent that is not confirmed, by the number of its question."""

    def heard(self, now: float) -> None:
        """Something has arrived from the launcher."""
        self._heard_at = now

    def answered(self, question: int, now: float) -> None:
        """An answer is sent now."""
        self._asked[question] = now
        if len(self._asked) > _KEPT:
            del self._asked[next(iter(self._asked))]

    def confirmed(self, question: int) -> None:
        """The launcher has received the answer to ``question``."""
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


def over(runs: bool) -> str:
    """Why an agent ends whose lease is over."""
    if runs:
        return (
            f"the launcher has confirmed no answer of this host for {LEASE_SECONDS:g} s, so its "
            "processes may run elsewhere by now"
        )
    return f"it received nothing from the launcher for {IDLE_SECONDS:g} s"
