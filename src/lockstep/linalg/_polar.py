"""Polar decomposition of sharded matrices: the public function."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax

from lockstep.linalg import _arguments, _eigh, _posdef, _qr, _singular, _singular_plan, _validation
from lockstep.linalg._singular_plan import Plan
from lockstep.linalg._validation import AnyMesh, Specs


def polar(
    a: Any,
    T_A: int | None = None,
    mesh: AnyMesh | None = None,
    matrix_specs: Specs = None,
    *,
    in_specs: Specs = None,
    compute_h: bool = True,
    return_status: bool = False,
    method: str | None = None,
    **unused: Any,
) -> Any:
    """The polar decomposition ``a = u h`` of a sharded matrix that is tall or square.

    The counterpart of `jax.scipy.linalg.polar`: by `svd` on CPUs, and on GPUs by QR and QDWH for
    the triangle (Nakatsukasa, Bai and Gygi 2010). ``u`` has orthonormal columns, and is the nearest
    such matrix to ``a``; ``h`` is Hermitian and has no negative eigenvalues beyond rounding. Where
    ``a`` lacks full rank, ``u`` is one of several.

    Args:
      a: (m, n), m >= n; float32, float64, complex64 or complex128; any sharding over any mesh.
      T_A: the maximal number of rows of a tile; default: by the size of the matrix.
      mesh: the mesh of ``a``, if the array does not have one (a tracer inside `jax.jit`).
      matrix_specs: the PartitionSpec of ``a`` in the same case.
      in_specs: jaxmg's other name of ``matrix_specs``.
      compute_h: whether to return ``h``.
      return_status: also return the status: 0, or 1 when ``u`` is not finite. Replicated int32.
      method: "distributed", or "replicated": every device decomposes the triangle with LAPACK.
        Default: "replicated" for small matrices, else "distributed".
      **unused: jaxmg's ``pad`` and ``donate``, which are ignored.

    Returns:
      u (m, n), sharded as ``a``; with ``compute_h`` also h (n, n), each dimension sharded as that
      of ``a`` if it divides evenly; with ``return_status`` followed by the status.

    Raises:
      ValueError: a matrix that is wide, another wrong shape or method, a mesh or specs that do not
        fit ``a``, or dimensions that cannot be split evenly.
      TypeError: an unsupported dtype, or an unknown argument.
    """
    unused.pop("donate", None)
    _validation.ignore_pad("polar", unused)
    _singular_plan.check_method("polar", method)
    a, placed = _arguments.matrix("polar", a, mesh, matrix_specs if in_specs is None else in_specs)
    check_tall(a.shape)
    tile = _validation.tile_size("polar", T_A)
    plan = Plan.of(a.shape, placed, True, True, False, tile, method)
    u, h = decompose(a, plan)
    status = [_qr.status_of(u)] if return_status else []
    found = (u, *([h] if compute_h else []), *status)
    return found if len(found) > 1 else u


def check_tall(shape: tuple[int, ...]) -> None:
    if shape[0] < shape[1]:
        raise ValueError(
            f"polar: a is {shape[0]} x {shape[1]}; expected at least as many rows as columns. Give "
            "a.conj().T: for a = h u, its polar decomposition is u^H h."
        )


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def decompose(a: jax.Array, plan: Plan) -> tuple[jax.Array, jax.Array]:
    return _singular.polar(a, plan)


@decompose.defjvp
def _polar_jvp(plan: Plan, primals: Any, tangents: Any) -> Any:
    """``du = u o + (da - u c) h^-1``, where ``c = u^H da`` and ``o h + h o = c - c^H``.

    Kenney and Laub, "Polar decomposition and matrix sign function condition estimates", 1991.
    """
    (a,), (da,), (m, n) = primals, tangents, plan.shape
    u, h = decompose(a, plan)
    square, turned = plan.square, plan.result((n, m), True)
    s, v = _eigh.eigh(h, lower=True, mesh=square.mesh, in_specs=square.spec)
    vectors = dataclasses.replace(plan, placed=square).result((n, n))

    def times(x: jax.Array, y: jax.Array) -> jax.Array:
        return _posdef.matmul(x, y, square)

    uh, vh = _posdef.adjoint(u, turned), _posdef.adjoint(v, vectors)
    c = times(uh, da)
    turn = times(vh, times(c - _posdef.adjoint(c, square), v))
    skew = times(times(v, turn / (s + s[:, None])), vh)
    rest = _posdef.matmul(da - _posdef.matmul(u, c, plan.placed), v, plan.placed)
    outside = _posdef.matmul(rest / s, vh, plan.placed)
    du = _posdef.matmul(u, skew, plan.placed) + outside
    dh = times(_posdef.adjoint(du, turned), a) + c
    return (u, h), (du, (dh + _posdef.adjoint(dh, square)) / 2)
