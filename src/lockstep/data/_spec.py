"""Structure, shapes and types of a process's rows, in a form that other processes can read."""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep._errors import DataError
from lockstep._words import processes
from lockstep.data._exchange import exchange


def spec_of(tree: Any) -> Any:
    """The JSON of a pytree of arrays in dicts, lists and tuples; of a NamedTuple its name
    and its parts, of other nodes only the name."""
    if isinstance(tree, dict):
        return {"dict": [[key, spec_of(tree[key])] for key in sorted(tree)]}
    if isinstance(tree, list):
        return {"list": [spec_of(value) for value in tree]}
    if type(tree) is tuple:
        return {"tuple": [spec_of(value) for value in tree]}
    if isinstance(tree, tuple):  # a NamedTuple, of which other processes know no class
        return {"other": type(tree).__qualname__, "parts": [spec_of(value) for value in tree]}
    if tree is None:
        return {"none": True}
    if hasattr(tree, "shape") and hasattr(tree, "dtype"):
        return {"shape": list(tree.shape), "dtype": np.dtype(tree.dtype).name}
    return {"other": type(tree).__qualname__}


def row_of(block: Any) -> Any:
    """Shapes and types of one row of a pytree of arrays with rows."""
    import jax

    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), block)


def shapes(spec: Any) -> Any:
    """The `jax.ShapeDtypeStruct`s of a spec; raises TypeError for a node of another type."""
    import jax

    match spec:
        case {"dict": pairs}:
            return {key: shapes(value) for key, value in pairs}
        case {"list": values}:
            return [shapes(value) for value in values]
        case {"tuple": values}:
            return tuple(shapes(value) for value in values)
        case {"none": True}:
            return None
        case {"shape": shape, "dtype": dtype}:
            # NumPy itself does not know bfloat16.
            return jax.ShapeDtypeStruct(tuple(shape), jax.numpy.dtype(dtype))
    raise TypeError(f"a {spec.get('other')}")


def agree(words: str, tree: Any, has_one: bool) -> Any:
    """Zeros like the first batch, which every process that has one has alike.

    Args:
      words: the call of the user, for errors.
      tree: the first batch of this process: a pytree of arrays.
      has_one: False where this process has no batch at all.

    Raises:
      DataError: on every process, if structure, shapes or types differ, or if a process without a
        batch cannot know the type of a node.
    """
    import jax

    found = exchange(words, spec_of(tree) if has_one else None)
    specs = {process: spec for process, spec in enumerate(found) if spec is not None}
    if not specs:
        return None
    first = min(specs)
    if other := [process for process, spec in specs.items() if spec != specs[first]]:
        raise DataError(
            f"{words}: the first batches of process {first} and of {processes(other)} differ in "
            f"structure, shape or dtype:\n  process {first}: {text(specs[first])}\n"
            f"  process {other[0]}: {text(specs[other[0]])}"
        )
    try:
        tree = shapes(specs[first])
    except TypeError as error:
        if missing := [process for process in range(len(found)) if process not in specs]:
            raise DataError(
                f"{words}: {processes(missing)} has no batch, and those of process {first} have a "
                f"node ({error}) that is no dict, list or tuple, so that no empty batch can be "
                "made there."
            ) from None
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), tree)


def text(spec: Any) -> str:
    """``{'x': float32[2,3]}``"""
    match spec:
        case {"dict": pairs}:
            return "{" + ", ".join(f"{key!r}: {text(value)}" for key, value in pairs) + "}"
        case {"list": values}:
            return "[" + ", ".join(map(text, values)) + "]"
        case {"tuple": values}:
            return "(" + ", ".join(map(text, values)) + ")"
        case {"shape": shape, "dtype": dtype}:
            return f"{dtype}[{','.join(map(str, shape))}]"
        case {"other": name, "parts": parts}:
            return f"{name}({', '.join(map(text, parts))})"
    return str(spec.get("other"))
