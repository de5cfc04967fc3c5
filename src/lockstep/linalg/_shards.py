"""The matrices of which the arrays in a caller's `jax.shard_map` are shards."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AbstractMesh

from lockstep import _jax_compat
from lockstep.linalg import _validation
from lockstep.linalg._validation import Placed, Specs


def is_inside() -> bool:
    """Whether the caller is inside of a `jax.shard_map`."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def given_specs(matrix_specs: Specs, in_specs: Specs) -> Specs:
    """What the caller gives by either of jaxmg's two names for it."""
    return matrix_specs if in_specs is None else in_specs


def place(function: str, a: jax.Array, spec: Any) -> tuple[Placed, int]:
    """The sharding of the square matrix of which ``a`` is a shard, and its size."""
    placed, shape = place_shard(function, a, spec)
    return placed, check_square(function, a, placed, shape)


def check_square(function: str, a: jax.Array, placed: Placed, shape: tuple[int, int]) -> int:
    """The size of the square matrix of which ``a`` is a shard."""
    rows, columns = shape
    if rows != columns:
        raise ValueError(
            f"{function}: a shard of shape {a.shape}, split as {placed.spec} over the mesh "
            f"{_validation.words(placed.mesh)}, means a matrix of {rows} x {columns}; expected a "
            "square one. Give in_specs= as in jax.shard_map."
        )
    return rows


def place_shard(function: str, a: jax.Array, spec: Any) -> tuple[Placed, tuple[int, int]]:
    """The sharding of the matrix of which ``a`` is a shard, over the axes in it, and its shape."""
    mesh = jax.sharding.get_abstract_mesh()
    manual = tuple(axis for axis in mesh.axis_names if axis in mesh.manual_axes)
    if not manual:
        raise ValueError(
            f"{function}: this is not inside jax.shard_map. Call it in the function that "
            f"jax.shard_map maps; outside, call lockstep.linalg.{function.split('_shardmap')[0]}."
        )
    if _jax_compat.varying_axes(a):
        raise ValueError(f"{function}: needs jax.shard_map(..., check_vma=False).")
    if a.ndim != 2:
        raise ValueError(f"{function}: a has shape {a.shape}; expected a shard of a matrix.")
    _validation.check_dtype(function, a, "a")
    whole = AbstractMesh(tuple(mesh.shape[axis] for axis in manual), manual)
    if spec is None:
        dimensions = (manual, ())
    else:
        dimensions = _validation.dimensions(function, spec, a, whole, "a")
    shared = tuple(axis for axis in manual if axis in dimensions[0] + dimensions[1])
    if not shared:
        raise ValueError(
            f"{function}: by the spec {spec} every device has the whole matrix; use "
            "jax.scipy.linalg on each device."
        )
    mesh = AbstractMesh(tuple(mesh.shape[axis] for axis in shared), shared)
    placed = Placed(mesh, dimensions, inside=True)
    rows, columns = (
        size * placed.sharded.size(axes) for size, axes in zip(a.shape, dimensions, strict=True)
    )
    return placed, (rows, columns)


def place_beside(
    function: str, b: jax.Array, spec: Any, placed: Placed, n: int, dtype: Any
) -> Placed:
    """The sharding of the right-hand side of which ``b`` is a shard."""
    rows = placed.dimensions[0]
    if spec is not None:
        dimensions = _validation.dimensions(function, spec, b, placed.mesh, "b")
    else:
        whole = b.ndim and b.shape[0] == n
        dimensions = (() if whole else rows, *((),) * (b.ndim - 1))
    if b.ndim not in (1, 2) or b.shape[0] * placed.sharded.size(dimensions[0]) != n:
        raise ValueError(
            f"{function}: a shard of b has shape {b.shape}; expected one of ({n},) or ({n}, k), "
            f"because the matrix is {n} x {n}. Give in_specs= for both, as in jax.shard_map."
        )
    _validation.check_dtype(function, b, "b")
    if b.dtype != dtype:
        raise TypeError(f"{function}: b is {b.dtype}, a is {dtype}; expected one dtype for both.")
    return Placed(placed.mesh, dimensions, inside=True)
