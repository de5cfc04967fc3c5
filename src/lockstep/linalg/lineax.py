"""Solvers for `lineax.linear_solve` on sharded matrices: ``pip install 'lockstep-jax[lineax]'``.

They have the names, the choice among them, and the results of lineax's own solvers, but factor the
matrix where it lies. lineax takes care of derivatives, with products that XLA partitions and
further solutions with the same factors. Each has the arguments ``mesh``, ``in_specs`` and ``tile``
of `AutoLinearSolver`, by keyword.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

try:
    import equinox as eqx
    import lineax as lx
    from lineax.internal import (
        PackedStructures,
        pack_structures,
        ravel_vector,
        transpose_packed_structures,
        unravel_solution,
    )
except ImportError as error:
    raise ImportError(
        "lockstep.linalg.lineax needs lineax 0.1 or later: pip install 'lockstep-jax[lineax]'"
    ) from error

from lockstep.linalg import (
    _general,
    _general_solve,
    _least_squares,
    _posdef,
    _rank,
    _triangular,
    _validation,
)
from lockstep.linalg._least_squares import Plan as LeastSquaresPlan
from lockstep.linalg._lu import Factors
from lockstep.linalg._posdef import Plan
from lockstep.linalg._singular_plan import Plan as SingularPlan
from lockstep.linalg._validation import AnyMesh, Placed, Specs

Arrays = TypeVar("Arrays")
ThePlan = TypeVar("ThePlan")


class _State(eqx.Module, Generic[Arrays, ThePlan]):
    """A factored operator; of its transpose, its conjugate or its adjoint, as the flags say."""

    arrays: Arrays
    plan: ThePlan = eqx.field(static=True)
    placed: Placed = eqx.field(static=True)
    structures: PackedStructures
    transposed: bool = eqx.field(static=True, default=False)
    conjugated: bool = eqx.field(static=True, default=False)


class _Solver(lx.AbstractLinearSolver[_State], Generic[Arrays, ThePlan]):
    """What the solvers share: where the arrays are, and the forms of one factored matrix."""

    mesh: AnyMesh | None = eqx.field(static=True, default=None, kw_only=True)
    in_specs: Specs = eqx.field(static=True, default=None, kw_only=True)
    tile: int | None = eqx.field(static=True, default=None, kw_only=True)

    @abc.abstractmethod
    def _factor(
        self, operator: lx.AbstractLinearOperator, a: jax.Array, placed: Placed
    ) -> tuple[Arrays, ThePlan]:
        """The factors of ``a``, the matrix of ``operator``."""

    @abc.abstractmethod
    def _solve(
        self, arrays: Arrays, plan: ThePlan, b: jax.Array, b_placed: Placed, adjoint: bool
    ) -> tuple[jax.Array, dict[str, Any]]:
        """The solution with the matrix, or its adjoint, for one column ``b``, and statistics."""

    @property
    def _name(self) -> str:
        return f"lockstep.linalg.lineax.{type(self).__name__}"

    def init(self, operator: lx.AbstractLinearOperator, options: dict[str, Any]) -> _State:
        a = _validation.matrix(self._name, operator.as_matrix(), self.mesh, "the operator")
        spec, _ = _validation.specs(self._name, self.in_specs, ("the operator", "the vector"))
        placed = _validation.place(self._name, a, self.mesh, spec, "the operator")
        if not a.size:
            raise ValueError(f"{self._name}: the operator has shape {a.shape}: no elements.")
        arrays, plan = self._factor(operator, _validation.put(a, placed), placed)
        return _State(arrays, plan, placed, pack_structures(operator))

    def compute(
        self, state: _State, vector: Any, options: dict[str, Any]
    ) -> tuple[Any, lx.RESULTS, dict[str, Any]]:
        b = ravel_vector(vector, state.structures)
        b_placed = self._place_vector(b, state)
        # a^T x = b is the conjugate of a^H x = b.
        turned = state.transposed != state.conjugated
        b = (b.conj() if turned else b)[:, None]
        x, stats = self._solve(state.arrays, state.plan, b, b_placed, state.transposed)
        x = x[:, 0].conj() if turned else x[:, 0]
        return unravel_solution(x, state.structures), lx.RESULTS.successful, stats

    def transpose(self, state: _State, options: dict[str, Any]) -> tuple[_State, dict[str, Any]]:
        return dataclasses.replace(
            state,
            structures=transpose_packed_structures(state.structures),
            transposed=not state.transposed,
        ), {}

    def conj(self, state: _State, options: dict[str, Any]) -> tuple[_State, dict[str, Any]]:
        return dataclasses.replace(state, conjugated=not state.conjugated), {}

    def assume_full_rank(self) -> bool:
        return True

    def _place_vector(self, b: jax.Array, state: _State) -> Placed:
        """The sharding of a vector as one column."""
        _, spec = _validation.specs(self._name, self.in_specs, ("the operator", "the vector"))
        if spec is None or state.transposed:  # what is given is for vectors of the operator itself
            spec = P()
        placed = _validation.place(self._name, b, state.placed.mesh, spec, "the vector")
        return dataclasses.replace(placed, dimensions=(placed.dimensions[0], ()))

    def _check_square(self, a: jax.Array) -> None:
        if a.shape[0] != a.shape[1]:
            raise ValueError(
                f"{self._name}: the operator is {a.shape[0]} x {a.shape[1]}; expected a square "
                "one. Others are for QR (of full rank) and SVD."
            )


class Cholesky(_Solver[tuple[jax.Array, jax.Array], tuple[Plan, bool]]):
    """The counterpart of `lineax.Cholesky`, by the factorization of `lockstep.linalg.potrs`.

    For operators with the tag of positive or negative semidefinite ones, which have to be definite.
    """

    def _factor(self, operator: Any, a: jax.Array, placed: Placed) -> Any:
        negative = lx.is_negative_semidefinite(operator)
        if not (negative or lx.is_positive_semidefinite(operator)):
            raise ValueError(
                f"{self._name}: the operator has no tag that says it is positive or negative "
                "definite. Give lineax.MatrixLinearOperator(a, lineax.positive_semidefinite_tag), "
                "or take LU."
            )
        self._check_square(a)
        plan = Plan.for_cholesky(a.shape[0], placed, self.tile, True)
        return _posdef.factor(-a if negative else a, plan, None, True), (plan, negative)

    def _solve(
        self, arrays: Any, plan: Any, b: jax.Array, b_placed: Placed, adjoint: bool
    ) -> tuple[jax.Array, dict[str, Any]]:
        (low, status), (plan, negative) = arrays, plan
        x = _posdef.batched_sweep(low, b, plan, b_placed, ("forward", "backward"))
        return _general_solve.nan_where(status, -x if negative else x), {}


class LU(_Solver[tuple[Factors, jax.Array], Plan]):
    """The counterpart of `lineax.LU`, by the factorization of `lockstep.linalg.solve`."""

    def _factor(self, operator: Any, a: jax.Array, placed: Placed) -> Any:
        self._check_square(a)
        plan = _general.plan_of(a.shape[0], placed, self.tile)
        factors = _general.factor(a, plan)
        return (factors, _general.status(factors, plan)), plan

    def _solve(
        self, arrays: Any, plan: Plan, b: jax.Array, b_placed: Placed, adjoint: bool
    ) -> tuple[jax.Array, dict[str, Any]]:
        factors, status = arrays

        def run(factors: Factors, b: jax.Array, b_placed: Placed) -> jax.Array:
            return _general.apply(factors, b, b_placed, plan, adjoint)

        return _general_solve.nan_where(status, _posdef.batched(run, factors, b, b_placed)), {}


class Triangular(_Solver[jax.Array, tuple[Plan, bool]]):
    """The counterpart of `lineax.Triangular`, by the sweeps of `lockstep.linalg.solve_triangular`.

    For operators with the tag of upper or lower triangular ones.
    """

    def _factor(self, operator: Any, a: jax.Array, placed: Placed) -> Any:
        lower = lx.is_lower_triangular(operator)
        if not (lower or lx.is_upper_triangular(operator)):
            raise ValueError(f"{self._name}: the operator has no tag of a triangle. Take LU.")
        self._check_square(a)
        if lx.has_unit_diagonal(operator):
            eye = jnp.eye(a.shape[0], dtype=bool)
            a = _posdef.partitioned(lambda a: jnp.where(eye, 1, a), placed)(a)
        plan = Plan.of(a.shape[0], placed, self.tile, True)
        return _triangular.slots_of(a, plan, lower), (plan, lower)

    def _solve(
        self, arrays: jax.Array, plan: Any, b: jax.Array, b_placed: Placed, adjoint: bool
    ) -> tuple[jax.Array, dict[str, Any]]:
        plan, lower = plan
        sweep = "forward" if lower != adjoint else "backward"
        return _posdef.batched_sweep(arrays, b, plan, b_placed, (sweep,)), {}


class QR(_Solver[_least_squares.Factor, LeastSquaresPlan]):
    """The counterpart of `lineax.QR`, by the factorization of `lockstep.linalg.least_squares`.

    For operators of any shape and of full rank: the least squares, or the solution of least norm.
    """

    def _factor(self, operator: Any, a: jax.Array, placed: Placed) -> Any:
        m, n = a.shape
        plan = LeastSquaresPlan.of((m, n), placed, Placed(placed.mesh, ((), ())), self.tile)
        return _least_squares.factor(a, plan), plan

    def _solve(
        self,
        arrays: _least_squares.Factor,
        plan: LeastSquaresPlan,
        b: jax.Array,
        b_placed: Placed,
        adjoint: bool,
    ) -> tuple[jax.Array, dict[str, Any]]:
        def run(factor: _least_squares.Factor, b: jax.Array, b_placed: Placed) -> jax.Array:
            return _least_squares.solve_factored(factor, b, b_placed, plan, adjoint)

        return _posdef.batched(run, arrays, b, b_placed), {}


class SVD(_Solver[_rank.Decomposed, SingularPlan]):
    """The counterpart of `lineax.SVD`, by the decomposition of `lockstep.linalg.lstsq`.

    For operators of any shape and rank. ``rcond``: the cutoff of singular values, beside the
    largest. Default: rounding times the longer dimension.
    """

    rcond: float | None = eqx.field(static=True, default=None)

    def _factor(self, operator: Any, a: jax.Array, placed: Placed) -> Any:
        plan = SingularPlan.of(a.shape, placed, True, True, False, self.tile)
        return _rank.decompose(a, plan), plan

    def _solve(
        self,
        arrays: _rank.Decomposed,
        plan: SingularPlan,
        b: jax.Array,
        b_placed: Placed,
        adjoint: bool,
    ) -> tuple[jax.Array, dict[str, Any]]:
        cutoff = _rank.cutoff(self.rcond, b.dtype, plan.shape)
        x = _rank.pseudo_solve(arrays, b, plan, b_placed, cutoff, adjoint)
        return x, {"rank": _rank.count(arrays.s, cutoff)}

    def assume_full_rank(self) -> bool:
        return False


_OF_LINEAX: dict[type, type[_Solver]] = {
    lx.Cholesky: Cholesky,
    lx.LU: LU,
    lx.Triangular: Triangular,
    lx.QR: QR,
    lx.SVD: SVD,
}


class AutoLinearSolver(lx.AbstractLinearSolver):
    """The solver of this module for the one that `lineax.AutoLinearSolver` takes.

    For a diagonal or tridiagonal operator it is lineax's own, which reads a few vectors.

    Attributes:
      well_posed: as lineax has it. True: Cholesky, LU or a triangular solve, of square operators
        alone. None: the same, and QR of others. False: SVD.
      mesh: the mesh of the operator and the vector, where the arrays do not have one: inside
        `lineax.linear_solve` they are tracers. Default: that of `jax.set_mesh`.
      in_specs: their shardings: a PartitionSpec for the operator, or one each for it and the
        vector. Default: rows over all devices, where they divide evenly, and the whole vector on
        each.
      tile: the maximal number of rows of a tile. Default: chosen by a cost model.

    Raises:
      ValueError: from lineax.linear_solve, when a shape, a tag, the mesh or the specs do not fit.
    """

    well_posed: bool | None = eqx.field(static=True)
    mesh: AnyMesh | None = eqx.field(static=True, default=None)
    in_specs: Specs = eqx.field(static=True, default=None)
    tile: int | None = eqx.field(static=True, default=None)

    def select_solver(self, operator: lx.AbstractLinearOperator) -> lx.AbstractLinearSolver:
        """The solver that is taken for ``operator``."""
        chosen = lx.AutoLinearSolver(self.well_posed).select_solver(operator)
        ours = _OF_LINEAX.get(type(chosen))
        if ours is None:
            return chosen
        return ours(mesh=self.mesh, in_specs=self.in_specs, tile=self.tile)

    def init(self, operator: lx.AbstractLinearOperator, options: dict[str, Any]) -> Any:
        solver = self.select_solver(operator)
        return solver, solver.init(operator, options)

    def compute(self, state: Any, vector: Any, options: dict[str, Any]) -> Any:
        solver, state = state
        solution, result, _ = solver.compute(state, vector, options)
        return solution, result, {}

    def transpose(self, state: Any, options: dict[str, Any]) -> Any:
        solver, state = state
        state, options = solver.transpose(state, options)
        return (solver, state), options

    def conj(self, state: Any, options: dict[str, Any]) -> Any:
        solver, state = state
        state, options = solver.conj(state, options)
        return (solver, state), options

    def assume_full_rank(self) -> bool:
        return self.well_posed is not False
