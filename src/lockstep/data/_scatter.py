"""`lockstep.scatter` and `broadcast`: global arrays of values that one process has, in pieces."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lockstep._errors import DataError
from lockstep.bootstrap.initialize import process_mesh
from lockstep.data import _layout, _pieces, _spec
from lockstep.data._exchange import exchange
from lockstep.data._pieces import Index, check_process

_ALIGNMENT = 64
"""Bytes, of the buffers of XLA's CPU devices."""

WORDS = "lockstep.scatter"


def scatter(x: Any, sharding: Any, source: int = 0) -> Any:
    """Global arrays of values that one process has; every process calls this.

    Args:
      x: on process ``source`` a pytree of arrays, numbers and random keys (`jax.random.key`) in
        dicts, lists and tuples; on others anything.
      sharding: of the result: a sharding for all leaves, or a pytree of them that is a prefix.
      source: the index of the process that has the values.

    Returns:
      The pytree of global arrays, on every process. Beside its shards a process holds less
      than 200 MiB more while the arrays move.

    Raises:
      DataError: on every process: a leaf is no array of numbers, a node of the tree is of a type
        that only its own process knows, or an array cannot be divided by its sharding.
      ValueError: the job has no such process.
    """
    check_process("scatter", source)
    tree, specs, keys = _announced(x, source)
    leaves = jax.tree.leaves(
        jax.tree.map(lambda s, part: jax.tree.map(lambda _: s, part), sharding, specs)
    )
    shapes, structure = jax.tree.flatten(specs)
    for shape, own in zip(shapes, leaves, strict=True):
        _check_divides(own, shape.shape)  # before anything moves
    values = jax.tree.leaves(tree) if tree is not None else [None] * len(shapes)
    arrays = [_scatter_leaf(*e, source) for e in zip(values, shapes, leaves, strict=True)]
    for leaf, kind in keys:
        arrays[leaf] = jax.random.wrap_key_data(arrays[leaf], impl=kind)
    return jax.tree.unflatten(structure, arrays)


def broadcast(x: Any, source: int = 0) -> Any:
    """Values that one process has, replicated on all devices; every process calls this.

    As `scatter` with a sharding that replicates: arguments and errors are the same.
    """
    everywhere = NamedSharding(process_mesh(), PartitionSpec())
    return scatter(x, everywhere, source)


def _announced(x: Any, source: int) -> tuple[Any, Any, list[tuple[int, str]]]:
    """The values on ``source``, None elsewhere; on every process their shapes and types, and which
    leaves are the data of random keys, of which kind."""
    problem, spec, tree, keys = "", None, None, []
    if jax.process_index() == source:
        try:
            keys = [
                (i, k) for i, leaf in enumerate(jax.tree.leaves(x)) if (k := _kind_of_key(leaf))
            ]
            data = jax.tree.map(lambda k: jax.random.key_data(k) if _kind_of_key(k) else k, x)
            tree = _layout.checked(WORDS, jax.tree.map(np.asarray, data))
            spec = _spec.spec_of(tree)
        except Exception as error:
            problem = str(error)
    problem, spec, keys = exchange(WORDS, [problem, spec, keys])[source]
    if problem:
        raise DataError(f"{WORDS}: process {source}: {problem.removeprefix(f'{WORDS}: ')}")
    try:
        return tree, _spec.shapes(spec), keys
    except TypeError as error:
        raise DataError(
            f"{WORDS}: the tree of process {source} has {error}; other processes know dicts, "
            "lists and tuples."
        ) from None


def _kind_of_key(leaf: Any) -> str:
    """``threefry2x32`` for an array of random keys, "" for any other leaf."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return str(jax.random.key_impl(leaf)) if is_key else ""


def _check_divides(sharding: Any, shape: tuple[int, ...]) -> None:
    try:
        sharding.shard_shape(shape)
    except ValueError as error:
        raise DataError(
            f"{WORDS}: an array of shape {shape} cannot be divided by {sharding}: {error}"
        ) from error


def _scatter_leaf(value: Any, spec: Any, sharding: Any, source: int) -> jax.Array:
    shape, dtype = spec.shape, spec.dtype
    places = sharding.addressable_devices_indices_map(shape)
    buffers: dict[Any, np.ndarray] = {}
    for index in places.values():
        key = _bounds(index, shape)
        if key not in buffers:
            buffers[key] = _aligned([stop - start for start, stop in key], dtype)
    for block in _blocks(shape, dtype.itemsize):
        size = [s.stop - s.start for s in block]
        # reshape: of a number, ascontiguousarray makes a row
        piece = None if value is None else np.ascontiguousarray(value[block]).reshape(size)
        piece = _from(piece, size, dtype, source)
        for bounds, buffer in buffers.items():
            _copy_common(piece, block, buffer, bounds)
    parts = [jax.device_put(buffers[_bounds(i, shape)], device) for device, i in places.items()]
    held_as = jax.dtypes.canonicalize_dtype(dtype)  # without x64, JAX halves the wide ones
    return jax.make_array_from_single_device_arrays(shape, sharding, parts, dtype=held_as)


def _aligned(shape: list[int], dtype: Any) -> np.ndarray:
    """An array that a CPU device takes as it is, where NumPy's own would be copied: another shard
    in memory."""
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _bounds(index: Any, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def _blocks(shape: tuple[int, ...], itemsize: int) -> Iterator[Index]:
    """Boxes of at most a piece that make up an array of ``shape``."""
    sizes = list(shape)
    for axis in range(len(shape)):
        inner = int(np.prod(shape[axis + 1 :], dtype=int)) * itemsize
        sizes[axis] = max(1, min(shape[axis], _pieces.PIECE_BYTES // max(1, inner)))
        if sizes[axis] > 1 or inner <= _pieces.PIECE_BYTES:
            break
    starts = [range(0, n, size) if size else range(0) for n, size in zip(shape, sizes, strict=True)]
    for start in itertools.product(*starts):
        yield tuple(
            slice(at, min(at + size, n)) for at, size, n in zip(start, sizes, shape, strict=True)
        )


def _from(piece: np.ndarray | None, shape: list[int], dtype: Any, source: int) -> np.ndarray:
    """The ``piece`` of ``source`` on every process: a sum in which all others add zeros."""
    if jax.process_count() == 1:
        assert piece is not None
        return piece
    mesh, add = _sum_over_processes()
    local = mesh.shape["device"]
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    words = -(-size // (4 * local))  # each device moves a part
    own = np.zeros(local * words * 4, np.uint8)
    if jax.process_index() == source:
        assert piece is not None
        own[:size] = piece.reshape(-1).view(np.uint8)
    sharding = NamedSharding(mesh, PartitionSpec("process", "device"))
    rows = own.view(np.uint32).reshape(1, local, words)
    total = add(jax.make_array_from_process_local_data(sharding, rows))
    parts = sorted(total.addressable_shards, key=lambda shard: shard.index[1].start or 0)
    flat = np.concatenate([np.asarray(shard.data).reshape(-1) for shard in parts])
    return flat.view(np.uint8)[:size].view(dtype).reshape(shape)


@functools.cache
def _sum_over_processes() -> tuple[Mesh, Callable[[jax.Array], jax.Array]]:
    mesh = process_mesh(axis_types=(AxisType.Auto, AxisType.Auto))
    # uint32: other processes add zeros, so every bit arrives as it is.
    add = jax.jit(
        lambda x: x.sum(0, keepdims=True, dtype=np.uint32),
        out_shardings=NamedSharding(mesh, PartitionSpec(None, "device")),
    )
    return mesh, add


def _copy_common(
    piece: np.ndarray, block: Index, buffer: np.ndarray, bounds: tuple[tuple[int, int], ...]
) -> None:
    """Copies what the box ``block`` has of the box ``bounds``."""
    here, there = [], []
    for own, (start, stop) in zip(block, bounds, strict=True):
        first, end = max(own.start, start), min(own.stop, stop)
        if first >= end:
            return
        here.append(slice(first - own.start, end - own.start))
        there.append(slice(first - start, end - start))
    buffer[tuple(there)] = piece[tuple(here)]
