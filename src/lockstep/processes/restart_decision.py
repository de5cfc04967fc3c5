"""Whether a job starts again when an attempt has ended: ``--max-restarts``. Pure."""

from __future__ import annotations

from lockstep._words import counted


class Restarts:
    """The restarts that a job has left."""

    def __init__(self, left: int) -> None:
        self.left = left

    def follow(self, failed: bool, stopped: bool) -> bool:
        """Whether another attempt follows one that has ``failed``; ``stopped``: a signal has asked
        for the end of the job."""
        return failed and not stopped and self.left > 0

    def one_begins(self, counts: bool) -> None:
        """Another attempt begins; one that has more hosts than the last does not count."""
        self.left -= int(counts)

    def words(self, attempt: int) -> str:
        """What the user is told of ``attempt``, which another one follows."""
        left = counted(self.left, "restart")
        return f"attempt {attempt} has failed; starting again ({left} left)"
