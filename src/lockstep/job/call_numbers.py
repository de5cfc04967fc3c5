"""How often this process has come to a barrier or a check that all processes of its job come to."""

from __future__ import annotations

import collections
import threading

from lockstep.job import current_job


class CallNumbers(current_job.Part):
    """Numbers the calls of each barrier and check, by a key that all processes have for it."""

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    def next(self, key: str) -> int:
        """How often the process has come to ``key``, this time included."""
        with self._lock:
            self._counts[key] += 1
            return self._counts[key]
