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


def note_unreadable_values(in_part: str, elsewhere: str) -> None:
    """Adds a note to the error for the values of an array of which other processes hold a part.

    ``in_part``: the note where this process holds a part too; ``elsewhere``: where it holds none.
    `np.asarray`, `jax.device_get`, `float` and others read the values in one property.
    """
    arrays: Any = importlib.import_module("jax._src.array")
    read = arrays.ArrayImpl._value.fget

    @functools.wraps(read)
    def value(self: Any) -> Any:
        try:
            return read(self)
        except RuntimeError as error:
            has_part = bool(self.sharding.addressable_devices)
            # A replicated array has its values here: its error is that of the computation.
            is_whole = self.is_fully_addressable or (self.is_fully_replicated and has_part)
            note = in_part if has_part else elsewhere
            is_new = note not in getattr(error, "__notes__", ())
            if not is_whole and not self.is_deleted() and is_new:
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


def name_unbound_axes() -> None:
    """Gives the error of `jax.lax.psum` and others for an axis that the mesh does not have a text.

    Inside of `jax.shard_map`, JAX (0.9 to 0.12) raises a bare AssertionError for it.
    """
    parallel: Any = importlib.import_module("jax._src.lax.parallel")
    made = parallel.pvary

    @functools.wraps(made)
    def pvary(x: Any, axis_name: Any) -> Any:
        try:
            return made(x, axis_name)
        except AssertionError as error:
            if not error.args:
                error.args = (_unbound(axis_name),)
            raise

    parallel.pvary = pvary


def _unbound(axis_name: Any) -> str:
    import jax

    axes = jax.sharding.get_abstract_mesh().axis_names
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    unknown = ", ".join(repr(name) for name in names if name not in axes)
    return f"unbound axis name {unknown}: the axes of the mesh are {', '.join(map(repr, axes))}"


def watch_failures(raised: Callable[[str], object]) -> None:
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
