"""Private properties of arrays that the solvers need, and notes in JAX's errors about arrays."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from lockstep._jax_compat import texts


def under_derivatives(array: Any) -> Any:
    """The array below the tracers of `jax.grad` and `jax.jvp`; outside jit it is a concrete one."""
    from jax.core import Tracer

    while isinstance(array, Tracer) and hasattr(array, "primal"):
        array = array.primal
    return array


def varying_axes(array: Any) -> frozenset[str]:
    """The axes of `jax.shard_map` over which JAX tracks ``array``: none under check_vma=False."""
    import jax

    kind: Any = jax.typeof(array)
    manual = getattr(kind, "manual_axis_type", None)  # since jax 0.10; `vma` of the type before
    return getattr(kind, "vma", frozenset()) if manual is None else manual.varying


def note_unreadable_values(note: str) -> None:
    """Adds ``note`` to the error for the values of an array that other processes hold in part.

    `np.asarray`, `jax.device_get`, `float` and others read the values in one property.
    """
    arrays: Any = importlib.import_module("jax._src.array")
    read = arrays.ArrayImpl._value.fget

    @functools.wraps(read)
    def value(self: Any) -> Any:
        try:
            return read(self)
        except RuntimeError as error:
            # A replicated array has its values here: its error is that of the computation.
            spans = not (self.is_fully_addressable or self.is_fully_replicated)
            if spans and not self.is_deleted() and note not in getattr(error, "__notes__", ()):
                error.add_note(note)
            raise

    arrays.ArrayImpl._value = property(value)


def note_ambiguous_shardings(note: str) -> None:
    """Adds ``note`` to the errors about shardings in the types of arrays, of Explicit axes.

    About fifty places of JAX raise this exception, so the note is added where it is made.
    """
    core: Any = importlib.import_module("jax._src.core")
    made = core.ShardingTypeError.__init__

    @functools.wraps(made)
    def init(self: Any, *args: Any, **more: Any) -> None:
        made(self, *args, **more)
        self.add_note(note)

    core.ShardingTypeError.__init__ = init


def watch_failures(raised: Callable[[str], None]) -> None:
    """Calls ``raised`` with its text whenever jaxlib raises an error, for it makes it then.

    The error's text loses the prefixes that hide it (`texts.without_prefixes`).
    """
    import jax

    kind: Any = jax.errors.JaxRuntimeError
    made = kind.__init__

    def init(self: Any, *args: Any, **more: Any) -> None:
        short = [texts.without_prefixes(a) if isinstance(a, str) else a for a in args]
        made(self, *short, **more)
        self.args = tuple(short)  # Python has set args before, to what jaxlib passes
        raised(str(self))

    kind.__init__ = init


def failure(text: str) -> Exception:
    """The exception that jaxlib would raise for the engine's ``text``."""
    import jax

    return jax.errors.JaxRuntimeError(f"UNKNOWN: MPI error: {text}")
