"""What processes tell each other while they meet, through JAX's key-value store."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from lockstep import _jax_compat
from lockstep._errors import InitializationError

PREFIX = "lockstep"
WAIT_SECONDS = 300
_TRIES = 10
_PAUSE_SECONDS = 0.1
_SLICE_SECONDS = 0.5

Look = Callable[[], None]
"""Called twice a second while a process waits; what it raises ends the wait."""


def _go_on() -> None:
    pass


def get(client: Any, key: str, who: str, look: Look = _go_on) -> str:
    """Reads a key that another process sets; raises `InitializationError` naming it."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        left = min(_SLICE_SECONDS, end - time.monotonic())
        try:
            return client.blocking_key_value_get(key, max(1, int(left * 1000)))
        except Exception as error:
            if not _jax_compat.is_timeout(error):
                raise InitializationError(
                    f"{who} cannot be heard; JAX's coordination service says: {error}"
                ) from error
            if time.monotonic() >= end:
                raise InitializationError(
                    f"{who} did not reach this point in {WAIT_SECONDS} s. It may have failed (see "
                    "its output), may not import lockstep, or may run another program."
                ) from error
        look()


def say(client: Any, key: str, value: Any) -> None:
    """Tells those who `hear`; ``value`` is for JSON."""
    client.key_value_set(key, json.dumps({"value": value}))


@contextlib.contextmanager
def telling_errors(client: Any, key: str) -> Iterator[None]:
    """What the block raises is raised by those who `hear` as well, who would wait in vain."""
    try:
        yield
    except Exception as error:
        # The service may be what has failed: the first error is the one to be seen.
        with contextlib.suppress(Exception):
            client.key_value_set(key, json.dumps({"error": str(error)}))
        raise


@contextlib.contextmanager
def failing_together(client: Any, prefix: str, process: int) -> Iterator[None]:
    """As `telling_errors`, for a block that fails where it fails in another process.

    Then it raises what that one has told: the reason, where its own error is a consequence.
    """
    with telling_errors(client, f"{prefix}/{process}"):
        try:
            yield
        except Exception as error:
            if reason := _told(client, prefix):
                raise InitializationError(reason) from error
            raise


def _told(client: Any, prefix: str) -> str:
    """An error under ``prefix``; "" where there is none.

    Its consequence may be seen before it is told: an engine that fails ends its connections first.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(Exception):
            for key, text in client.key_value_dir_get(f"{prefix}/"):
                if error := json.loads(text).get("error"):
                    return f"process {key.rpartition('/')[2]}: {error.removeprefix('lockstep: ')}"
        time.sleep(_PAUSE_SECONDS)
    return ""


def hear(client: Any, key: str, who: str, look: Look = _go_on) -> Any:
    """What another process says under ``key``."""
    said = json.loads(get(client, key, who, look))
    if "error" in said:
        text = said["error"].removeprefix("lockstep: ")
        raise InitializationError(text if text.startswith(who) else f"{who}: {text}")
    return said["value"]
