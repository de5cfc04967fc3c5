"""Code of the application for one process only, in which a collective is an error at once."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from lockstep import _config, _jax_compat
from lockstep._words import ranges
from lockstep.engine import bindings

_P = ParamSpec("_P")
_R = TypeVar("_R")


class only_on:
    """Code for one process only: a context manager and a decorator.

    As a decorator: the function runs on ``process`` and returns None on all others. As a context
    manager: the block gets True on ``process`` and False on the others.

    A collective with other processes raises at once on the process that starts it, instead of
    waiting for processes that never arrive. Only the engine (``--collectives lockstep``) can do
    this. So that no collective from before the block is taken for one of the block, its beginning
    waits for the arrays that are being computed, and so does its end. A computation whose result
    was dropped cannot be waited for: hold the results of collectives, or block on them.

    Args:
      process: the index of the process, as in `jax.process_index`: from 0.

    Raises:
      jax.errors.JaxRuntimeError: from the collective, or from the end of the block.
      ValueError: the job has no such process.
    """

    _texts: list[str] = []  # noqa: RUF012 the engine has one rule for all threads

    def __init__(self, process: int) -> None:
        self._process = process

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        @functools.wraps(function)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
            if not self._is_here():
                return None
            where = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
            with self._forbidden(where):
                return function(*args, **kwargs)

        return run

    def __enter__(self) -> bool:
        caller = sys._getframe(1)
        here = self._is_here()
        self._block = self._forbidden(f"{caller.f_code.co_filename}:{caller.f_lineno}")
        self._block.__enter__()
        return here

    def __exit__(self, *error: Any) -> None:
        self._block.__exit__(*error)

    def _is_here(self) -> bool:
        process, count = _place()
        if not 0 <= self._process < count:
            raise ValueError(
                f"only_on({self._process}): the job has {count} process{'es' * (count > 1)}: "
                f"{ranges(range(count))}."
            )
        return process == self._process

    @contextlib.contextmanager
    def _forbidden(self, where: str) -> Iterator[None]:
        if _config.current().collectives != "lockstep" or _place()[1] == 1:
            yield
            return
        _finish_computations()
        texts = only_on._texts
        texts.append(
            f"process {_place()[0]} started a collective inside lockstep.only_on({self._process}) "
            f"({where}). Only process {self._process} runs that code, so the others would never "
            "come. Move the collective out of it."
        )
        bindings.forbid(texts[-1])
        try:
            yield
            _finish_computations()
        finally:
            texts.pop()
            bindings.forbid(texts[-1] if texts else None)


def _finish_computations() -> None:
    import jax

    jax.block_until_ready(jax.live_arrays())


def _place() -> tuple[int, int]:
    if _jax_compat.distributed_client() is None:
        return 0, 1
    return _jax_compat.distributed_place()
