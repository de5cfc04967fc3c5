"""The solvers inside a `jax.shard_map` of the caller: each device passes its shard.

`potrs_shardmap_ctx` and `syevd_shardmap_ctx` also take global arrays inside a `jax.jit` of the
caller, as jaxmg 1.4 does it, and return what it returns there.

In a `jax.shard_map` names and return values are those of earlier releases of jaxmg. The mesh is
that of the `jax.shard_map`. Devices that differ in an axis which ``in_specs`` do not name belong to
different groups, and each group solves a problem of its own. In this way a batch of matrices can be
split over one axis of a mesh, and each matrix over another.

`jax.shard_map` needs ``check_vma=False``: replicated results come from all-gathers, and JAX cannot
infer that they are equal on all devices.

Derivatives are those of the loops, which keep their intermediate results. Without ``lower`` they
are correct for Hermitian changes of ``a``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lockstep.linalg import _cpu_kernels, _eigh, _posdef, _qr, _solve, _validation
from lockstep.linalg._posdef import Plan
from lockstep.linalg._shards import given_specs, is_inside, place, place_beside
from lockstep.linalg._validation import AnyMesh, Specs


def potrs_shardmap_ctx(
    a: jax.Array,
    b: jax.Array,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    pad: bool = True,
    lower: bool | None = None,
    return_logdet: bool = False,
    return_status: bool = True,
) -> Any:
    """Solves ``a x = b`` in a `jax.shard_map` or `jax.jit`; ``a`` is Hermitian positive definite.

    The algorithm is that of `potrs`. All devices of the mesh axes in ``in_specs`` must call it. In
    a `jax.jit`, on global arrays, it is `potrs` itself, and returns ``a`` first, as jaxmg 1.4 does.

    Args:
      a: this device's shard of an (n, n) matrix; float32, float64, complex64 or complex128.
      b: this device's shard of (n,) or (n, k), with the dtype of ``a``.
      T_A: the maximal number of rows of a tile; default: chosen by a cost model.
      mesh: the mesh of the arrays in a `jax.jit`; in a `jax.shard_map` it is ignored.
      matrix_specs: jaxmg's other name of ``in_specs``.
      in_specs: the PartitionSpec of ``a``, or one each for ``a`` and ``b``, as in the enclosing
        `jax.shard_map`. Default: the rows of ``a`` are split over all axes of the mesh in their
        order, and ``b`` is replicated or split by rows, as its shape shows.
      pad: jaxmg's argument, which is ignored, because any size works.
      lower: read only the lower (True) or upper (False) triangle. None: ``a`` must be Hermitian,
        which is not checked here. One of two mirrored elements is read; which one depends on the
        sharding.
      return_logdet: also return the natural logarithm of the determinant, a real scalar.
      return_status: also return the status: 0, or the order of the first leading minor that is not
        positive definite; int32 of shape (1,). Without it a matrix that is split by rows is not
        redistributed. In a `jax.jit` the status is always returned.

    Returns:
      x, split as ``b``; with ``return_logdet`` followed by the logarithm, with ``return_status``
      followed by the status. A single result is not in a tuple. x is NaN when ``a`` is not positive
      definite. In a `jax.jit` ``a`` itself stands in front of them.

    Raises:
      ValueError: shapes, a mesh or specs that do not fit.
      TypeError: an unsupported dtype, or different dtypes.
    """
    given = given_specs(matrix_specs, in_specs)
    if not is_inside():
        options = {"lower": lower, "return_logdet": return_logdet}
        *found, status = _solve.potrs(a, b, T_A, mesh, given, return_status=True, **options)
        return a, *found, status[None]
    a_spec, b_spec = _validation.specs("potrs_shardmap_ctx", given, ("a", "b"))
    placed, n = place("potrs_shardmap_ctx", a, a_spec)
    b_placed = place_beside("potrs_shardmap_ctx", b, b_spec, placed, n, a.dtype)
    tile = _validation.tile_size("potrs_shardmap_ctx", T_A)
    x, logdet, status = b, jnp.zeros((), a.real.dtype), jnp.int32(0)
    if n:
        plan = Plan.for_cholesky(n, placed, tile, return_status)
        low, status = _posdef.factor(a, plan, lower, return_status)
        if b.size:
            x = _posdef.as_matrix(
                lambda b, placed: _posdef.solve(None, low, b, plan, placed), b, b_placed
            )
        if return_logdet:
            logdet = _posdef.log_determinant_of(low, plan)
    found = (x, *([logdet] if return_logdet else []), *([status[None]] if return_status else []))
    return found if len(found) > 1 else x


def potri_shardmap_ctx(
    a: jax.Array,
    T_A: int | None = None,
    pad: bool = True,
    *,
    in_specs: Specs = None,
    lower: bool | None = None,
    return_status: bool = True,
) -> Any:
    """The inverse of a Hermitian positive definite matrix, inside `jax.shard_map`.

    The algorithm is that of `inv`. All devices of the mesh axes in ``in_specs`` must call it.

    Args:
      a: this device's shard of an (n, n) matrix; float32, float64, complex64 or complex128.
      T_A: the maximal number of rows of a tile; default: chosen by a cost model.
      pad: jaxmg's argument, which is ignored, because any size works.
      in_specs: the PartitionSpec of ``a``, as in the enclosing `jax.shard_map`. Default: the rows
        are split over all axes of the mesh in their order.
      lower: read only the lower (True) or upper (False) triangle. None: ``a`` must be Hermitian,
        which is not checked here. One of two mirrored elements is read; which one depends on the
        sharding.
      return_status: also return the status: 0, or the order of the first leading minor that is not
        positive definite; int32 of shape (1,).

    Returns:
      This device's shard of the inverse, both triangles (jaxmg returns one); NaN when ``a`` is not
      positive definite. With ``return_status`` the pair (inverse, status).

    Raises:
      ValueError: not inside `jax.shard_map`, or a shape or specs that do not fit.
      TypeError: an unsupported dtype.
    """
    [spec] = _validation.specs("potri_shardmap_ctx", in_specs, ("a",))
    placed, n = place("potri_shardmap_ctx", a, spec)
    tile = _validation.tile_size("potri_shardmap_ctx", T_A)
    found, status = a, jnp.int32(0)
    if n:
        plan = Plan.of(n, placed, tile, return_status)
        low, status = _posdef.factor(a, plan, lower, return_status)
        found = _posdef.inverse_of(low, plan)
    return (found, status[None]) if return_status else found


def syevd_shardmap_ctx(
    a: jax.Array,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    return_eigenvectors: bool = True,
    pad: bool = True,
    lower: bool = True,
) -> Any:
    """Eigenvalues and eigenvectors of a Hermitian matrix, in a `jax.shard_map` or a `jax.jit`.

    The algorithm is that of `eigh`, in a `jax.shard_map` always distributed. All devices of the
    mesh axes in ``in_specs`` must call it, and it cannot be differentiated there. In a `jax.jit`,
    on global arrays, it is `syevd` itself, and returns ``a`` first, as jaxmg 1.4 does.

    Args:
      a: this device's shard of an (n, n) matrix; float32, float64, complex64 or complex128.
      T_A: checked and otherwise ignored: the tile size follows from the size of the matrix.
      mesh: the mesh of the array in a `jax.jit`; in a `jax.shard_map` it is ignored.
      matrix_specs: jaxmg's other name of ``in_specs``.
      in_specs: the PartitionSpec of ``a``, as in the enclosing `jax.shard_map`. Default: the rows
        are split over all axes of the mesh in their order.
      return_eigenvectors: whether to return the eigenvectors.
      pad: jaxmg's argument, which is ignored, because any size works.
      lower: read only the lower (True) or upper (False) triangle, whatever the other one holds.

    Returns:
      (eigenvalues, eigenvectors, status), or (eigenvalues, status). The eigenvalues (n,) are
      ascending, real, and the same on every device; the eigenvectors are split as ``a``; the status
      is 0, or 1 when an eigenvalue is not finite, int32 of shape (1,). In a `jax.jit` ``a`` itself
      stands in front of them.

    Raises:
      ValueError: a shape, a mesh or specs that do not fit.
      TypeError: an unsupported dtype.
    """
    given = given_specs(matrix_specs, in_specs)
    if not is_inside():
        *found, status = _eigh.syevd(a, T_A, mesh, given, return_eigenvectors, True, lower=lower)
        return a, *found, status[None]
    [spec] = _validation.specs("syevd_shardmap_ctx", given, ("a",))
    placed, n = place("syevd_shardmap_ctx", a, spec)
    _validation.tile_size("syevd_shardmap_ctx", T_A)
    values, vectors = jnp.zeros(0, a.real.dtype), a
    if n:
        kernels = _cpu_kernels.available(_validation.platform(placed))
        problem = _eigh.Problem(placed, lower, return_eigenvectors, 0, n, False, kernels, n)
        found = _eigh.compute(a, problem)
        values, vectors = found if return_eigenvectors else (found, a)
    status = _qr.status_of(values)[None]
    return (values, vectors, status) if return_eigenvectors else (values, status)
