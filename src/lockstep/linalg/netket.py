"""Solvers for NetKet's stochastic reconfiguration (SR) on sharded matrices.

They have the names and arguments of two solvers of NetKet's that need jaxmg, and with it GPUs:
``netket.optimizer.solver.cholesky_distributed`` and ``pinv_smooth_distributed`` (NetKet 3.22 and
3.23). NetKet is not imported.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from lockstep.linalg import _eigh, _posdef, _solve, _validation
from lockstep.linalg._validation import Placed


def cholesky_distributed(
    A: Any = None,
    b: Any = None,
    *,
    local_tile_size: int | None = None,
    x0: Any = None,
    process_grid: tuple[int, int] | None = None,
) -> Any:
    """Solves ``A x = b`` by `lockstep.linalg.potrs`, for NetKet's ``VMC_SR(linear_solver=)``.

    Args:
      A: (n, n), Hermitian positive definite; or what has ``to_dense()``, as NetKet's quantum
        geometric tensor. Without ``A`` and ``b``: returns the function with the other arguments
        given, as NetKet's solvers do.
      b: (n,), or a pytree with n elements.
      local_tile_size: the maximal number of rows of a tile; default: chosen by a cost model.
      x0: unused, as in NetKet.
      process_grid: the grid of cuSOLVERMp in NetKet 3.23. Ignored: here rows are over all devices.

    Returns:
      The pair (x, None); x as ``b``, and NaN if ``A`` is not positive definite.

    Raises:
      ValueError: wrong shapes, or in a job of several processes no mesh, which NetKet sets.
      TypeError: an unsupported dtype, or different dtypes.
    """
    options = {"local_tile_size": local_tile_size}
    if A is None:
        return _Configured(cholesky_distributed, tuple(options.items()))
    A, b, unravel, placed = _arguments("cholesky_distributed", A, b)
    # Like NetKet's, it does not judge its matrix; inside jit nothing is checked anyway.
    lower = None if isinstance(A, Tracer) else True
    x = _solve.potrs(A, b, local_tile_size, placed.mesh, placed.spec, lower=lower)
    return unravel(x), None


def pinv_smooth_distributed(
    A: Any = None,
    b: Any = None,
    *,
    rtol: float = 1e-14,
    rtol_smooth: float = 1e-14,
    local_tile_size: int | None = None,
    x0: Any = None,
    process_grid: tuple[int, int] | None = None,
) -> Any:
    """``A^+ b`` with small eigenvalues damped, by `lockstep.linalg.syevd`, for NetKet's SR.

    With the largest eigenvalue ``s``, an eigenvalue ``e`` of at most ``rtol s`` is left out. The
    inverse of the others is multiplied by ``1 / (1 + (rtol_smooth s / e)^6)`` (Medvidovic and Sels,
    "Variational quantum dynamics of two-dimensional rotor models", 2022). What is not listed here
    is as in `cholesky_distributed`.

    Args:
      A: (n, n), Hermitian; or what has ``to_dense()``.
      rtol: the cutoff of eigenvalues, beside the largest one.
      rtol_smooth: where the damping begins, beside the largest one.

    Returns:
      The pair (x, None); x as ``b``.

    Raises:
      ValueError, TypeError: as `cholesky_distributed`.
    """
    options = {"rtol": rtol, "rtol_smooth": rtol_smooth, "local_tile_size": local_tile_size}
    if A is None:
        return _Configured(pinv_smooth_distributed, tuple(options.items()))
    A, b, unravel, placed = _arguments("pinv_smooth_distributed", A, b)
    _validation.tile_size("pinv_smooth_distributed", local_tile_size)
    values, vectors = _eigh.eigh(A, lower=True, mesh=placed.mesh, in_specs=placed.spec)
    return unravel(_solve_damped(values, vectors, b, placed, rtol, rtol_smooth)), None


@dataclasses.dataclass(frozen=True)
class _Configured:
    """A solver with some arguments given. Equal ones are equal, so that NetKet compiles once."""

    solver: Callable[..., Any]
    options: tuple[tuple[str, Any], ...]

    def __call__(self, A: Any, b: Any, **more: Any) -> Any:
        return self.solver(A, b, **(dict(self.options) | more))


def _arguments(
    function: str, A: Any, b: Any
) -> tuple[jax.Array, jax.Array, Callable[[jax.Array], Any], Placed]:
    """The matrix, the right-hand side as one vector and the way back, and where the matrix is."""
    if hasattr(A, "to_dense"):
        A = A.to_dense()
    vector, unravel = ravel_pytree(b)
    mesh = None
    if isinstance(A, Tracer) and jax.sharding.get_abstract_mesh().empty:
        if jax.process_count() == 1:  # NetKet without sharding
            mesh = Mesh(np.array(jax.devices()[:1]), ("device",))
    A = _validation.square(function, A, mesh, "A")
    vector = _validation.right_hand_side(function, vector, A.shape[0], A.dtype)
    return A, vector, unravel, _validation.place(function, A, mesh, None, "A")


@functools.partial(jax.jit, static_argnames="placed")
def _solve_damped(
    values: jax.Array,
    vectors: jax.Array,
    b: jax.Array,
    placed: Placed,
    rtol: Any,
    rtol_smooth: Any,
) -> jax.Array:
    def run(values: jax.Array, vectors: jax.Array, b: jax.Array) -> jax.Array:
        relative = jnp.abs(values / values[-1])
        inverses = jnp.where(relative > rtol, 1 / values, 0)
        damped = inverses / (1 + (rtol_smooth / relative) ** 6)
        return vectors @ (damped * (vectors.conj().T @ b))

    return _posdef.partitioned(run, Placed(placed.mesh, ((),)))(values, vectors, b)
