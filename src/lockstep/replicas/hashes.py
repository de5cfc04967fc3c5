"""Hashes of arrays, computed on the devices that hold them: no data moves but the hashes.

Each element is taken as 32-bit words, which are mixed with their places and summed modulo 2**32, in
two ways. The mixing is a bijection of the word (the finalizer of a multiplicative hash, constants:
C. Wellons, "Prospecting for Hash Functions", 2018), so a difference in one word always changes the
first sum; other differences are missed with a probability of about 2**-64. Both sums are one
reduction over the array, which reads it once and needs no memory.

All NaNs count as equal, whatever their bits: which of them an operation gives is not defined.
"""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

_GOLDEN = np.uint32(0x9E3779B9)
_FACTORS = (np.uint32(0x7FEB352D), np.uint32(0x846CA68B), np.uint32(0x9E3779B1))

_apart = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="lockstep-replicas")
"""A thread of its own, because the caller may be inside `jax.set_mesh` or another context of JAX,
which holds for its thread, and within which a program over other devices is an error."""


def of(pieces: Sequence[Sequence[Any]]) -> list[list[int]]:
    """The 64-bit hashes of pieces of arrays: ``pieces[i][d]`` lies on the d-th device alone.

    The pieces of one i have the same shape and dtype, and the devices are the same for all i.
    """
    return _apart.submit(_of, pieces).result()


def _of(pieces: Sequence[Sequence[Any]]) -> list[list[int]]:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = tuple(piece.device for piece in pieces[0])
    if len(devices) == 1:
        sums = jax.device_get(_program(None)([own[0] for own in pieces]))[None]
    else:
        mesh = Mesh(np.array(devices), ("device",))
        sharding = NamedSharding(mesh, PartitionSpec())
        # As one array that is called replicated, whatever it holds: then all devices run one
        # program, and it is compiled once.
        joined = [
            jax.make_array_from_single_device_arrays(own[0].shape, sharding, list(own))
            for own in pieces
        ]
        sums = jax.device_get(_program(mesh)(joined))
    first, second = sums.astype(np.uint64).transpose(2, 1, 0)
    return ((first << np.uint64(32)) | second).tolist()


@functools.lru_cache(maxsize=64)
def _program(mesh: Any) -> Any:
    """Makes uint32[devices, arrays, 2] of arrays; without a mesh uint32[arrays, 2]."""
    import jax
    from jax.sharding import PartitionSpec

    def replica_hashes(arrays: Sequence[Any]) -> Any:
        return jax.numpy.stack([_sums(array) for array in arrays])

    if mesh is None:
        return jax.jit(replica_hashes)

    def on_each(arrays: Sequence[Any]) -> Any:
        return replica_hashes(arrays)[None]

    mapped = jax.shard_map(
        on_each, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec("device")
    )
    return jax.jit(mapped)


def _sums(array: Any) -> Any:
    """uint32[2] of an array of any shape."""
    from jax import lax

    if np.issubdtype(array.dtype, np.complexfloating):
        return _sums(lax.real(array)) + _FACTORS[0] * _sums(lax.imag(array))
    words = _words(array).reshape(-1)
    place = lax.iota(np.uint32, words.size)
    mixed = words + place * _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint32(16))) * _FACTORS[0]
    mixed = (mixed ^ (mixed >> np.uint32(15))) * _FACTORS[1]
    mixed = mixed ^ (mixed >> np.uint32(16))
    again = (mixed ^ place) * _FACTORS[2]
    again = again ^ (again >> np.uint32(15))
    zero = np.uint32(0)
    # Two reductions would write the words to memory first; one of both reads the array only.
    both = lax.reduce((mixed, again), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), (0,))
    return lax.concatenate([each.reshape(1) for each in both], 0)


def _words(array: Any) -> Any:
    """The bits of an array as uint32, with a further axis of 2 for elements of 64 bits."""
    import jax
    from jax import lax

    dtype = array.dtype
    if jax.numpy.issubdtype(dtype, np.floating):
        array = lax.select(lax.ne(array, array), lax.full_like(array, np.nan), array)
    if dtype == np.bool_ or _bits(dtype) < 8:
        # Values below 8 bits fill no byte of their own: they are compared as small numbers.
        exact = np.float32 if jax.numpy.issubdtype(dtype, np.floating) else np.int32
        return lax.bitcast_convert_type(lax.convert_element_type(array, exact), np.uint32)
    if dtype.itemsize < 4:
        unsigned = {1: np.uint8, 2: np.uint16}[dtype.itemsize]
        return lax.convert_element_type(lax.bitcast_convert_type(array, unsigned), np.uint32)
    return lax.bitcast_convert_type(array, np.uint32)


def _bits(dtype: Any) -> int:
    import jax

    if jax.numpy.issubdtype(dtype, np.integer):
        return jax.numpy.iinfo(dtype).bits
    return jax.numpy.finfo(dtype).bits if dtype != np.bool_ else 1
