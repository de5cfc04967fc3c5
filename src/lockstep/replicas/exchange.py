"""Small values that some processes of the job publish for each other, with a deadline.

They go through the key-value store of JAX's coordination service, so it works with every
implementation of the collectives, and a process that does not come blocks no collective. The wait
ends early when a process has ended, or waits in another exchange itself: it would never come.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Sequence
from typing import Any

from lockstep import _config, _jax_compat, _run_files
from lockstep.job import current_job, kv_store
from lockstep.job.call_numbers import CallNumbers
from lockstep.watchdog import watchdogs

_FOLDER = "lockstep/replicas"
_WAITING = "lockstep/replicas-waiting"
_SLICE_SECONDS = 0.5
_MAX_ELSEWHERE = 4
"""How many slices in a row a process has to be seen in another exchange, and in the same one."""


class _Records(current_job.Part):
    """The records of this process that others may not have read yet, by the kind of exchange."""

    def __init__(self) -> None:
        self.keys: dict[str, list[str]] = {}


class Exchange:
    """Rounds in which each of the processes ``members`` publishes a value for the others.

    Exchanges of different processes belong together by ``name`` and the number of earlier ones of
    this name. ``seconds``: how long a round waits for the others.
    """

    def __init__(self, name: str, members: Sequence[int], seconds: float) -> None:
        self._members = members
        self._seconds = seconds
        self._process, _ = _jax_compat.distributed_place()
        self._client = _jax_compat.distributed_client()
        self._store = kv_store.of_application(self._client)
        kind = hashlib.blake2b(repr([name, *members]).encode(), digest_size=8).hexdigest()
        self._folder = f"{_FOLDER}/{kind}/{current_job.part(CallNumbers).next(f'{_FOLDER}/{kind}')}"
        self._earlier = current_job.part(_Records).keys.get(kind, [])
        self._own = current_job.part(_Records).keys[kind] = []
        self._is_complete = True
        self.expected = set(members)
        """Those for which a round waits."""
        self.timed_out = False
        """Whether a process did not come, though it may still."""

    def round(self, name: str, value: Any) -> dict[int, Any]:
        """What each process has published, by its index, without those that have not come."""
        place = self._members.index(self._process)
        self._end = time.monotonic() + self._seconds
        self._elsewhere: dict[int, list[str]] = {}
        folder = f"{self._folder}/{name}"
        self._own.append(f"{folder}/{place}")
        values = self._store.all_gather(folder, place, len(self._members), value, self._receive)
        found = {m: each for m, each in zip(self._members, values, strict=True) if each is not None}
        self._is_complete &= len(found) == len(self._members)
        if self._elsewhere and self._is_complete:
            # An incomplete exchange stays published, for a process that waits for this one
            # elsewhere: this one goes on into a collective, which waits for that process.
            self._publish_wait("")
        return found

    def close(self) -> None:
        """Deletes what this process published in earlier exchanges of the kind, if all came here.

        Then all have read it. Else it stays for those that come later.
        """
        if not self._is_complete:
            self._own[:0] = self._earlier
            return
        for key in self._earlier:
            self._client.key_value_delete(key)

    def _receive(self, place: int, name: str) -> Any:
        """What a member has published; None: it has not come in time."""
        member = self._members[place]
        while member in self.expected:
            left = max(0.001, min(_SLICE_SECONDS, self._end - time.monotonic()))
            try:
                return self._store.once(name, f"process {member}", left)
            except Exception as error:
                if not _jax_compat.is_timeout(error):
                    raise
            if time.monotonic() >= self._end:
                self.timed_out |= self._end > 0
                return None
            if self._never_comes(member):
                self._end = 0.0
        return None

    def _never_comes(self, member: int) -> bool:
        if _has_ended(member) or watchdogs.abort_text():
            return True
        self._publish_wait(self._folder)
        waiting = self._store.values(_WAITING)
        seen = self._elsewhere.setdefault(member, [])
        seen.append(waiting.get(str(member), ""))
        last = set(seen[-_MAX_ELSEWHERE:])
        return len(seen) >= _MAX_ELSEWHERE and len(last) == 1 and not last & {"", self._folder}

    def _publish_wait(self, where: str) -> None:
        with contextlib.suppress(Exception):
            self._store.put(f"{_WAITING}/{self._process}", where, overwrite=True)


def _has_ended(process: int) -> bool:
    folder = _config.current().process_dir(process)
    return folder is not None and _run_files.Exit.read(folder) is not None
