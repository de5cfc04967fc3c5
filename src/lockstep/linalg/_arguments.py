"""The arrays of a call, checked and on their mesh: how each public function begins."""

from __future__ import annotations

from typing import Any

import jax

from lockstep.linalg import _validation
from lockstep.linalg._validation import AnyMesh, Placed, Specs


def square(
    function: str, a: Any, mesh: AnyMesh | None, in_specs: Specs, names: tuple[str, ...] = ("a",)
) -> tuple[jax.Array, Placed]:
    """A square matrix and its sharding. ``names``: of all arrays that ``in_specs`` is for."""
    a = _validation.square(function, a, mesh)
    placed = _validation.place(function, a, mesh, _validation.specs(function, in_specs, names)[0])
    return _validation.put(a, placed), placed


def matrix(
    function: str, a: Any, mesh: AnyMesh | None, in_specs: Specs
) -> tuple[jax.Array, Placed]:
    """A matrix of any shape and its sharding."""
    a = _validation.matrix(function, a, mesh)
    [spec] = _validation.specs(function, in_specs, ("a",))
    placed = _validation.place(function, a, mesh, spec)
    return _validation.put(a, placed), placed


def system(
    function: str, a: Any, b: Any, mesh: AnyMesh | None, in_specs: Specs, name: str = "a"
) -> tuple[jax.Array, jax.Array, Placed, Placed]:
    """A square matrix, its right-hand side, and their shardings. ``name``: of the matrix."""
    a = _validation.square(function, a, mesh, name)
    return _with_right_hand_side(function, a, b, mesh, in_specs)


def rectangular_system(
    function: str, a: Any, b: Any, mesh: AnyMesh | None, in_specs: Specs
) -> tuple[jax.Array, jax.Array, Placed, Placed]:
    """The same for a matrix of any shape."""
    a = _validation.matrix(function, a, mesh)
    return _with_right_hand_side(function, a, b, mesh, in_specs)


def _with_right_hand_side(
    function: str, a: jax.Array, b: Any, mesh: AnyMesh | None, in_specs: Specs
) -> tuple[jax.Array, jax.Array, Placed, Placed]:
    b = _validation.right_hand_side(function, b, a.shape[0], a.dtype, a.shape[1])
    placed, b_placed = _validation.place_both(function, a, b, mesh, in_specs)
    return _validation.put(a, placed), _validation.put(b, b_placed), placed, b_placed
