"""jaxmg's ``_shardmap_ctx`` names of `qr`, `least_squares`, `gesvd` and `polar`.

They can be called in two places. Inside a `jax.jit`, on global arrays, as jaxmg 1.4 does it: then
they are the functions without the suffix, and have their derivatives. Inside a `jax.shard_map` of
the caller, on the shards of one device, with ``check_vma=False``: then they cannot be
differentiated. The status is always returned, int32 of shape (1,). What jaxmg returns as work
arrays, for donation, are the arguments themselves.
"""

from __future__ import annotations

import jax

from lockstep.linalg import _least_squares, _polar, _qr, _singular, _svd, _validation
from lockstep.linalg._qr import QRPlan
from lockstep.linalg._shard_map import place_beside, place_shard
from lockstep.linalg._singular import Plan
from lockstep.linalg._validation import AnyMesh, Placed, Specs


def qr_shardmap_ctx(
    a: jax.Array,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    pad: bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`qr` inside a `jax.jit` (global arrays) or a `jax.shard_map` (shards) of the caller.

    Args:
      a: an (m, n) matrix, or this device's shard of one; float32, float64, complex64, complex128.
      T_A: the maximal number of rows of a tile; default: by the size of the matrix.
      mesh: the mesh of ``a`` in a `jax.jit`.
      matrix_specs: the PartitionSpec of ``a``. Default in a `jax.shard_map`: the rows are split
        over all axes of the mesh in their order.
      in_specs: jaxmg's other name of ``matrix_specs``.
      pad: jaxmg's argument, which is ignored, because any size works.

    Returns:
      q (m, k), r (k, n), k = min(m, n), and the status: 0, or 1 when r is not finite. Each
      dimension is split as that of ``a`` if it divides evenly, else not.

    Raises:
      ValueError, TypeError: as `qr`.
    """
    function = "qr_shardmap_ctx"
    placed, shape = _place(function, a, mesh, matrix_specs, in_specs)
    plan = QRPlan.of(shape, placed, _validation.tile_size(function, T_A))
    q, r = (_qr.compute if placed.inside else _qr.decompose)(a, plan, "reduced")
    return q, r, _status(r, placed)


def least_squares_shardmap_ctx(
    a: jax.Array,
    b: jax.Array,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    pad: bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """`least_squares` inside a `jax.jit` (global arrays) or a `jax.shard_map` (shards).

    Args:
      a: an (m, n) matrix, or this device's shard of one; float32, float64, complex64, complex128.
      b: (m,) or (m, k), or a shard, with the dtype of ``a``.
      T_A: the maximal number of rows of a tile; default: by the size of the matrix.
      mesh: the mesh of both in a `jax.jit`.
      matrix_specs: the PartitionSpec of ``a``, or one each for ``a`` and ``b``. Default in a
        `jax.shard_map`: the rows of ``a`` are split over all axes of the mesh in their order, and
        ``b`` is replicated or split by rows, as its shape shows.
      in_specs: jaxmg's other name of ``matrix_specs``.
      pad: jaxmg's argument, which is ignored, because any size works.

    Returns:
      ``a`` and ``b`` themselves; x, (n,) or (n, k), split as ``b`` if its rows divide evenly; and
      the status: 0, or 1 when x is not finite.

    Raises:
      ValueError, TypeError: as `least_squares`.
    """
    function = "least_squares_shardmap_ctx"
    given = matrix_specs if in_specs is None else in_specs
    a_spec, b_spec = _validation.specs(function, given, ("a", "b"))
    placed, shape = _place(function, a, mesh, a_spec, None)
    if placed.inside:
        b_placed = place_beside(function, b, b_spec, placed, shape[0], a.dtype)
    else:
        b = _validation.right_hand_side(function, b, shape[0], a.dtype, shape[1])
        b_placed = _validation.place(function, b, placed.mesh, b_spec, "b")
    tile = _validation.tile_size(function, T_A)
    x = _least_squares.solve(a, b, shape, placed, b_placed, tile)
    return a, b, x, _status(x, placed)


def gesvd_shardmap_ctx(
    a: jax.Array,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    compute_u: bool = True,
    compute_vh: bool = True,
    full_matrices: bool = False,
    pad: bool = True,
) -> tuple[jax.Array, ...]:
    """`gesvd` inside a `jax.jit` (global arrays) or a `jax.shard_map` (shards) of the caller.

    Args:
      a: an (m, n) matrix, or this device's shard of one; float32, float64, complex64, complex128.
      T_A: the maximal number of rows of a tile; default: by the size of the matrix.
      mesh: the mesh of ``a`` in a `jax.jit`.
      matrix_specs: the PartitionSpec of ``a``. Default in a `jax.shard_map`: the rows are split
        over all axes of the mesh in their order.
      in_specs: jaxmg's other name of ``matrix_specs``.
      compute_u: whether to return the left singular vectors.
      compute_vh: whether to return the adjoint of the right singular vectors.
      full_matrices: whether these are square.
      pad: jaxmg's argument, which is ignored, because any size works.

    Returns:
      ``a`` itself, u, s, vh and the status, without what is not computed: 0, or 1 when a singular
      value is not finite.

    Raises:
      ValueError, TypeError: as `gesvd`.
    """
    function = "gesvd_shardmap_ctx"
    placed, shape = _place(function, a, mesh, matrix_specs, in_specs)
    tile = _validation.tile_size(function, T_A)
    plan = Plan.of(shape, placed, compute_u, compute_vh, full_matrices, tile)
    found = (_singular.decompose if placed.inside else _svd.decompose)(a, plan)
    return a, *found, _status(found[int(compute_u)], None)


def polar_shardmap_ctx(
    a: jax.Array,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    compute_h: bool = True,
    pad: bool = True,
) -> tuple[jax.Array, ...]:
    """`polar` inside a `jax.jit` (global arrays) or a `jax.shard_map` (shards) of the caller.

    Args:
      a: an (m, n) matrix, m >= n, or this device's shard of one; float32, float64, complex64 or
        complex128.
      T_A: the maximal number of rows of a tile; default: by the size of the matrix.
      mesh: the mesh of ``a`` in a `jax.jit`.
      matrix_specs: the PartitionSpec of ``a``. Default in a `jax.shard_map`: the rows are split
        over all axes of the mesh in their order.
      in_specs: jaxmg's other name of ``matrix_specs``.
      compute_h: whether to return ``h``.
      pad: jaxmg's argument, which is ignored, because any size works.

    Returns:
      u, with ``compute_h`` h, and the status: 0, or 1 when u is not finite.

    Raises:
      ValueError, TypeError: as `polar`.
    """
    function = "polar_shardmap_ctx"
    placed, shape = _place(function, a, mesh, matrix_specs, in_specs)
    _polar.check_tall(shape)
    tile = _validation.tile_size(function, T_A)
    plan = Plan.of(shape, placed, True, True, False, tile)
    found = (_singular.polar if placed.inside else _polar.decompose)(a, plan)
    return *found[: 2 if compute_h else 1], _status(found[0], placed)


def _place(
    function: str, a: jax.Array, mesh: AnyMesh | None, matrix_specs: Specs, in_specs: Specs
) -> tuple[Placed, tuple[int, int]]:
    """The sharding of the whole matrix and its shape."""
    [spec] = _validation.specs(function, matrix_specs if in_specs is None else in_specs, ("a",))
    if jax.sharding.get_abstract_mesh().manual_axes:
        return place_shard(function, a, spec)
    a = _validation.matrix(function, a, mesh)
    m, n = a.shape
    return _validation.place(function, a, mesh, spec), (m, n)


def _status(found: jax.Array, placed: Placed | None) -> jax.Array:
    """The status of a result; of the shards of all devices, where they are shards."""
    status = _qr.status_of(found)
    if placed is not None and placed.inside:
        status = jax.lax.pmax(status, placed.sharded.axes)
    return status[None]
