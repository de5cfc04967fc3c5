"""Barriers of JAX's coordination service: a use that fails on one process fails on late ones too.

The service has a counter for each barrier, and with recoverable processes (`survival`) a process
that comes late to a use that has failed begins or joins another use. So one process may pass with
the first call of a barrier while another is in its second. With JAX's defaults the late process
gets the error. Here the process with the error publishes it for this use, and a process that comes
to the same use afterwards raises it too. A process that comes in the moment between the failure and
its publication waits until its own timeout, as without this module.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

BARRIERS = "barriers"
BARRIERS_LOST = (
    "a process that is late at a barrier of JAX's client may pass where the others have failed."
)
_FAILED = "lockstep/failed_barriers"


def fail_barriers_together(count_use: Callable[[str], int]) -> None:
    """Changes ``wait_at_barrier`` of JAX's client. Raises AttributeError if a name is missing.

    ``count_use`` takes the name of a barrier and its members, and returns how often this process
    has come to it in its job.
    """
    kind: Any = importlib.import_module("jaxlib._jax").DistributedRuntimeClient
    wait, find, publish = kind.wait_at_barrier, kind.key_value_try_get, kind.key_value_set

    @functools.wraps(wait)
    def wait_at_barrier(client: Any, barrier_id: str, *args: Any, **options: Any) -> Any:
        import jax

        error_kind: Any = jax.errors.JaxRuntimeError
        given = options.get("process_ids") or (args[1] if len(args) > 1 else None)
        barrier = f"{barrier_id} {sorted(given) if given else 'all'}"
        key = f"{_FAILED}/{count_use(barrier)}/{barrier}"
        try:
            failed = find(client, key)
        except Exception:  # NOT_FOUND, or no service: then the wait itself says so
            failed = ""
        if failed:
            raise error_kind(failed)
        try:
            return wait(client, barrier_id, *args, **options)
        except error_kind as error:
            with contextlib.suppress(Exception):  # no service, and so no other process that waits
                publish(client, key, str(error), allow_overwrite=True)
            raise

    kind.wait_at_barrier = wait_at_barrier
