"""`lockstep.inspect`: compiles a function without running it, and reads what came out."""

from __future__ import annotations

import contextlib
import inspect as signatures
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lockstep import _config, _jax_compat
from lockstep._errors import InspectError
from lockstep.hlo import collectives as hlo
from lockstep.hlo import products
from lockstep.inspection import assemble, cost_model
from lockstep.inspection.facts import ArrayInfo, Memory, Placement
from lockstep.inspection.mesh_axes import MeshShape
from lockstep.inspection.report import Report

_REMATERIALIZED = re.compile(
    r"^.*full rematerialization.* from sharding (?P<old>\{.*?\}) to (?P<new>\{.*?\}) .*?"
    r"HLO operation \S+ = (?P<type>\w+\[[\d,]*\])(?P<rest>.*)\n?",
    re.M,
)
_OP_NAME = re.compile(r'op_name="([^"]*)"')


def inspect(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Shows what the compiler makes of a function: collectives, shardings, memory, flops.

    The function is compiled for the devices of its arguments' shardings, and not run. Nothing is
    sent, so one process of a job may call this alone.

    Args:
      f: a function, jitted (`jax.jit`) or to be jitted.
      *args: the arguments that it would be called with: arrays, or `jax.ShapeDtypeStruct` with a
        ``sharding``. A sharding over an abstract mesh is taken as one over as many of this
        process's devices.
      **kwargs: the same, by name.

    Returns:
      A `Report`. It prints as tables, shows itself in notebooks, and has ``to_dict``, ``to_json``,
      ``on`` (other processes and hosts) and ``predict`` (the times of another machine). Bytes are
      per device. Times are predicted if `lockstep bench --calibrate` was run on this machine.

    Raises:
      InspectError: a mesh has more devices than there are, or the compiled program cannot be read.
      Exception: what JAX raises when it traces or compiles ``f``.
    """
    import jax

    jitted: Any = f if hasattr(f, "trace") and hasattr(f, "lower") else jax.jit(f)
    with _concrete(args, kwargs) as (args, kwargs):
        traced = jitted.trace(*args, **kwargs)
        lowered = traced.lower()
        with _compiler_output() as output:
            compiled = lowered.compile()
        meshes = [*_jax_compat.meshes_in(traced.jaxpr), _jax_compat.current_mesh()]
    report = _report(_name(f), _parameters(f), compiled, meshes, output)
    model = cost_model.load()
    return assemble.finished(assemble.predicted(report, model) if model else report)


def _report(
    name: str, parameters: Sequence[str], compiled: Any, meshes: Sequence[Any], output: list[str]
) -> Report:
    import jax

    text = compiled.as_text() or ""
    in_shardings = jax.tree.leaves(compiled.input_shardings)
    out_shardings = jax.tree.leaves(compiled.output_shardings)
    devices = _devices([*in_shardings, *out_shardings], text)
    of_shardings = (getattr(s, "mesh", None) for s in (*in_shardings, *out_shardings))
    shapes = _mesh_shapes([*of_shardings, *meshes], devices)
    hosts = _config.current().local_num_processes or 1 << 30
    placement = Placement(
        tuple(device.id for device in devices),
        tuple(device.process_index for device in devices),
        hosts,
    )
    try:
        found = hlo.find(text)
    except ValueError as error:
        raise InspectError(
            f"the compiled program of {name} cannot be read: {error}. "
            f"jax {jax.__version__} may be newer than this Lockstep was tested with "
            f"({_jax_compat.pin()})."
        ) from error
    return Report(
        name=name,
        meshes=shapes,
        placement=placement,
        inputs=_inputs(parameters, compiled),
        outputs=_outputs(compiled),
        collectives=assemble.collectives(found, shapes, placement),
        memory=_memory(compiled),
        flops=_flops(compiled),
        product_flops=products.flops(text),
        warnings=tuple(dict.fromkeys(output)),
    )


def _devices(shardings: Sequence[Any], text: str) -> tuple[Any, ...]:
    """The devices of the program, in its order."""
    import jax

    count = hlo.devices(text)
    lists = (_jax_compat.ordered_devices(sharding) for sharding in shardings)
    return next((found for found in lists if len(found) == count), tuple(jax.devices()[:count]))


def _mesh_shapes(meshes: Sequence[Any], devices: Sequence[Any]) -> tuple[MeshShape, ...]:
    """The meshes over exactly these devices, each once."""
    positions = {device.id: at for at, device in enumerate(devices)}
    found: dict[MeshShape, None] = {}
    for mesh in meshes:
        if mesh is None or mesh.size != len(devices):
            continue
        own = getattr(mesh, "devices", None) if _is_concrete(mesh) else None
        ids = [device.id for device in own.flat] if own is not None else sorted(positions)
        if set(ids) == set(positions):
            names = tuple(str(name) for name in mesh.axis_names)
            sizes = tuple(mesh.shape[name] for name in mesh.axis_names)
            found[MeshShape(names, sizes, tuple(positions[each] for each in ids))] = None
    return tuple(found)


def _is_concrete(mesh: Any) -> bool:
    import jax

    return isinstance(mesh, jax.sharding.Mesh)


@contextlib.contextmanager
def _concrete(args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """The arguments, with the first devices in place of abstract meshes."""
    import jax

    def abstract(leaf: Any) -> Any:
        mesh = getattr(getattr(leaf, "sharding", None), "mesh", None)
        return None if mesh is None or _is_concrete(mesh) or mesh.empty else mesh

    meshes = {mesh for leaf in jax.tree.leaves((args, kwargs)) if (mesh := abstract(leaf))}
    made = {mesh: _made(mesh) for mesh in meshes}

    def concrete(leaf: Any) -> Any:
        mesh = abstract(leaf)
        if mesh is None:
            return leaf
        sharding = jax.sharding.NamedSharding(made[mesh], leaf.sharding.spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    args, kwargs = jax.tree.map(concrete, (args, kwargs))
    with jax.set_mesh(made.popitem()[1]) if len(made) == 1 else contextlib.nullcontext():
        yield args, kwargs


def _made(mesh: Any) -> Any:
    import jax

    if mesh.size > jax.device_count():
        raise InspectError(
            f"the mesh {dict(mesh.shape)} has {mesh.size} devices, and this process sees "
            f"{jax.device_count()}. `lockstep inspect -n N -d D program.py:function` plans for N "
            "processes with D devices each; in a process of your own set "
            f"jax.config.update('jax_num_cpu_devices', {mesh.size}) before JAX is used."
        )
    sizes = tuple(mesh.shape[name] for name in mesh.axis_names)
    return jax.make_mesh(
        sizes, mesh.axis_names, axis_types=mesh.axis_types, devices=jax.devices()[: mesh.size]
    )


def _name(f: Any) -> str:
    named = getattr(f, "func", f)  # of a functools.partial
    return str(getattr(named, "__name__", "") or type(f).__name__)


def _parameters(f: Any) -> tuple[str, ...]:
    with contextlib.suppress(TypeError, ValueError):
        return tuple(signatures.signature(f).parameters)
    return ()


def _inputs(parameters: Sequence[str], compiled: Any) -> tuple[ArrayInfo, ...]:
    import jax

    infos, shardings = compiled.args_info, compiled.input_shardings
    leaves = jax.tree_util.tree_leaves_with_path(infos)
    found = []
    by_path = {
        jax.tree_util.keystr(path): sharding
        for path, sharding in jax.tree_util.tree_leaves_with_path(shardings)
    }
    for path, info in leaves:
        name = _argument_name(path, parameters)
        sharding = by_path.get(jax.tree_util.keystr(path))
        found.append(_array(name, info, sharding, bool(info.donated)))
    return tuple(found)


def _argument_name(path: Sequence[Any], parameters: Sequence[str]) -> str:
    """``params['w']`` for a path like ``[0][0]['w']``: of (positional, by name), then inside."""
    import jax

    kind, first, *rest = path
    inside: str = jax.tree_util.keystr(tuple(rest))
    if getattr(kind, "idx", 0) == 1:
        return f"{first.key}{inside}"
    known = first.idx < len(parameters)
    return f"{parameters[first.idx] if known else f'argument {first.idx + 1}'}{inside}"


def _outputs(compiled: Any) -> tuple[ArrayInfo, ...]:
    import jax

    shardings = jax.tree.leaves(compiled.output_shardings)
    leaves = jax.tree_util.tree_leaves_with_path(compiled.out_info)
    return tuple(
        _array(jax.tree_util.keystr(path) or "result", info, sharding)
        for (path, info), sharding in zip(leaves, shardings, strict=True)
    )


def _array(name: str, info: Any, sharding: Any, donated: bool = False) -> ArrayInfo:
    shape = tuple(info.shape)
    if sharding is None:
        return ArrayInfo(name, str(info.dtype), shape, shape, "not used", 0, 0, donated)
    shard = tuple(sharding.shard_shape(shape))
    devices = len(sharding.device_set)
    shards = math.prod(-(-n // s) for n, s in zip(shape, shard, strict=True) if s)
    spec = getattr(sharding, "spec", None)
    size = math.prod(shard) * info.dtype.itemsize
    text = _spec(spec) if spec is not None else "replicated" if shards == 1 else "as compiled"
    return ArrayInfo(name, str(info.dtype), shape, shard, text, size, devices // shards, donated)


def _spec(spec: Any) -> str:
    return f"P({', '.join(repr(each) for each in spec)})"


def _memory(compiled: Any) -> Memory | None:
    stats = compiled.memory_analysis()
    if stats is None:
        return None
    return Memory(
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.alias_size_in_bytes,
    )


def _flops(compiled: Any) -> float | None:
    analysis = compiled.cost_analysis()
    if isinstance(analysis, list | tuple):
        analysis = analysis[0] if analysis else None
    return float(analysis["flops"]) if analysis and "flops" in analysis else None


@contextlib.contextmanager
def _compiler_output() -> Iterator[list[str]]:
    """Collects the partitioner's complaints, which XLA writes to the process's stderr.

    Everything else that was written meanwhile is passed on afterwards.
    """
    found: list[str] = []
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield found
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            warnings, rest = complaints(file.read().decode(errors="replace"))
            found += warnings
            sys.stderr.flush()
            os.write(2, rest.encode())


def complaints(text: str) -> tuple[list[str], str]:
    """The partitioner's warnings in what the compiler wrote, and the rest of it."""
    found = []
    for each in _REMATERIALIZED.finditer(text):
        name = _OP_NAME.search(each["rest"])
        of = f" of {name[1]}" if name else ""
        found.append(
            f"full rematerialization: {each['type']}{of} is gathered whole on each device to go "
            f"from sharding {each['old']} to {each['new']}"
        )
    return found, _REMATERIALIZED.sub("", text)
