"""The messages between the caller's process and a process of its pool, and what they carry.

They go over a Unix socket (`lockstep.system.channel`) in the private directory of the run, which
other users cannot enter; on another host in that of the host, from where `lockstep.hosts.relay`
leads here. Bodies are pickled by cloudpickle.

    worker  hello (rank, pid)              it has connected
    caller  start (elsewhere, joins;       join the job, or leave it alone
                   sys.path)
    worker  ready, or raised               it has joined, or has failed to
    caller  call (number; function)        call it with its arguments
    worker  returned (number, aborted, at; result)
            raised (number, aborted, at; failure)
    caller  interrupt (number)             raise KeyboardInterrupt in the function
            abort (text)                   fail all collectives
            stacks                         send the Python stacks
    worker  stacks (text)
"""

from __future__ import annotations

import functools
import io
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep._errors import SpawnError

if TYPE_CHECKING:
    import cloudpickle

SOCKET = "pool"
SEND_SECONDS = 60.0
"""Seconds in which the other side has to read something of a message: its reader only waits for the
GIL."""


def dumps(value: Any) -> bytes:
    """``value``, pickled: functions of ``__main__`` and lambdas by value."""
    return _pickled(_pickler(), value)


def _pickled(pickler: type[cloudpickle.Pickler], value: Any) -> bytes:
    file = io.BytesIO()
    pickler(file).dump(value)
    return file.getvalue()


@functools.cache
def _pickler() -> type[cloudpickle.Pickler]:
    """cloudpickle's pickler, and the file of each function: tracebacks and diagnoses name it.

    cloudpickle 3.1.3 sends "<dynamic-code>" instead of it.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, types.CodeType):
                reduced: Any = self.dispatch_table[types.CodeType](obj)
                return _build_code, (*reduced, obj.co_filename)
            return super().reducer_override(obj)

    return Pickler


def _build_code(
    build: Callable[..., types.CodeType], parts: tuple[Any, ...], file: str
) -> types.CodeType:
    return build(*parts).replace(co_filename=file)


def dumps_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bytes:
    """A function and its arguments, pickled; raises what pickling raises.

    A function of a module is sent by its name, unless only this process has the module: one that
    pytest or a notebook has imported by itself.
    """
    import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or _can_be_imported(module.__name__):
        return dumps((function, args, kwargs))
    cloudpickle.register_pickle_by_value(module)
    try:
        return dumps((function, args, kwargs))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(name: str) -> bool:
    parts = name.split(".")
    path: Any = None
    for i in range(len(parts)):
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        found = (find(".".join(parts[: i + 1]), path) for find in finders if find)
        spec = next((each for each in found if each is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True


def dumps_result(value: Any) -> bytes:
    """Like `dumps`, with each `jax.Array` as a NumPy array: the caller needs no JAX.

    Raises `SpawnError` for what cannot be sent.
    """
    import jax
    import numpy as np

    class Pickler(_pickler()):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, jax.Array) and not jax.numpy.issubdtype(
                obj.dtype, jax.dtypes.prng_key
            ):
                if not (obj.is_fully_addressable or obj.is_fully_replicated):
                    raise SpawnError(
                        f"the result has an array that is spread over processes ({obj.sharding}): "
                        "no process has all of it. Return what each process has "
                        "(x.addressable_shards), or the whole "
                        "(jax.experimental.multihost_utils.process_allgather(x, tiled=True))"
                    )
                return np.asarray(obj).__reduce_ex__(4)
            return super().reducer_override(obj)

    try:
        return _pickled(Pickler, value)
    except SpawnError:
        raise
    except Exception as error:
        raise SpawnError(
            f"the result cannot be sent to the caller: {type(error).__name__}: {error}. Return "
            "numbers, texts, arrays, or containers of these"
        ) from error
