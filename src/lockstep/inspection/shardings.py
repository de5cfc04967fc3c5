"""`lockstep.show_sharding`: which device holds which part of an array."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from lockstep import _jax_compat
from lockstep._errors import InspectError
from lockstep.inspection import layout
from lockstep.inspection.layout import ArrayLayout, Dimension


class ShardingView:
    """How an array lies on devices: a text, HTML in notebooks, or an image."""

    def __init__(self, layout: ArrayLayout) -> None:
        self.layout = layout

    def print(self) -> None:
        """Prints the drawing, with colours on a terminal."""
        from lockstep.inspection import drawing, rendering

        rendering.show(drawing.parts(self.layout))

    def save(self, path: str) -> None:
        """Writes the drawing as an image, ``.png`` or ``.svg``. Needs matplotlib.

        Raises:
          InspectError: another ending, or no matplotlib.
          OSError: the file cannot be written.
        """
        from lockstep.inspection import image

        image.save(self.layout, str(path))

    def __str__(self) -> str:
        from lockstep.inspection import drawing, rendering

        return rendering.as_text(drawing.parts(self.layout))

    def __repr__(self) -> str:
        return f"<sharding of {self.layout.type}: {self.layout.spec or 'see .print()'}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """IPython's text, for a front end of a notebook that shows no HTML."""
        printer.text(str(self) if _is_displayed() else repr(self))

    def _repr_html_(self) -> str:
        from lockstep.inspection import drawing, rendering

        return rendering.as_html(drawing.parts(self.layout))


def show_sharding(x: Any, /) -> ShardingView | None:
    """Shows which device holds which part of an array of any rank.

    Prints a drawing; in a notebook the value that it returns shows itself. Dimensions that are not
    cut are left out of the drawing, and many equal rows are folded. Nothing is sent: each process
    may call it alone, also for an array that spans processes.

    Args:
      x: a `jax.Array`, a `jax.ShapeDtypeStruct` with a sharding, or a traced array inside
        `jax.jit`. Under a mesh of automatic axes the compiler decides on the sharding of a traced
        array: it is then printed when the program is compiled. Inside `jax.vmap` the array is
        shown with the axis that is mapped.

    Returns:
      A `ShardingView` with ``print``, ``save("x.png")`` or ``"x.svg"``, and ``str``. None for a
      traced array whose sharding is not decided yet.

    Raises:
      InspectError: ``x`` is no array, or has no sharding.
    """
    x = _jax_compat.unmapped(x)
    if _jax_compat.is_tracer(x):
        return _show_traced(x)
    sharding = getattr(x, "sharding", None)
    if sharding is None or not hasattr(x, "shape"):
        raise InspectError(
            f"show_sharding needs a jax.Array, a traced array, or a jax.ShapeDtypeStruct with a "
            f"sharding, and got {_described(x)}. For a tree of arrays: "
            "jax.tree.map(lockstep.show_sharding, tree)."
        )
    return _shown(ShardingView(_layout(x.shape, str(x.dtype), sharding)))


def _described(x: Any) -> str:
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"a {type(x).__name__} of shape {tuple(x.shape)} without a sharding"
    return f"a {type(x).__name__}"


def _shown(view: ShardingView) -> ShardingView:
    if not _is_displayed():
        view.print()
    return view


def _is_displayed() -> bool:
    """Whether a notebook displays the value that it gets: then nothing has to be printed."""
    return "ipykernel" in sys.modules


def _show_traced(x: Any) -> ShardingView | None:
    import jax

    kind: Any = jax.typeof(x)
    dtype, mesh = str(kind.dtype), kind.sharding.mesh
    varying = _jax_compat.varying_axes(x)
    kinds = set(getattr(mesh, "axis_types", None) or ())
    if jax.sharding.AxisType.Manual in kinds:
        axes = ", ".join(sorted(map(str, varying)))
        note = f"inside jax.shard_map: each device has its own{f', along {axes}' if axes else ''}"
        whole = tuple(Dimension(size, (0,), ()) for size in kind.shape)
        block = {(0,) * len(whole): tuple(range(mesh.size))}
        local = ArrayLayout(dtype, whole, block, {}, _mesh_text(mesh), "", note, is_local=True)
        return _shown(ShardingView(local))
    if kinds and kinds == {jax.sharding.AxisType.Explicit}:
        return _shown(ShardingView(_layout(kind.shape, dtype, kind.sharding)))
    shape = kind.shape

    def show(sharding: Any) -> None:
        ShardingView(_layout(shape, dtype, sharding)).print()

    jax.debug.inspect_array_sharding(x, callback=show)
    return None


def _layout(shape: Sequence[int], dtype: str, sharding: Any) -> ArrayLayout:
    mesh = getattr(sharding, "mesh", None)
    spec = _axes_of(sharding, len(shape))
    devices = _jax_compat.ordered_devices(sharding)
    if devices:
        indices = sharding.devices_indices_map(tuple(shape))
        starts, blocks = layout.from_indices(shape, {d.id: i for d, i in indices.items()})
        processes = {device.id: device.process_index for device in devices}
    elif mesh is not None and spec is not None and not mesh.empty:
        axes = {str(name): mesh.shape[name] for name in mesh.axis_names}
        starts, blocks = layout.from_spec(shape, spec, axes)
        processes = {}
    else:
        raise InspectError(f"{type(sharding).__name__} names neither devices nor a mesh.")
    names = spec or [()] * len(shape)
    return ArrayLayout(
        dtype,
        tuple(Dimension(*each) for each in zip(shape, starts, names, strict=True)),
        blocks,
        processes,
        _mesh_text(mesh),
        _spec_text(spec) if spec is not None else type(sharding).__name__,
        "" if devices else "devices are numbered by their place in the mesh",
    )


def _axes_of(sharding: Any, rank: int) -> list[tuple[str, ...]] | None:
    """The axes that cut each dimension; None where the sharding has no spec."""
    spec = getattr(sharding, "spec", None)
    if spec is None:
        return None
    parts = [*spec, *[None] * (rank - len(spec))]
    return [
        tuple(map(str, part)) if isinstance(part, tuple) else (str(part),) if part else ()
        for part in parts
    ]


def _spec_text(spec: Sequence[tuple[str, ...]]) -> str:
    parts = [repr(p[0]) if len(p) == 1 else repr(p) if p else "None" for p in spec]
    return f"P({', '.join(parts)})"


def _mesh_text(mesh: Any) -> str:
    if mesh is None or not hasattr(mesh, "axis_names") or mesh.empty:
        return ""
    return ", ".join(f"{name}={mesh.shape[name]}" for name in mesh.axis_names)
