"""Noting each execution of a compiled program, without taking JAX's fast path from it."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from lockstep._jax_compat import hooks

LAUNCHES = "launches of programs"
LAUNCHES_LOST = (
    "over gloo and MPI, processes that launch different programs, or stop to launch, are not named."
)


def note_launches(
    begin: Callable[[Any], Any],
    end: Callable[[Any, BaseException | None], None],
    learn: Callable[..., None],
    fast: Callable[..., None],
) -> None:
    """Has each execution of a compiled program noted; the functions must raise nothing.

    An execution by Python code is the first of a program, or one of a program for which JAX has no
    fast path: it lies between ``begin(executable)`` and ``end``, which gets what ``begin`` has
    returned and what the execution has raised. JAX calls ``learn`` when it executes the program by
    its fast path from then on, with the function, the executable, args and kwargs of such calls,
    and the numbers and names of those that are static. ``fast(jitted, args, kwargs, results)`` is
    called after each of these, with ``jitted.__wrapped__`` as the function. Of a program that was
    compiled ahead of time ``jitted`` itself is the function, and its arguments are not known.
    """
    pxla: Any = importlib.import_module("jax._src.interpreters.pxla")
    pjit: Any = importlib.import_module("jax._src.pjit")
    api: Any = importlib.import_module("jax._src.api")
    call, fastpath = pxla.ExecuteReplicated.__call__, pjit._get_fastpath_data
    state, create_cpp_call = api._post_hook_state, pxla.MeshExecutable.create_cpp_call

    def execute(self: Any, *args: Any) -> Any:
        begun = begin(self.xla_executable)
        try:
            results = call(self, *args)
        except BaseException as error:
            end(begun, error)
            raise
        end(begun, None)
        return results

    def get_fastpath_data(executable: Any, *args: Any, **options: Any) -> Any:
        data = fastpath(executable, *args, **options)
        if data is not None:
            # Only the caller has the function and its arguments.
            caller = sys._getframe(1).f_locals
            program = getattr(executable, "xla_executable", None)
            jit_info = caller.get("jit_info")
            names = "static_argnums", "static_argnames"
            static = tuple(tuple(getattr(jit_info, name, None) or ()) for name in names)
            learn(caller.get("fun"), program, caller.get("args"), caller.get("kwargs"), static)
        return data

    @functools.wraps(create_cpp_call)
    def create(self: Any, *args: Any, **options: Any) -> Any:
        jitted = create_cpp_call(self, *args, **options)
        if jitted is not None:
            learn(jitted, self.xla_executable, (), {})
        return jitted

    api._post_hook_state = _Beside(state, fast)
    state.set_global(fast)
    state.set_local(fast)  # `jax.debug_nans` may have set None for this thread
    pjit._get_fastpath_data = get_fastpath_data
    pxla.MeshExecutable.create_cpp_call = create
    pxla.ExecuteReplicated.__call__ = execute


def note_loaded(note: Callable[[Any, Sequence[Any]], None]) -> None:
    """Calls ``note`` with each executable that JAX makes callable, and its devices in their order.

    Those that `jax.experimental.serialize_executable` loads never pass the compiler. What ``note``
    raises is raised in place of the executable. Raises TypeError or AttributeError where jax
    differs.
    """
    pxla: Any = importlib.import_module("jax._src.interpreters.pxla")
    load = pxla.UnloadedMeshExecutable.load
    known = {field.name for field in dataclasses.fields(pxla.UnloadedMeshExecutable)}
    if missing := {"xla_executable", "device_list"} - known:
        raise AttributeError(f"UnloadedMeshExecutable has no {sorted(missing)}")

    @functools.wraps(load)
    def loading(self: Any, *args: Any, **options: Any) -> Any:
        loaded = load(self, *args, **options)
        note(self.xla_executable, list(self.device_list))
        return loaded

    pxla.UnloadedMeshExecutable.load = loading


class _Beside(hooks.InPlaceOf):
    """JAX's setting of what is called after each execution, which jax_debug_nans sets as well."""

    def __init__(self, state: Any, first: Callable[..., None]) -> None:
        super().__init__(state)
        self._first = first

    def set_global(self, hook: Callable[..., None] | None) -> None:
        self._original.set_global(self._both(hook))

    def set_local(self, hook: Callable[..., None] | None) -> None:
        # A thread's own None would hide what is set for all threads.
        self._original.set_local(self._both(hook))

    def _both(self, hook: Callable[..., None] | None) -> Callable[..., None]:
        if hook is None:
            return self._first

        def both(*args: Any) -> None:
            self._first(*args)
            hook(*args)

        return both


def launched_by(frame: FrameType) -> Any:
    """The executable that a frame of JAX's launches by Python code; None: this frame launches none.

    The first launch of each program is one by Python code.
    """
    if frame.f_code.co_qualname != "ExecuteReplicated.__call__":
        return None
    return getattr(frame.f_locals.get("self"), "xla_executable", None)
