"""Errors that jaxlib raises by itself where code of the program calls a jitted function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

FAST_PATH_ERRORS = "errors of JAX's fast path"
FAST_PATH_ERRORS_LOST = "a program that catches such an error is not told of it at its end."
_TOOLS = (4, 3)
"""The numbers of `sys.monitoring` that have no purpose of their own."""


def can_watch_fast_path() -> bool:
    """Whether this Python tells of exceptions that are caught: 3.12 and later."""
    return sys.version_info >= (3, 12)


def watch_fast_path(caught: Callable[[ValueError], None]) -> None:
    """Calls ``caught``, which must raise nothing, with each ValueError that Python code catches.

    The C++ fast path of `jax.jit` raises one for whatever fails in a program, and no code of JAX's
    sees it. Code that raises nothing is as fast as before.
    """
    monitoring: Any = sys.monitoring  # pyright: ignore[reportAttributeAccessIssue]
    tool = next((each for each in _TOOLS if monitoring.get_tool(each) is None), None)
    if tool is None:
        raise RuntimeError("other tools have taken the numbers of sys.monitoring")
    event = monitoring.events.EXCEPTION_HANDLED

    def handled(_code: Any, _at: int, error: BaseException) -> None:
        if type(error) is ValueError:
            caught(error)

    monitoring.use_tool_id(tool, "lockstep")
    monitoring.register_callback(tool, event, handled)
    monitoring.set_events(tool, event)
