"""Exceptions of Python callbacks that compiled programs call: `jax.debug.callback` and its kin."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

CALLBACKS = "exceptions of callbacks"
CALLBACKS_LOST = "a callback that raises is not named as the reason why a device stops."
_LOGGERS = ("jax._src.callback", "jax._src.debugging")
_FAILED = re.compile(r"jax\.[\w.]*callback failed$")


def watch_callbacks(raised: Callable[[BaseException], None]) -> None:
    """Calls ``raised`` with each exception of a callback, on the thread that runs the callback.

    JAX logs them, and what it raises later, where a result is read, has only their texts.
    """

    def look(record: logging.LogRecord) -> bool:
        if _FAILED.match(str(record.msg)) and record.exc_info and record.exc_info[1]:
            raised(record.exc_info[1])
        return True

    for name in _LOGGERS:
        logging.getLogger(name).addFilter(look)
