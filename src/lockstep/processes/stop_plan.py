"""Which signals end the processes of a job, and when. Pure: callers give the time and send.

After a failure the others first get time: each raises the error in its next collective, and may
catch it, save, and end with its own status. Then, and after Ctrl-C at once, every process gets
SIGINT, and SIGKILL at the end of the grace period. SIGINT raises KeyboardInterrupt in Python, so
``finally`` blocks run. SIGTERM would not end the processes, because JAX's preemption notifier
catches it once ``jax.distributed`` is initialized. Processes get SIGTERM first only when their
launcher or agent itself gets it: programs that call
``multihost_utils.reached_preemption_sync_point`` then save their state. Native code that runs for
long delays SIGINT and SIGTERM; SIGKILL ends it.
"""

from __future__ import annotations

import signal

FAILURE = 0
"""The cause of a stop that is no signal: another process has failed."""
GROW = -1
"""The cause of a stop that starts the job again on more hosts."""
_FAILURE_SHARES = (0.5, 0.9)
"""The shares of the grace period after which the processes of a failed job get SIGINT and SIGKILL,
so that the whole job ends within it."""


class StopPlan:
    """The signals that are still to be sent, once a stop has begun."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, signal.Signals]] = []

    def begin(self, cause: int, grace: float, now: float, asked: float = 0.0) -> None:
        """Plans the stop for ``cause``: `FAILURE`, `GROW`, or the signal that asks for it.

        ``asked``: seconds in which a program that is asked to end, to `GROW`, may do so by itself.
        """
        first, last = (share * grace for share in _FAILURE_SHARES)
        steps = [(0.0, signal.SIGINT), (grace, signal.SIGKILL)]
        if cause == FAILURE:
            steps = [(first, signal.SIGINT), (last, signal.SIGKILL)]
        elif cause in (signal.SIGTERM, signal.SIGHUP):
            steps = [(0.0, signal.SIGTERM), (grace / 2, signal.SIGINT), (grace, signal.SIGKILL)]
        elif cause == GROW:
            end = asked + grace
            steps = [(0.0, signal.SIGTERM), (asked, signal.SIGINT), (end, signal.SIGKILL)]
        self._steps = [(now + after, number) for after, number in steps]

    @property
    def next_at(self) -> float:
        """When the next signal is due; infinity: none is planned."""
        return self._steps[0][0] if self._steps else float("inf")

    def take(self, now: float) -> signal.Signals | None:
        """The next signal, if it is due at ``now``."""
        return self._steps.pop(0)[1] if self.next_at <= now else None

    def drop(self) -> None:
        """Plans no more signals."""
        self._steps = []
