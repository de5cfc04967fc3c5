"""cholesky, cho_solve, potrs, inv: values over shardings, sizes and dtypes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import full as in_full
from lanes import sample
from linalg.matrices import (
    DTYPES,
    TWO_DTYPES,
    assert_close,
    each_sharding,
    eps,
    full,
    mesh,
    positive,
    put,
    with_and_without_kernels,
    with_spectrum,
)
from lockstep.linalg import _sweeps
from lockstep.linalg._posdef import Plan, factor_slots, to_slots_donating
from lockstep.linalg._validation import place

inv = functools.partial(la.inv, assume_a="pos")


@each_sharding
def test_solve_inverse_and_determinant(shape: tuple[int, ...], spec: P, b_spec: P, n: int) -> None:
    a, b, over = positive(n, np.float64), full((n, 4), np.float64), mesh(shape)
    sharded, rhs = put(a, over, spec), put(b, over, b_spec)
    x, logdet, status = la.potrs(sharded, rhs, 4, return_status=True, return_logdet=True)
    assert_close(x, np.linalg.solve(a, b))
    assert_close(logdet, np.linalg.slogdet(a)[1])
    assert (int(status), status.dtype) == (0, np.int32)
    assert x.sharding.is_equivalent_to(rhs.sharding, 2)
    assert_close(la.potrs(sharded, rhs), np.linalg.solve(a, b))
    inverse = inv(sharded, tile=4)
    assert_close(inverse, np.linalg.inv(a))
    assert inverse.sharding.is_equivalent_to(sharded.sharding, 2)


@pytest.mark.full
@pytest.mark.parametrize("dtype", TWO_DTYPES)
@with_and_without_kernels
@pytest.mark.parametrize("tile", [4, 3])
@pytest.mark.usefixtures("kernels")
def test_inverse_by_many_supersteps(tile: int, dtype: Any) -> None:
    a, over = positive(42, dtype), mesh((2,))
    assert_close(inv(put(a, over, P("x")), tile=tile), np.linalg.inv(a))
    assert_close(la.potri(put(a, over, P("x")), tile), np.linalg.inv(a))


@pytest.mark.full
@sample(("dtype", "lower"), [*zip(DTYPES, [True, False, False, True], strict=True)], 1)
def test_factor_of_one_triangle(dtype: Any, lower: bool) -> None:
    """Only the triangle that is named is read: the other one holds rubbish."""
    n = 45
    a, b = positive(n, dtype), full((n,), dtype)
    rubbish = np.where(np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T, a, 1e6)
    sharded = put(rubbish.astype(dtype), mesh((3,)), P("x"))
    c, is_lower = la.cho_factor(sharded, lower, tile=5, check=False)
    wanted = scipy.linalg.cholesky(a, lower=lower)
    assert_close(c, wanted)
    assert (is_lower, c.dtype) == (lower, dtype)
    assert c.sharding.is_equivalent_to(sharded.sharding, 2)
    assert_close(la.cho_solve((c, lower), b), np.linalg.solve(a, b))
    assert_close(la.potrs(sharded, b, lower=lower), np.linalg.solve(a, b))
    assert_close(inv(sharded, lower=lower), np.linalg.inv(a))
    for trans, matrix in ((0, wanted), (1, wanted.T), (2, wanted.conj().T)):
        assert_close(la.solve_triangular(c, b, trans, lower), np.linalg.solve(matrix, b))


@pytest.mark.parametrize("n", [0, in_full(1)])
def test_the_smallest_matrices(n: int) -> None:
    a = put(np.full((n, n), 4.0), mesh((4,)), P())
    b = put(np.ones((n, 2)), mesh((4,)), P())
    x, logdet, status = la.potrs(a, b, return_status=True, return_logdet=True)
    np.testing.assert_allclose(x, np.full((n, 2), 0.25))
    np.testing.assert_allclose(logdet, n * np.log(4.0))
    assert int(status) == 0
    np.testing.assert_allclose(la.cholesky(a), np.full((n, n), 2.0))
    np.testing.assert_allclose(inv(a), np.full((n, n), 0.25))
    assert la.potrs(a, b[:, :0]).shape == (n, 0)


def test_jaxmg_calls_as_they_are() -> None:
    over, n = mesh((4,)), 32
    a, b = positive(n, np.float32), full((n, 2), np.float32)
    sharded, rhs = put(a, over, P("x", None)), put(b, over, P(None, None))
    specs = (P("x", None), P(None, None))
    out = la.potrs(sharded, rhs, T_A=256, mesh=over, in_specs=specs, return_status=False)
    assert_close(out, np.linalg.solve(a, b))
    out, status = la.potrs(sharded, rhs, 256, over, specs, return_status=True, pad=True)
    assert_close(out, np.linalg.solve(a, b))
    assert int(status) == 0
    assert_close(la.potri(sharded, 256, over, (P("x", None),)), np.linalg.inv(a))
    inverse, status = la.potri(sharded, 256, over, P("x", None), return_status=True)
    assert_close(inverse, np.linalg.inv(a))


@sample(("order", "devices", "pivot"), [(1, 4, -1), (7, 1, -1), (40, 4, -1), (7, 4, np.inf)], 2, 3)
def test_not_positive_definite(order: int, devices: int, pivot: float) -> None:
    a = positive(40, np.float64)
    a[order - 1, order - 1] = pivot
    a[order:, order:] *= -1  # later minors fail too; the first counts
    sharded, b = put(a, mesh((devices,)), P("x")), np.ones(40)
    x, status = la.potrs(sharded, b, 3, return_status=True)
    assert int(status) == order
    assert np.isnan(np.asarray(x)).all()
    assert np.isnan(np.asarray(la.potrs(sharded, b))).all()
    _, status = la.cholesky(sharded, return_status=True, tile=3)
    assert int(status) == order
    for call in (
        lambda: la.potrs(sharded, b, 3, check=True),
        lambda: inv(sharded, tile=3, check=True),
    ):
        with pytest.raises(np.linalg.LinAlgError, match=f"leading minor of order {order} is not"):
            call()


@pytest.mark.full
def test_more_right_hand_sides_than_fit_at_once() -> None:
    """Columns are solved in parts, so that no device holds all rows of all of them."""
    n, over = 32, mesh((4,))
    a, b = positive(n, np.float64), full((n, 15), np.float64)
    assert_close(la.potrs(put(a, over, P("x")), put(b, over, P())), np.linalg.solve(a, b))


@pytest.mark.full
@with_and_without_kernels
@pytest.mark.parametrize(("columns", "dealt"), [(15, False), (16, True), (21, True), (45, True)])
@pytest.mark.usefixtures("kernels")
def test_columns_are_dealt_where_there_are_many(
    columns: int, dealt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """21 are padded to 24; 45 are solved in two parts of 23."""
    called = set()

    def watch(name: str) -> None:
        function = getattr(_sweeps, name)

        def watched(*arguments: Any) -> Any:
            called.add(name)
            return function(*arguments)

        monkeypatch.setattr(_sweeps, name, watched)

    both = {"_solve_dealt", "_solve_sum_dealt"}
    for name in both:
        watch(name)
    jax.clear_caches()
    a, b = positive(256, np.complex128), full((256, columns), np.complex128)
    over = mesh((2, 2))
    sharded, rhs = put(a, over, P(("y", "x"))), put(b, over, P())
    assert_close(la.potrs(sharded, rhs, 32), np.linalg.solve(a, b))
    assert called == (both if dealt else set())


@pytest.mark.full
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_derivatives_of_columns_that_are_dealt(dtype: Any) -> None:
    columns = 4 * _sweeps.DEALT + 5
    a, b = positive(256, dtype), full((256, columns), dtype)
    over = mesh((4,))

    def solve(a: Any, b: Any) -> Any:
        return la.potrs(a, b, 16, mesh=over, in_specs=P("x"))

    def weigh(solve: Any, a: Any, b: Any) -> Any:
        return jnp.sum(abs(solve((a + a.conj().T) / 2, b)) ** 4)

    found = jax.grad(weigh, (1, 2))(solve, put(a, over, P("x")), put(b, over, P()))
    wanted = jax.grad(weigh, (1, 2))(jnp.linalg.solve, a, b)
    for got, want in zip(found, wanted, strict=True):
        assert_close(got, want)


def test_the_factor_is_made_in_place_and_its_buffers_are_small() -> None:
    """XLA's figures for one device: the slots, donated, and at most half of them beside."""
    n, devices = 512, 2
    a = put(jnp.ones((n, n)), mesh((devices,)), P("x"))
    plan = Plan.of(n, place("test", a, None, None), 32, False)
    into_slots = to_slots_donating.lower(a, plan, None).compile().memory_analysis()
    slots = jax.eval_shape(lambda a: to_slots_donating(a, plan, None), a)
    there = NamedSharding(plan.placed.sharding.mesh, plan.slots)
    slots = jax.ShapeDtypeStruct(slots.shape, slots.dtype, sharding=there)
    factor = factor_slots.lower(slots, plan, False).compile().memory_analysis()
    share = n * n * 8 // devices
    for memory in (into_slots, factor):
        assert memory is not None
        assert memory.alias_size_in_bytes >= share
        assert memory.temp_size_in_bytes <= 0.5 * share, memory


@with_and_without_kernels
@pytest.mark.usefixtures("kernels")
def test_no_program_has_an_input_without_entries() -> None:
    """jaxlib 0.11.2 crashes where XLA drops one (docs/reference/versions.md)."""
    over = mesh((2,))
    a, b = put(positive(8, np.float64), over, P("x")), put(full((8, 3), np.float64), over, P())
    inverse = jax.jit(lambda a: inv(a, tile=4, mesh=over, in_specs=(P("x"),)))
    solve = jax.jit(lambda a, b: la.potrs(a, b, 4, mesh=over, in_specs=(P("x"), P())))
    for text in (inverse.lower(a).as_text(), solve.lower(a, b).as_text()):
        assert "tensor<0xi32>" not in text


@pytest.mark.parametrize("columns", [False, in_full(True)])
def test_batches_of_right_hand_sides(columns: bool) -> None:
    a, over = positive(20, np.float64), mesh((4,))
    sharded, b = put(a, over, P("x")), full((3, 20, 2), np.float64)
    b, axis = (b[0], 1) if columns else (b, 0)
    found = jax.vmap(lambda b: la.potrs(sharded, b), in_axes=axis, out_axes=axis)(b)
    assert_close(found, np.linalg.solve(a, b))


@pytest.mark.full
def test_ill_conditioned_matrices_as_lapack() -> None:
    """The backward error of a solution, for spectra over twelve decades and graded rows."""
    n, over = 96, mesh((4,))
    graded = positive(n, np.float64) * np.outer(*[np.logspace(0, -6, n)] * 2)
    for a in (with_spectrum(np.logspace(0, -12, n), np.float64), graded, np.eye(n)):
        b = full((n,), np.float64)
        x = np.asarray(la.potrs(put(a, over, P("x")), b, 8))
        scale = np.abs(a).sum(1).max() * np.abs(x).max() + np.abs(b).max()
        assert np.abs(a @ x - b).max() <= 10 * eps(np.float64) * n * scale


def test_a_matrix_of_the_host_is_taken() -> None:
    a, b, over = positive(12, np.float64), np.ones(12), mesh((4,))
    x = la.potrs(a, b, mesh=over, in_specs=(P("x"), P()))
    assert isinstance(x.sharding, NamedSharding)
    assert_close(x, np.linalg.solve(a, b))
    assert_close(la.potrs(a, b), np.linalg.solve(a, b))
