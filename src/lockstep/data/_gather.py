"""`lockstep.gather`: the values of global arrays as NumPy on one process or all, in pieces."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lockstep._words import processes
from lockstep.data import _pieces
from lockstep.data._pieces import Index, check_process


def gather(x: Any, to: int | None = 0) -> Any:
    """The values of global arrays as NumPy on one process, or on all; every process calls this.

    Args:
      x: a pytree of arrays, the same on all processes. What a process holds whole (NumPy, numbers,
        arrays of its own devices such as `jax.pmap`'s results) is what process ``to`` has itself.
      to: the index of the process that gets the values; None for all.

    Returns:
      The pytree with NumPy arrays on process ``to``; None on the others. Beside the result a
      process holds less than 100 MiB more while the arrays move.

    Raises:
      ValueError: the job has no such process.
      TypeError: an array of random keys: gather ``jax.random.key_data(key)``. Or an array that
        spans processes without a `NamedSharding`.
    """
    check_process("gather", to)
    wanted = to is None or to == jax.process_index()
    leaves, structure = jax.tree.flatten(x)
    for leaf in leaves:
        _check_leaf(leaf, to)
    found = [_gather_leaf(leaf, wanted) for leaf in leaves]
    return jax.tree.unflatten(structure, found) if wanted else None


def _check_leaf(x: Any, to: int | None) -> None:
    if not isinstance(x, jax.Array):
        return
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        raise TypeError(
            "lockstep.gather: an array of random keys has no NumPy type: gather "
            "jax.random.key_data(key), and make the key again with jax.random.wrap_key_data."
        )
    if not (x.is_fully_addressable or isinstance(x.sharding, NamedSharding)):
        raise TypeError(
            f"lockstep.gather: an array with a {type(x.sharding).__name__} spans processes; "
            "expected a NamedSharding. Give the jitted function that makes it out_shardings."
        )
    holders = {device.process_index for device in x.sharding.device_set}
    wanting = set(range(jax.process_count())) if to is None else {to}
    if not x.is_fully_addressable and (without := sorted(wanting - holders)):
        raise ValueError(
            f"lockstep.gather: {processes(without)} has no device of the array ({x.sharding}), so "
            f"it cannot receive it. Gather to one of {sorted(holders)}."
        )


def _gather_leaf(x: Any, wanted: bool) -> Any:
    if not isinstance(x, jax.Array):
        return x
    if not x.addressable_shards:
        return None  # an array of other processes, for one of them
    if x.is_fully_addressable or x.is_fully_replicated:
        return _held_here(x) if wanted else None
    out = np.empty(x.shape, x.dtype) if wanted else None
    for index, start, piece in _pieces_of_shards(x, wanted):
        if out is not None:
            _write(out, index, start, piece)
    return out


def _held_here(x: jax.Array) -> np.ndarray:
    """A copy, shard by shard: JAX would keep another one with the array."""
    out = np.empty(x.shape, x.dtype)
    for shard in x.addressable_shards:
        out[shard.index] = np.asarray(shard.data)
        if x.is_fully_replicated:
            break
    return out


def _pieces_of_shards(x: jax.Array, wanted: bool) -> Iterator[tuple[Index, int, np.ndarray]]:
    """Parts of the shards: the shard's place in ``x``, where the part begins in it, the part."""
    sharding: Any = x.sharding
    mesh, axes = sharding.mesh, _axes(sharding.spec)
    places = x.sharding.devices_indices_map(x.shape)
    indices: list[Any] = [places[device] for device in _one_of_each(mesh, axes)]
    length = int(np.prod(sharding.shard_shape(x.shape), dtype=int))
    room = _pieces.PIECE_BYTES // (len(indices) * x.dtype.itemsize * len(mesh.local_devices))
    size = max(1, min(length, room))
    cut = _all_gather(mesh, sharding.spec, axes, size)
    for begin in range(0, length, size):
        # The last piece begins earlier, so that one compiled program serves all.
        start = min(begin, length - size)
        found = cut(x, start)
        if wanted:
            block = np.asarray(found.addressable_data(0))
            for index, row in zip(indices, block, strict=True):
                yield index, start, _of_bits(row, x.dtype)
        else:
            found.block_until_ready()  # so that no more pieces are in flight than one
        del found  # before the next one takes memory


def _axes(spec: PartitionSpec) -> tuple[str, ...]:
    """The mesh axes over which the shards differ."""
    entries = [entry if isinstance(entry, tuple) else (entry,) for entry in spec]
    return tuple(name for entry in entries for name in entry if name is not None)


def _one_of_each(mesh: Any, axes: tuple[str, ...]) -> list[Any]:
    """A device for each different shard, in the order in which `_all_gather` has them."""
    order = [mesh.axis_names.index(name) for name in axes]
    rest = [axis for axis in range(mesh.devices.ndim) if axis not in order]
    count = int(np.prod([mesh.devices.shape[axis] for axis in order], dtype=int))
    return list(mesh.devices.transpose(order + rest).reshape(count, -1)[:, 0])


@functools.lru_cache(maxsize=64)
def _all_gather(
    mesh: Mesh, spec: PartitionSpec, axes: tuple[str, ...], size: int
) -> Callable[[jax.Array, int], jax.Array]:
    """(array, start) -> [shards, size]: elements from ``start`` on of each different shard."""

    def cut(shard: jax.Array, start: jax.Array) -> jax.Array:
        piece = jax.lax.dynamic_slice_in_dim(shard.reshape(-1), start, size)
        return jax.lax.all_gather(_bits(piece), axes)

    # check_vma: that an all-gather has the same result everywhere is not derived.
    inner = jax.shard_map(
        cut,
        mesh=mesh,
        in_specs=(spec, PartitionSpec()),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return jax.jit(inner)


def _bits(x: jax.Array) -> jax.Array:
    """Small types as integers of whole bytes, which every implementation of the collectives has."""
    if x.dtype == bool or _is_part_of_a_byte(x.dtype, jnp.integer):
        return x.astype(np.uint8 if x.dtype == bool else np.int8)
    if _is_part_of_a_byte(x.dtype, jnp.floating):
        return jax.lax.bitcast_convert_type(x, jnp.uint4).astype(np.uint8)
    if x.dtype.itemsize > 2:
        return x
    return jax.lax.bitcast_convert_type(x, np.dtype(f"u{x.dtype.itemsize}"))


def _of_bits(row: np.ndarray, dtype: Any) -> np.ndarray:
    """What `_bits` was made of: NumPy holds an int4 in a byte, with its sign."""
    return row.astype(dtype) if _is_part_of_a_byte(dtype, jnp.integer) else row.view(dtype)


def _is_part_of_a_byte(dtype: Any, kind: Any) -> bool:
    """Whether ``dtype`` is an integer (a float, by ``kind``) of less than 8 bits: int4."""
    if not jnp.issubdtype(dtype, kind):
        return False
    return (jnp.iinfo if kind is jnp.integer else jnp.finfo)(dtype).bits < 8


def _write(out: np.ndarray, index: Index, start: int, piece: np.ndarray) -> None:
    """Writes ``piece``, elements of a shard in C order from ``start`` on, into its place."""
    part = out[index]
    if part.flags.c_contiguous:
        part.reshape(-1)[start : start + len(piece)] = piece
    else:
        at = np.unravel_index(np.arange(start, start + len(piece)), part.shape)
        part[at] = piece
