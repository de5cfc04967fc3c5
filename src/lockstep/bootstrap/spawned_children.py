"""Children that `multiprocessing` spawns import the program's main file again.

A call of ``jax.distributed.initialize()`` at its top level then runs in the child, which is no
process of the job: with stock JAX it ends with "coordinator_address should be defined", and the
parent often sees only that its worker is gone. Stock JAX is all that the child has, so the parent
says it, before it starts the first child.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable
from typing import Any

from lockstep import _jax_compat
from lockstep._errors import InitializationError
from lockstep._stderr import complain

_CALLS = ("jax.distributed.initialize", "distributed.initialize", "dist.initialize")
_CALLS += ("lockstep.initialize",)
_WHAT_TO_DO = (
    "The file is imported again in each child, which is no process of this job. Put the call, and "
    'all that follows, under `if __name__ == "__main__":`, or into a function called from there.'
)


def watch() -> None:
    """From now on says so before the first child starts.

    Raises AttributeError where this Python's multiprocessing lacks a name.
    """
    import multiprocessing.spawn

    spawn: Any = multiprocessing.spawn
    original: Callable[..., dict[str, Any]] = spawn.get_preparation_data

    @functools.wraps(original)
    def get_preparation_data(*args: Any, **options: Any) -> dict[str, Any]:
        data = original(*args, **options)
        if _jax_compat.distributed_client() is not None:
            _warn(data.get("init_main_from_path") or "")
        return data

    spawn.get_preparation_data = get_preparation_data


@functools.cache
def _warn(path: str) -> None:
    if words := problem(path):
        complain(words)


def problem(path: str) -> str:
    """What a child will fail with that imports this file; "": nothing that can be seen."""
    try:
        with open(path, "rb") as file:
            body = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):
        return ""
    called = (_called(statement) for statement in body)
    line = next((each.lineno for each, name in zip(body, called, strict=True) if name), None)
    if line is None:
        return ""
    name = path.rpartition("/")[2]
    return (
        f"{name}:{line} calls initialize() at the top level of the program, and the program spawns "
        f"a child (multiprocessing). {_WHAT_TO_DO}"
    )


def _called(statement: ast.stmt) -> bool:
    """Whether a statement of the file's top level is the call, and not a definition or a test."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return ast.unparse(statement.value.func) in _CALLS


def refuse() -> None:
    """Raises `InitializationError` in a child that is importing its parent's main file."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process and getattr(process.current_process(), "_inheriting", False):
        raise InitializationError(
            "this process was spawned by a process of the job (multiprocessing), and has its "
            f"variables. {_WHAT_TO_DO}"
        )
