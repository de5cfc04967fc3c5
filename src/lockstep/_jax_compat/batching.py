"""Collectives of groups of devices under `jax.vmap`."""

from __future__ import annotations

from typing import Any

GROUPS = "collectives of groups of devices under jax.vmap"
GROUPS_LOST = (
    "jax.vmap of functions of lockstep.linalg on many devices; jax.lax.map does the same, one after"
    " another."
)
_NAMES = ("all_gather_p", "all_to_all_p", "psum_p", "reduce_scatter_p")


def batch_groups() -> None:
    """Gives collectives with ``axis_index_groups`` the batching rules that JAX has without them.

    JAX raises NotImplementedError: the axis of `jax.vmap` could be one of those that the groups
    divide. Where it is none of them, the groups do not matter: the batch goes to the last
    dimension, of which no parameter of a collective speaks, and stays there.
    """
    from jax._src.lax import parallel

    for name in _NAMES:
        _batch(getattr(parallel, name))


def _batch(primitive: Any) -> None:
    import jax.numpy as jnp
    from jax._src.interpreters import batching

    original = batching.fancy_primitive_batchers[primitive]

    def rule(axis_data: Any, values: Any, dims: Any, **parameters: Any) -> Any:
        axes = parameters["axes"] if "axes" in parameters else parameters["axis_name"]
        axes = axes if isinstance(axes, tuple | list) else (axes,)
        if parameters["axis_index_groups"] is None or axis_data.name in axes:
            return original(axis_data, values, dims, **parameters)
        values = [
            x if d is None else jnp.moveaxis(x, d, -1) for x, d in zip(values, dims, strict=True)
        ]
        found = primitive.bind(*values, **parameters)
        if primitive.multiple_results:
            last = [None if d is None else x.ndim - 1 for x, d in zip(found, dims, strict=True)]
            return found, last
        return found, None if dims[0] is None else found.ndim - 1

    batching.fancy_primitive_batchers[primitive] = rule
