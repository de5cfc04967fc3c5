"""Private properties of arrays that the solvers need."""

from __future__ import annotations

from typing import Any


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
