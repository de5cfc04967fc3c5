"""A job that is none: its processes, and the client of JAX's store through which they speak."""

from __future__ import annotations

import threading
from typing import Any

from lockstep.job.topology import Peer


def peer(process: int, **more: Any) -> Peer:
    """Those with even numbers sit on host a, the others on host b."""
    host = "ab"[process % 2]
    return Peer(process, 100 + process, f"id of {host}", host, (0,), **more)


class Client:
    """A key-value store of one process."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self._change = threading.Condition()

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        with self._change:
            if key in self.said and not allow_overwrite:
                raise RuntimeError(f"ALREADY_EXISTS: {key}")
            self.said[key] = value
            self._change.notify_all()

    def key_value_dir_get(self, prefix: str) -> list[tuple[str, str]]:
        with self._change:
            return [(key, text) for key, text in self.said.items() if key.startswith(prefix)]

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        with self._change:
            if not self._change.wait_for(lambda: key in self.said, milliseconds / 1000):
                raise RuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
            return self.said[key]
