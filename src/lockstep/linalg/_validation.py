"""Checks the arguments of the public functions, and raises their errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lockstep import _jax_compat
from lockstep.linalg._layout import Axes, Sharded

AnyMesh: TypeAlias = Mesh | AbstractMesh
Specs: TypeAlias = P | Sequence[P] | None

_DTYPES = ("float32", "float64", "complex64", "complex128")


@dataclasses.dataclass(frozen=True)
class Placed:
    """The sharding of an array: a mesh, and for each dimension the mesh axes that split it."""

    mesh: AnyMesh
    dimensions: tuple[Axes, ...]
    inside: bool = False
    """Whether the code runs in a `jax.shard_map` over ``mesh``, on one device's part."""

    @property
    def spec(self) -> P:
        return P(*(axes or None for axes in self.dimensions))

    def splits(self) -> tuple[Axes, ...]:
        """``dimensions`` without axes of size 1, which JAX leaves out of what `jax.jit` returns."""
        size = self.mesh.shape
        return tuple(tuple(axis for axis in axes if size[axis] > 1) for axes in self.dimensions)

    @property
    def sharded(self) -> Sharded:
        rows = self.dimensions[0]
        columns = self.dimensions[1] if len(self.dimensions) > 1 else ()
        return Sharded.over(self.mesh.shape, rows, columns)

    def with_rows(self, rows: int) -> Placed:
        """The sharding of as many columns with other ``rows``: whole where these do not divide."""
        axes = self.dimensions[0]
        axes = axes if rows % self.sharded.size(axes) == 0 else ()
        return dataclasses.replace(self, dimensions=(axes, *self.dimensions[1:]))

    @property
    def sharding(self) -> NamedSharding:
        assert isinstance(self.mesh, Mesh)
        return NamedSharding(self.mesh, self.spec)

    def map(self, body: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """``body`` on every device; inside a `jax.shard_map` of the caller it is that already."""
        if self.inside:
            return body
        return jax.shard_map(
            body, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )


def matrix(function: str, a: Any, mesh: AnyMesh | None, name: str = "a") -> jax.Array:
    """``a`` as a matrix of any shape, of a supported type; an error otherwise."""
    a = _as_placed(function, a, mesh, name)
    if a.ndim != 2:
        raise ValueError(
            f"{function}: {name} has shape {a.shape}; expected one matrix, shape (m, n). "
            "A stack of matrices goes through jax.vmap or jax.lax.map."
        )
    check_dtype(function, a, name)
    return a


def square(function: str, a: Any, mesh: AnyMesh | None, name: str = "a") -> jax.Array:
    """``a`` as a square matrix of a supported type; an error otherwise."""
    a = _as_placed(function, a, mesh, name)
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(
            f"{function}: {name} has shape {a.shape}; expected one square matrix, shape (n, n). "
            "A stack of matrices goes through jax.vmap or jax.lax.map."
        )
    check_dtype(function, a, name)
    return a


def _as_placed(function: str, a: Any, mesh: AnyMesh | None, name: str) -> jax.Array:
    """An array that is not JAX's has no sharding. Each process would solve it by itself, silently,
    or take its own rows for the whole matrix."""
    if isinstance(a, jax.Array):
        return a
    if mesh is None and _context_mesh() is None and jax.process_count() > 1:
        raise ValueError(
            f"{function}: {name} is a {type(a).__module__}.{type(a).__name__}, which has no "
            f"sharding, in a job of {jax.process_count()} processes. If every process has the "
            "whole matrix, give mesh= (and in_specs=), or distribute it with jax.device_put(a, "
            "NamedSharding(mesh, spec)). If a process has its own rows, join them with "
            "jax.make_array_from_process_local_data. To solve it on each process alone, give "
            "jnp.asarray(a)."
        )
    return jnp.asarray(a)


def right_hand_side(
    function: str, b: Any, n: int, dtype: Any, columns: int | None = None
) -> jax.Array:
    """``b`` as a vector or a matrix with ``n`` rows. ``columns``: those of the matrix, if not n."""
    b = b if isinstance(b, jax.Array) else jnp.asarray(b)
    if b.ndim not in (1, 2) or b.shape[0] != n:
        raise ValueError(
            f"{function}: b has shape {b.shape}; expected ({n},) or ({n}, k), because the matrix "
            f"is {n} x {n if columns is None else columns}."
        )
    check_dtype(function, b, "b")
    if b.dtype != dtype:
        raise TypeError(f"{function}: b is {b.dtype}, a is {dtype}; expected one dtype for both.")
    return b


def tile_size(function: str, tile: Any) -> int | None:
    if tile is not None and (isinstance(tile, bool) or int(tile) != tile or tile < 1):
        raise ValueError(f"{function}: tile size {tile!r}; expected a whole number of 1 or more.")
    return None if tile is None else int(tile)


def check_dtype(function: str, a: jax.Array, name: str) -> None:
    if a.dtype.name not in _DTYPES:
        raise TypeError(
            f"{function}: {name} is {a.dtype}; expected one of {', '.join(_DTYPES)}. "
            "Convert it first, for instance with .astype(jnp.float32)."
        )


def place(
    function: str, a: jax.Array, mesh: AnyMesh | None, spec: P | None, name: str = "a"
) -> Placed:
    """The mesh and the sharding of ``a``, from the array itself and from the caller's arguments.

    Raises:
      ValueError: these contradict each other, or neither gives a sharding.
    """
    own, a = _own_place(a), _jax_compat.under_derivatives(a)
    if mesh is None:
        mesh = own.mesh if own else _context_mesh()
    if mesh is None and isinstance(a, Tracer):
        raise ValueError(
            f"{function}: {name} is a tracer whose type does not contain its sharding. Give "
            "mesh= and in_specs=, or call the function under jax.set_mesh(mesh)."
        )
    if mesh is None:
        [device] = a.devices() if len(a.devices()) == 1 else [None]
        if device is None:
            raise ValueError(
                f"{function}: {name} has the sharding {a.sharding}; expected a NamedSharding, or "
                "mesh= and in_specs=."
            )
        mesh = Mesh(np.array([device]), ("device",))
    if own is not None and tuple(own.mesh.shape.items()) != tuple(mesh.shape.items()):
        raise ValueError(
            f"{function}: {name} is sharded over the mesh {words(own.mesh)}, and mesh= is "
            f"{words(mesh)}. Give the array's own mesh, or leave mesh= out."
        )
    if own is not None and isinstance(own.mesh, Mesh) and isinstance(mesh, Mesh):
        if own.mesh.devices.tolist() != mesh.devices.tolist():
            raise ValueError(
                f"{function}: the devices of {name} and of mesh= differ, at least in their order. "
                "Give the array's own mesh, or leave mesh= out."
            )
    if spec is None:
        placed = own or Placed(mesh, _default_dimensions(a, mesh))
    else:
        placed = Placed(mesh, dimensions(function, spec, a, mesh, name))
        if own is not None and placed.splits() != own.splits():
            raise ValueError(
                f"{function}: {name} is sharded as {own.spec}, but in_specs is {placed.spec}. "
                "Leave in_specs= out, or change the sharding with jax.device_put first."
            )
    _check_divides(function, a, placed, name)
    return placed


def put(a: jax.Array, placed: Placed) -> jax.Array:
    """``a`` on the mesh: an array of one device, or of the host, is distributed as ``placed``."""
    if isinstance(a, Tracer) or _own_place(a) is not None:
        return a
    return jax.device_put(a, placed.sharding)


def place_both(
    function: str, a: jax.Array, b: jax.Array, mesh: AnyMesh | None, in_specs: Specs
) -> tuple[Placed, Placed]:
    """A matrix and its right-hand side on one mesh."""
    a_spec, b_spec = specs(function, in_specs, ("a", "b"))
    placed = place(function, a, mesh, a_spec)
    return placed, place(function, b, placed.mesh, b_spec, "b")


def platform(placed: Placed) -> str:
    if isinstance(placed.mesh, Mesh):
        return placed.mesh.devices.flat[0].platform
    return jax.default_backend()


def check_status(function: str, check: bool, status: jax.Array) -> None:
    """With ``check``, raises an error for a matrix that is not positive definite."""
    if not check:
        return
    _refuse_tracer(function, status)
    if int(status):
        raise np.linalg.LinAlgError(
            f"{function}: the matrix is not positive definite: its leading minor of order "
            f"{int(status)} is not positive definite."
        )


def _refuse_tracer(function: str, status: jax.Array) -> None:
    if isinstance(status, Tracer):
        raise ValueError(
            f"{function}: check=True needs the values of the matrix, which are not available "
            "inside a transformation such as jax.jit. Use return_status=True there."
        )


def check_singular(function: str, check: bool, status: jax.Array, what: str) -> None:
    """With ``check``, raises an error for a pivot (of a row or column) that is of no use."""
    if not check:
        return
    _refuse_tracer(function, status)
    if int(status) < 0:
        raise np.linalg.LinAlgError(
            f"{function}: devices found different pivots, so there is no solution. Processors of "
            "different kinds round differently. Set OPENBLAS_CORETYPE to one value for all "
            "processes, for instance Haswell, and use one version of SciPy."
        )
    if int(status):
        raise np.linalg.LinAlgError(
            f"{function}: the matrix is singular: the pivot of {what} {int(status)} (counted from "
            "1) is zero or not finite. If the matrix has only finite numbers, that "
            f"{what} depends on those that were eliminated before."
        )


def check_trans(function: str, trans: int) -> None:
    if trans not in (0, 1, 2):
        raise ValueError(f"{function}: trans is {trans!r}; expected 0, 1 or 2.")


def transposed(placed: Placed) -> Placed:
    """The sharding of the transpose of a matrix with this one."""
    rows, columns = placed.dimensions
    return Placed(placed.mesh, (columns, rows), placed.inside)


def ignore_pad(function: str, unused: dict[str, Any]) -> None:
    """Ignores jaxmg's ``pad``; any other argument is an error."""
    unknown = set(unused) - {"pad"}
    if unknown:
        raise TypeError(f"{function}: unknown argument {', '.join(sorted(unknown))}.")


def specs(function: str, given: Specs, names: tuple[str, ...]) -> tuple[P | None, ...]:
    """``in_specs`` as one PartitionSpec for each of ``names``; None for those left out."""
    if given is None:
        return (None,) * len(names)
    listed = [given] if isinstance(given, P) else list(given)
    if not all(isinstance(x, P) for x in listed) or len(listed) > len(names):
        raise TypeError(
            f"{function}: in_specs is {given!r}; expected a jax.sharding.PartitionSpec for each "
            f"of {', '.join(names)}."
        )
    return (*listed, *(None,) * (len(names) - len(listed)))


def _own_place(a: jax.Array) -> Placed | None:
    """The sharding of the array itself, or of its type under explicit axes."""
    a = _jax_compat.under_derivatives(a)
    sharding: Any = jax.typeof(a).sharding if isinstance(a, Tracer) else a.sharding
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        return None
    if isinstance(a, Tracer):
        kinds = jax.sharding.AxisType
        if any(kind != kinds.Explicit for kind in sharding.mesh.axis_types):
            return None
    return Placed(sharding.mesh, _axes_by_dimension(sharding.spec, a.ndim))


def _context_mesh() -> AnyMesh | None:
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def _default_dimensions(a: jax.Array, mesh: AnyMesh) -> tuple[Axes, ...]:
    """Rows over the whole mesh if they divide evenly, else replicated."""
    axes = tuple(mesh.axis_names)
    rows = axes if a.shape[0] % mesh.size == 0 else ()
    return (rows, *((),) * (a.ndim - 1))


def _axes_by_dimension(spec: P, ndim: int) -> tuple[Axes, ...]:
    entries = [*spec, *[None] * (ndim - len(spec))]
    return tuple(
        () if e is None or e is P.UNCONSTRAINED else (e,) if isinstance(e, str) else tuple(e)
        for e in entries
    )


def dimensions(function: str, spec: P, a: jax.Array, mesh: AnyMesh, name: str) -> tuple[Axes, ...]:
    if len(spec) > max(a.ndim, 2) or any(e is not None for e in tuple(spec)[a.ndim :]):
        raise ValueError(
            f"{function}: the spec {spec} has {len(spec)} entries, {name} has {a.ndim} dimensions."
        )
    dimensions = _axes_by_dimension(P(*tuple(spec)[: a.ndim]), a.ndim)
    used = [axis for axes in dimensions for axis in axes]
    unknown = [axis for axis in used if axis not in mesh.axis_names]
    if unknown:
        raise ValueError(
            f"{function}: the spec {spec} of {name} names {', '.join(map(repr, unknown))}; the "
            f"mesh is {words(mesh)}."
        )
    if len(set(used)) != len(used):
        raise ValueError(f"{function}: the spec {spec} of {name} uses a mesh axis twice.")
    return dimensions


def _check_divides(function: str, a: jax.Array, placed: Placed, name: str) -> None:
    for length, axes in zip(a.shape, placed.dimensions, strict=True):
        parts = placed.sharded.size(axes)
        if length % parts:
            raise ValueError(
                f"{function}: {name} has shape {a.shape}, and {length} cannot be split evenly over "
                f"the {parts} devices of {' x '.join(axes)} ({words(placed.mesh)}), as JAX "
                "requires. Replicate that dimension, or pad the matrix with the identity."
            )


def words(mesh: AnyMesh) -> str:
    return "(" + ", ".join(f"{name}: {size}" for name, size in mesh.shape.items()) + ")"
