"""What `lockstep.inspect` and `lockstep.show_sharding` read of programs and shardings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def ordered_devices(sharding: Any) -> tuple[Any, ...]:
    """The devices of a sharding in the order of the programs that use it; empty: it has none."""
    import jax

    mesh = getattr(sharding, "mesh", None)
    if mesh is not None:
        return tuple(mesh.devices.flat) if isinstance(mesh, jax.sharding.Mesh) else ()
    return tuple(getattr(sharding, "_device_assignment", ()))


def meshes_in(jaxpr: Any) -> Iterator[Any]:
    """The meshes that a traced program names: of shard_map, of constraints on shardings."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in getattr(jaxpr, "eqns", ()):
        for value in equation.params.values():
            yield from _meshes(value)


def _meshes(value: Any) -> Iterator[Any]:
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        yield from meshes_in(value)
    elif hasattr(value, "axis_names") and hasattr(value, "shape_tuple"):
        yield value
    elif hasattr(getattr(value, "mesh", None), "axis_names"):
        yield value.mesh
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _meshes(each)


def current_mesh() -> Any:
    """The mesh of ``jax.set_mesh``; None where none is set."""
    import jax

    get = getattr(jax.sharding, "get_mesh", None)  # since jax 0.9
    if get is None:
        from jax._src import mesh

        get = mesh.get_concrete_mesh
    found = get()
    return None if found is None or getattr(found, "empty", False) else found


def is_tracer(array: Any) -> bool:
    from jax.core import Tracer

    return isinstance(array, Tracer)


def unmapped(array: Any) -> Any:
    """The array with the axes that `jax.vmap` maps; ``array`` itself outside of it."""
    while type(array).__name__ == "BatchTracer" and getattr(array, "val", None) is not None:
        array = array.val
    return array
