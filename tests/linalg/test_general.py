"""solve, lu_factor, lu_solve, lu, inv, det, slogdet, cond: over shardings, sizes and dtypes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import full as in_full
from lanes import sample
from linalg.matrices import (
    DTYPES,
    assert_close,
    each_sharding,
    eps,
    full,
    general,
    mesh,
    positive,
    put,
)
from lockstep.linalg import _cost_model, _cpu_kernels, _general, _lu, _tiles, _tournament
from lockstep.linalg._validation import place


@pytest.fixture(params=[in_full(False, id="partial"), pytest.param(True, id="tournament")])
def pivoting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to find pivots, whatever the cost model would take."""
    monkeypatch.setattr(
        _cost_model, "lu_by_tournament", lambda n, devices, tile: request.param and devices > 1
    )
    jax.clear_caches()


@each_sharding
@pytest.mark.usefixtures("pivoting")
def test_solve_inverse_and_determinant(shape: tuple[int, ...], spec: P, b_spec: P, n: int) -> None:
    a, b, over = general(n, np.float64), full((n, 4), np.float64), mesh(shape)
    sharded, rhs = put(a, over, spec), put(b, over, b_spec)
    x, status = la.solve(sharded, rhs, tile=3, return_status=True)
    assert_close(x, np.linalg.solve(a, b), 1000)
    assert (int(status), status.dtype) == (0, np.int32)
    assert x.sharding.is_equivalent_to(rhs.sharding, 2)
    assert_close(la.solve(sharded, rhs, transposed=True, tile=3), np.linalg.solve(a.T, b), 1000)
    inverse = la.inv(sharded, tile=3)
    assert_close(inverse, np.linalg.inv(a), 1000)
    assert inverse.sharding.is_equivalent_to(sharded.sharding, 2)
    sign, log = la.slogdet(sharded, tile=3)
    wanted = np.linalg.slogdet(a)
    assert (float(sign), sign.dtype) == (wanted[0], np.float64)
    assert_close(log, wanted[1], 1000)
    np.testing.assert_allclose(la.det(sharded), np.linalg.det(a), rtol=1e-11)


@pytest.mark.full
@pytest.mark.parametrize(
    ("dtype", "devices", "n"), [*zip(DTYPES, (2, 4, 3, 4), (33, 40, 21, 28), strict=True)]
)
def test_factors_are_those_of_lapack(dtype: Any, devices: int, n: int) -> None:
    """On few devices the pivots are the same, whatever the sharding."""
    a, b = general(n, dtype), full((n, 2), dtype)
    over = mesh((devices,))
    sharded = put(a, over, P("x") if n % devices == 0 else P())
    (packed, pivots), status = la.lu_factor(sharded, tile=3, return_status=True)
    wanted, wanted_pivots = scipy.linalg.lu_factor(a)
    assert_close(packed, wanted)
    np.testing.assert_array_equal(pivots, wanted_pivots)
    assert (packed.dtype, pivots.dtype, int(status)) == (dtype, np.int32, 0)
    assert packed.sharding.is_equivalent_to(sharded.sharding, 2)
    for trans, of in ((0, a), (1, a.T), (2, a.conj().T)):
        x = np.linalg.solve(of, b)
        assert_close(la.lu_solve((packed, pivots), b, trans), x, 1000)
        assert_close(la.lu_solve(sharded, b, trans=trans), x, 1000)
    for got, want in zip(la.lu(sharded), scipy.linalg.lu(a), strict=True):
        assert_close(got, want)
        assert got.sharding.is_equivalent_to(sharded.sharding, 2)
    rows, lower, upper = la.lu(sharded, p_indices=True)
    np.testing.assert_array_equal(rows, scipy.linalg.lu(a, p_indices=True)[0])
    assert_close(np.asarray(lower)[rows] @ np.asarray(upper), a)
    both, upper = la.lu(sharded, permute_l=True)
    assert_close(np.asarray(both) @ np.asarray(upper), a)


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 8),
    st.integers(0, 5),
    st.sampled_from(["f4", "f8", "c8", "c16"]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_any_size_mesh_and_type(
    n: int, devices: int, columns: int, dtype: str, kernels: bool, seed: int
) -> None:
    over, tile = mesh((devices,)), 1 + seed % 7
    a, b = general(n, dtype, seed), full((n, columns), dtype, seed)
    spec = P("x") if n % devices == 0 else P()
    with pytest.MonkeyPatch.context() as patch:
        if not kernels:
            patch.setattr(_cpu_kernels, "available", lambda platform: False)
        x = la.solve(put(a, over, spec), put(b, over, P()), tile=tile)
        assert_close(x, np.linalg.solve(a, b), 10000)
        packed, _ = la.lu_factor(put(a, over, spec), tile=tile)
        assert_close(packed, scipy.linalg.lu_factor(a)[0], 1000)


@pytest.mark.parametrize("n", [0, in_full(1)])
def test_the_smallest_matrices(n: int) -> None:
    a, b = put(np.full((n, n), 4.0), mesh((4,)), P()), put(np.ones((n, 2)), mesh((4,)), P())
    x, status = la.solve(a, b, return_status=True)
    np.testing.assert_allclose(x, np.full((n, 2), 0.25))
    assert int(status) == 0
    packed, pivots = la.lu_factor(a)
    np.testing.assert_allclose(packed, np.full((n, n), 4.0))
    assert pivots.tolist() == [0] * n
    np.testing.assert_allclose(la.lu_solve((packed, pivots), b), x)
    np.testing.assert_allclose(la.inv(a), np.full((n, n), 0.25))
    assert float(la.det(a)) == 4.0**n
    assert (float(la.cond(a)), float(la.cond(a, 1))) == (n, n)
    assert la.solve(a, b[:, :0]).shape == (n, 0)


@pytest.mark.full
@pytest.mark.usefixtures("pivoting")
def test_singular_matrices() -> None:
    a, b, over = full((24, 24), np.float64), np.ones(24), mesh((4,))
    a[9] = 0
    sharded = put(a, over, P("x"))
    x, status = la.solve(sharded, b, return_status=True)
    assert int(status) == 10
    assert np.isnan(np.asarray(x)).all()
    assert np.isnan(np.asarray(la.inv(sharded))).all()
    assert (float(la.det(sharded)), float(la.cond(sharded, 1))) == (0, np.inf)
    sign, log = la.slogdet(sharded)
    assert (float(sign), float(log)) == (0, -np.inf)
    for call in (lambda: la.solve(sharded, b, check=True), lambda: la.inv(sharded, check=True)):
        with pytest.raises(np.linalg.LinAlgError, match=r"singular: the pivot of row 10 \(counted"):
            call()
    a[9] = np.nan
    assert int(la.solve(put(a, over, P("x")), b, return_status=True)[1]) > 0


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Diagonal number 10 is exactly zero")  # SciPy's, of its own
def test_factors_of_a_singular_matrix() -> None:
    a, over = full((24, 24), np.float64), mesh((4,))
    a[9] = 0
    (packed, _), status = la.lu_factor(put(a.T, over, P("x")), return_status=True)
    assert int(status) == 10  # LAPACK's info
    assert_close(packed, scipy.linalg.lu_factor(a.T)[0])
    with pytest.raises(np.linalg.LinAlgError, match="the pivot of column 10"):
        la.lu_factor(put(a.T, over, P("x")), check=True)


KINDS = ["pos", "her", "sym", "upper triangular", "lower triangular"]


@sample("dtype", [np.float64, np.complex128], 1)
@sample("kind", KINDS, 1)
def test_what_a_matrix_is_said_to_be(kind: str, dtype: Any) -> None:
    n, over = 20, mesh((4,))
    a, b = full((n, n), dtype), full((n, 2), dtype)
    kinds = {
        "pos": positive(n, dtype),
        "her": a + a.conj().T,
        "sym": a + a.T,
        "upper triangular": np.triu(a) + 5 * np.eye(n),
        "lower triangular": np.tril(a) + 5 * np.eye(n),
    }
    of = kinds[kind]
    sharded = put(of, over, P("x"))
    x, status = la.solve(sharded, b, assume_a=kind, return_status=True)
    assert_close(x, np.linalg.solve(of, b), 1000)
    assert int(status) == 0
    back = la.solve(sharded, b, assume_a=kind, transposed=True)
    assert_close(back, np.linalg.solve(of.T, b), 1000)
    if kind in ("pos", "her", "sym"):
        half = put(np.tril(of), over, P("x"))
        assert_close(la.solve(half, b, assume_a=kind, lower=True), x, 1000)


def test_what_a_matrix_is_not() -> None:
    over = mesh((4,))
    zero = put(np.diag([1.0, 0, 2, 0]), over, P("x"))
    _, status = la.solve(zero, np.ones(4), assume_a="lower triangular", return_status=True)
    assert int(status) == 2
    with pytest.raises(ValueError, match="solve: a is not"):
        la.solve(put(full((20, 20), np.float64), over, P("x")), np.ones(20), assume_a="her")


@pytest.mark.full
@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_condition_numbers(dtype: Any) -> None:
    """Never more than the condition number (but for rounding), and here not below a third."""
    n, over = 32, mesh((4,))
    for seed in range(3):
        a = full((n, n), dtype, seed) * np.logspace(0, 2, n).astype(dtype)
        for p in (1, np.inf):
            exact, found = np.linalg.cond(a, p), float(la.cond(put(a, over, P("x")), p))
            assert exact / 3 <= found <= 1.01 * exact


SOLVERS: dict[str, tuple[Any, Any, Any]] = {
    "general": (la.solve, la.inv, general),
    "positive": (la.potrs, functools.partial(la.inv, assume_a="pos"), positive),
}
"""A solver, an inverse and matrices."""
each_solver = pytest.mark.parametrize("name", SOLVERS)


@each_solver
def test_inside_jit_and_under_explicit_axes(name: str) -> None:
    solve, _, matrix = SOLVERS[name]
    a, b = matrix(16, np.float64), full((16, 2), np.float64)
    wanted = np.linalg.solve(a, b)
    over = mesh((2, 2))
    with_mesh = jax.jit(lambda a, b: solve(a, b, mesh=over, in_specs=P("x", "y")))
    assert_close(with_mesh(put(a, over, P("x", "y")), put(b, over, P())), wanted)
    with pytest.raises(ValueError, match="a is a tracer whose type does not contain its sharding"):
        jax.jit(solve)(put(a, over, P("x", "y")), b)
    explicit = mesh((4,), AxisType.Explicit)
    with jax.set_mesh(explicit):
        x = jax.jit(solve)(put(a, explicit, P("x")), put(b, explicit, P("x")))
        assert jax.typeof(x).sharding.spec == P("x", None)
        assert_close(x, wanted)


@pytest.mark.full
def test_factors_under_explicit_axes() -> None:
    a, b = general(16, np.float64), full((16, 2), np.float64)
    explicit = mesh((4,), AxisType.Explicit)
    with jax.set_mesh(explicit):
        sharded, rhs = put(a, explicit, P("x")), put(b, explicit, P("x"))
        pair = jax.jit(la.lu_factor)(sharded)
        assert_close(jax.jit(la.lu_solve)(pair, rhs), np.linalg.solve(a, b))
        assert_close(jax.jit(la.det)(sharded), np.linalg.det(a), 1000)


@pytest.mark.full
@each_solver
def test_gradients_under_explicit_axes(name: str) -> None:
    solve, _, matrix = SOLVERS[name]
    a, b = matrix(16, np.float64), full((16, 2), np.float64)
    wanted, explicit = np.linalg.solve(a, b), mesh((4,), AxisType.Explicit)
    with jax.set_mesh(explicit):
        loss = jax.grad(lambda a, b: jnp.sum(solve(a, b) ** 2))
        grad = jax.jit(loss)(put(a, explicit, P("x")), put(b, explicit, P()))
        assert_close(grad, -2 * np.linalg.solve(a.T, wanted) @ wanted.T, 1000)


@each_solver
def test_a_donated_matrix_is_gone_and_a_kept_one_is_not(name: str) -> None:
    solve, inv, matrix = SOLVERS[name]
    a, b, over = matrix(32, np.float64), np.ones(32), mesh((4,))
    kept, given_away = put(a, over, P("x")), put(a, over, P("x"))
    assert_close(solve(kept, b), np.linalg.solve(a, b), 1000)
    assert_close(solve(given_away, b, donate=True), np.linalg.solve(a, b), 1000)
    assert given_away.is_deleted()
    given_away = put(a, over, P("x"))
    assert_close(inv(given_away, donate=True), np.linalg.inv(a), 1000)
    assert given_away.is_deleted()
    assert_close(inv(kept), np.linalg.inv(a), 1000)
    assert not kept.is_deleted()


@sample("trans", [0, 1], 1)
def test_batches_and_many_right_hand_sides(trans: int) -> None:
    """Columns are solved in parts where not all their rows fit in half of a share."""
    a, over = general(32, np.float64), mesh((4,))
    of = a.T if trans else a
    sharded, b = put(a, over, P("x")), full((3, 32, 5), np.float64)
    got = jax.vmap(lambda b: la.solve(sharded, b, transposed=bool(trans)))(b)
    assert_close(got, np.linalg.solve(of, b), 1000)


@pytest.mark.full
def test_the_factors_are_made_in_place_and_their_buffers_are_small() -> None:
    """XLA's figures for one device: the slots, donated, and at most half of them beside."""
    n, devices = 1024, 2
    a = put(jnp.ones((n, n)), mesh((devices,)), P("x"))
    plan = _general.plan_of(n, place("test", a, None, None), 32)
    slots = jax.eval_shape(lambda a: _general._posdef.to_slots(a, plan, None), a)
    there = NamedSharding(plan.placed.sharding.mesh, plan.slots)
    slots = jax.ShapeDtypeStruct(slots.shape, slots.dtype, sharding=there)
    memory = _general.factor_slots.lower(slots, plan).compile().memory_analysis()
    share = n * n * 8 // devices
    assert memory is not None
    assert memory.alias_size_in_bytes >= share
    assert memory.temp_size_in_bytes <= 0.5 * share, memory


def test_devices_that_find_different_pivots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors of different kinds may; that must not pass as a solution."""
    real = _tiles.getrf

    def getrf(panel: jax.Array) -> Any:
        packed, swaps, permutation = real(panel)
        return packed, jnp.where(jax.lax.axis_index("x") == 1, 0, swaps), permutation

    monkeypatch.setattr(_cpu_kernels, "available", lambda platform: False)
    monkeypatch.setattr(_tiles, "getrf", getrf)
    jax.clear_caches()
    a = put(general(8, np.float64), mesh((2,)), P("x"))
    x, status = la.solve(a, np.ones(8), return_status=True)
    assert int(status) == -1
    assert np.isnan(np.asarray(x)).all()
    assert np.isnan(float(la.det(a)))
    with pytest.raises(np.linalg.LinAlgError, match="devices found different pivots"):
        la.solve(a, np.ones(8), check=True)
    jax.clear_caches()


def hard_matrices(n: int) -> list[np.ndarray]:
    """Ill-conditioned, graded, tiny and huge matrices, and those on which LAPACK's partial
    pivoting, of rows, fails: Wilkinson's, Foster's (SIAM J. Matrix Anal. Appl. 15, 1994) and
    Higham's gfpp."""
    a = full((n, n), np.float64)
    left, right = (np.linalg.qr(full((n, n), np.float64, seed))[0] for seed in (1, 2))
    wilkinson = np.eye(n) - np.tri(n, k=-1)
    wilkinson[:, -1] = 1
    foster = np.eye(n) - 0.9 * np.tri(n, k=-1)
    foster[:, 0] = np.r_[1, np.full(n - 1, -0.45)]
    foster[:, -1] = -1
    foster[-1, -1] = 1 - 1 / 1.1 - 0.45
    gfpp = wilkinson @ (np.triu(np.abs(full((n, n), np.float64, 4)), 1) + np.eye(n))
    return [
        (left * np.logspace(0, -15, n)) @ right,
        a * np.logspace(0, -16, n),
        a * np.logspace(0, -16, n)[:, None],
        scipy.linalg.hilbert(n),
        a * 1e-300,
        a * 1e300,
        wilkinson,
        foster,
        gfpp,
    ]


def assert_solved_as_by_lapack(a: np.ndarray, over: Mesh) -> None:
    """The backward error of a solution."""
    n = len(a)
    b = full((n,), np.float64, 3)
    x = np.asarray(la.solve(put(a, over, P("x")), b, tile=8))
    size = np.abs(a).max()
    unit, x = a / size, x * size
    scale = np.abs(unit).sum(1).max() * np.abs(x).max() + np.abs(b).max()
    assert np.abs(unit @ x - b).max() <= 10 * eps(np.float64) * n * scale


@pytest.mark.full
@pytest.mark.usefixtures("pivoting")
def test_hard_matrices_as_lapack() -> None:
    for a in hard_matrices(96):
        assert_solved_as_by_lapack(a, mesh((4,)))


@sample("devices", [1, 2, 6, 7, 8], 2)
def test_exchanges_put_columns_first(devices: int) -> None:
    rng = np.random.default_rng(devices)
    columns = rng.permutation(30)[: 2 * devices]
    swaps, permutation = _lu.exchanges(jnp.asarray(columns, jnp.int32), 30)
    np.testing.assert_array_equal(permutation[: len(columns)], columns)
    wanted = np.arange(30)
    for k, other in enumerate(np.asarray(swaps)):
        wanted[[k, other]] = wanted[[other, k]]
    np.testing.assert_array_equal(permutation, wanted)
    assert int(np.prod(_tournament.prime_factors(devices))) == devices
