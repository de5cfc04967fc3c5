"""Compiled programs: noting them, running code around their executions, a compiler pass."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from lockstep._jax_compat import hooks


def note_programs(client: Any, note: Callable[[Any, tuple[int, ...] | None], None]) -> None:
    """Calls ``note`` with each program that a client of this class compiles or loads from now on.

    And with the ids of the program's devices, in the order of its own numbers for them, where they
    are known. To be called once. Raises TypeError or AttributeError where the class of this jaxlib
    does not let itself be changed.
    """
    kind, platform = type(client), client.platform
    # The two that are known have to be there; what may come beside them is named like them.
    names = {"compile_and_load", "deserialize_executable"}
    names |= {name for name in dir(kind) if name.startswith(("compile", "deserialize", "load"))}
    makers = {name: getattr(kind, name) for name in names}

    def wrap(name: str, make: Any) -> Any:
        def making(self: Any, *args: Any, **options: Any) -> Any:
            made = make(self, *args, **options)
            is_loaded = hasattr(made, "local_devices") and self.platform == platform
            # A program that is loaded may bring a device assignment of its own.
            ids = _ids_of_devices(*args, **options) if name.startswith("compile") else None
            if is_loaded:
                note(made, ids)
            return made

        return making

    for name, make in makers.items():
        setattr(kind, name, wrap(name, make))


def _ids_of_devices(
    program: Any = None,
    executable_devices: Any = None,
    compile_options: Any = None,
    *_: Any,
    **__: Any,
) -> tuple[int, ...] | None:
    if compile_options is None:
        return None  # without options, XLA chooses
    with contextlib.suppress(TypeError, AttributeError):
        return tuple(device.id for device in executable_devices)
    return None


def around_executions(around: Callable[[Callable[[], Any]], Any]) -> None:
    """Has every execution of a compiled program made by ``around``, which calls what it is given.

    That returns when the program has run. JAX's shortcut, by which a program is executed a second
    time without a line of Python, is closed.
    """
    import jax

    pxla: Any = importlib.import_module("jax._src.interpreters.pxla")
    call, _ = pxla.ExecuteReplicated.__call__, pxla.MeshExecutableFastpathData

    def execute(self: Any, *args: Any) -> Any:
        def run() -> Any:
            results = jax.block_until_ready(call(self, *args))
            if not results and (self.has_unordered_effects or self.ordered_effects):
                jax.effects_barrier()
            return results

        return around(run)

    pxla.ExecuteReplicated.__call__ = execute
    # What a program's first execution hands to the shortcut; None is "there is none".
    pxla.MeshExecutableFastpathData = lambda *_: None


def has_passes() -> bool:
    """Whether this jax has a place for a compiler pass (`register_pass`): 0.10.2 and later."""
    return importlib.util.find_spec("jax.extend.xla") is not None


def is_refused_type(error: BaseException) -> bool:
    """Whether XLA raised this because its plug does not take the type of a collective."""
    return "Unsupported primitive type" in str(error)


def register_pass(name: str, transform: Callable[[bytes], bytes | None]) -> None:
    """Has XLA call ``transform`` with each CPU program after partitioning, as a serialized module.

    Since jax 0.11 this makes JAX's backends, so JAX must be distributed by then.
    """
    from jax.extend import xla

    def blamed(module: bytes) -> bytes | None:
        with hooks.blaming():
            return transform(module)

    xla.register_hlo_module_transformation(blamed, name=name, platforms="cpu")
