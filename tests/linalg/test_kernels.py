"""The engine's kernels beside what they stand for: random sizes, places and types."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lanes import sample
from linalg.matrices import DTYPES, TWO_DTYPES, each_dtype, eps, full, hermitian, positive
from lockstep.linalg import (
    _cholesky,
    _cpu_kernels,
    _hermitian,
    _householder,
    _inverse,
    _lu,
    _panel,
    _sweeps,
    _tiles,
    _tridiagonalize,
)
from lockstep.linalg._layout import RowMap

# devices, tile, supersteps
SHAPES = [(1, 1, 1), (2, 1, 2), (1, 5, 3), (2, 3, 4), (3, 7, 1), (2, 16, 3), (4, 10, 2), (2, 9, 3)]


@pytest.fixture(autouse=True)
def _kernels_are_there() -> None:
    assert _cpu_kernels.available("cpu")


def layout_of(shape: tuple[int, int, int]) -> tuple[RowMap, Any]:
    devices, tile, steps = shape
    layout = RowMap.cyclic(devices * tile * steps, devices, tile)
    return layout, np.asarray(layout.elimination_order)


def some_of(steps: int) -> list[int]:
    """The first supersteps, one amid, and the last."""
    return sorted({0, 1, steps // 2, steps - 1} & set(range(steps)))


def assert_near(got: Any, wanted: Any, dtype: Any) -> None:
    got, wanted = np.asarray(got), np.asarray(wanted)
    most = np.abs(wanted).max(initial=0)
    assert np.abs(got - wanted).max(initial=0) <= 100 * eps(dtype) * (1 + most)


@each_dtype
@sample("shape", SHAPES, 3)
def test_hemv_reads_one_triangle(shape: tuple[int, int, int], dtype: Any) -> None:
    layout, order = layout_of(shape)
    devices, rows, n = layout.devices, layout.rows, layout.n
    a, v = hermitian(n, dtype), jnp.asarray(full((devices, rows), dtype, 1))
    below = order.reshape(n, 1) >= order.ravel()
    slots = np.where(below, a, np.nan).reshape(devices, rows, devices, rows)
    for top in range(0, rows + 1, layout.tile):
        live = np.tile(np.arange(rows) >= top, devices)
        wanted = (a * live * live[:, None]) @ v.ravel()
        parts = [
            _cpu_kernels.hemv(jnp.asarray(slots[me]), v, layout.tile, jnp.int32(top), jnp.int32(me))
            for me in range(devices)
        ]
        assert_near(sum(parts), wanted.reshape(devices, rows), dtype)


@each_dtype
@sample("shape", SHAPES, 3)
def test_a_column_of_a_panel(shape: tuple[int, int, int], dtype: Any) -> None:
    layout, order = layout_of(shape)
    width, slots = layout.devices * layout.tile, (layout.devices, layout.rows)
    for s in some_of(layout.steps):
        live = order >= s * width
        panel, v, w, y = (jnp.asarray(full((width, *slots), dtype, i) * live) for i in range(4))
        for c in {0, 1, width // 2, width - 1} & set(range(width)):
            before = (np.arange(width) < c)[:, None, None]  # a kernel must not look at the others
            known = v * before, w * before
            k, place = jnp.int32(s * width + c), (jnp.int32(s), jnp.int32(c))
            u, scalars = _cpu_kernels.reflector(panel, v, w, *place)
            wanted = jax.jit(_tridiagonalize._next_reflector)(panel[c], *known, order, k)
            assert_near(u, wanted[0], dtype)
            assert_near(scalars, wanted[1], dtype)
            got = _cpu_kernels.correct(y[0], u, scalars[2], v, w, *place)
            wanted = jax.jit(_tridiagonalize._correct)(y[0], u, scalars[2], *known, order, k)
            assert_near(got, wanted, dtype)


def test_a_column_that_is_reduced_already_and_extreme_sizes() -> None:
    none = jnp.zeros((8, 2, 4))
    place = jnp.int32(0), jnp.int32(0)
    for scale in (0.0, 1e-300, 1e-160, 1e160, 1e300):
        panel = np.zeros((8, 2, 4))
        panel[0] = [[1.0, 2 * scale, 0, 0], [0, 0, 0, 0]]
        u, (diagonal, beta, tau) = _cpu_kernels.reflector(jnp.asarray(panel), none, none, *place)
        assert (float(diagonal), float(tau)) == (1.0, 0.0)
        assert float(beta) == 2 * scale
        assert not np.asarray(u).any()
        panel[0, 1, 3] = 3 * scale
        u, (_, beta, _) = _cpu_kernels.reflector(jnp.asarray(panel), none, none, *place)
        np.testing.assert_allclose(float(abs(beta)), np.hypot(2 * scale, 3 * scale), rtol=1e-14)


@each_dtype
@sample(("m", "width"), [(1, 1), (3, 64), (300, 65), (520, 200), (40, 128)], 0, 3)
def test_solve_right(m: int, width: int, dtype: Any) -> None:
    x = jnp.asarray(full((m, width), dtype))
    low = np.tril(full((width, width), dtype, 1)) + 3 * width * np.eye(width)
    found = _cpu_kernels.solve_right(x, jnp.asarray(low, dtype))
    assert_near(found @ low.conj().T, x, dtype)


@each_dtype
@sample(("m", "n"), [(1, 1), (3, 1030), (9, 7), (64, 33)], 1)
def test_products_with_a_matrix_and_its_adjoint(m: int, n: int, dtype: Any) -> None:
    a, v, w = (
        jnp.asarray(full(shape, dtype, k)) for k, shape in enumerate([(m, n), (n, 1), (m, 1)])
    )
    found = _cpu_kernels.two_products(a, v[:, 0], w[:, 0])
    wanted = _hermitian._two_products(a, v[:, 0], w[:, 0])
    for got, want in zip(found, wanted, strict=True):
        assert_near(got, want, dtype)
    assert float(found[2]) == float(wanted[2])


@each_dtype
@sample(("m", "width"), [(1, 1), (300, 65), (40, 128), (0, 3)], 1)
def test_gram(m: int, width: int, dtype: Any) -> None:
    x = jnp.asarray(full((m, width), dtype) if m else np.zeros((0, width), dtype))
    _assert_equal(_panel._gram, _panel._gram_by_kernel, (x,), (), {}, dtype)


@each_dtype
@sample("n", [1, 5, 32, 70], 3)
def test_factors_from_which_reflectors_are_rebuilt(n: int, dtype: Any) -> None:
    """They give the columns of an orthonormal basis back."""
    q = np.linalg.qr(full((n, n), dtype))[0].astype(dtype)
    both = _panel._lu_of_difference, _panel._lu_of_difference_by_kernel
    found, wanted = (run(jnp.asarray(q)) for run in reversed(both))
    for got, want in zip(found, wanted, strict=True):
        assert_near(got, want, dtype)
    packed, signs = map(np.asarray, found)
    assert (np.abs(np.diagonal(packed)) >= 1 - 10 * eps(dtype)).all()
    assert_near((np.tril(packed, -1) + np.eye(n)) @ np.triu(packed) + np.diag(signs), q, dtype)


@each_dtype
@sample("top", [0, 4], 0)
@sample(("columns", "width"), [(1, 3), (2, 3), (1, 20), (3, 20), (2, 0)], 1, 2)
def test_columns_are_reflected_where_they_lie(
    columns: int, width: int, top: int, dtype: Any
) -> None:
    """With fewer columns than rows, and with more."""
    b = jnp.asarray(full((columns, 9, 25), dtype))
    tall = jnp.asarray(full((columns, 9 - top, 4), dtype, 1))
    t, z = (
        jnp.asarray(full((4, n), dtype, 2)) if n else jnp.zeros((4, 0), dtype) for n in (4, width)
    )
    at = jnp.asarray(5)
    both = _householder._adjoint_times, _householder._adjoint_times_by_kernel
    if width:
        _assert_equal(*both, (tall, b), (at,), {"top": top, "width": width}, dtype)
    both = _householder._subtract, _householder._subtract_by_kernel
    _assert_equal(*both, (b, tall, t, z), (at,), {"top": top}, dtype)


@each_dtype
@sample(
    ("shape", "columns"),
    [*((shape, 3) for shape in SHAPES), ((2, 3, 4), 0), ((2, 3, 4), 1)],
    3,
)
@pytest.mark.parametrize("upper", [False, True])
def test_products_of_a_sweep_where_they_lie(
    shape: tuple[int, int, int], columns: int, upper: bool, dtype: Any
) -> None:
    """The kernels beside plain JAX: values, and derivatives of the ones that have them."""
    layout, _ = layout_of(shape)
    devices, tile, rows = layout.devices, layout.tile, layout.rows
    step = np.arange(rows) // tile
    numbers = full((rows, devices, rows), dtype)
    left, right = step[:, None, None] > step, step[:, None, None] < step
    triangle = jnp.asarray(np.where(right if upper else left, numbers, np.nan), dtype)
    b = jnp.asarray(full((columns, devices, rows), dtype, 1))
    for s in some_of(layout.steps):
        top, own = s * tile, b[:, 0, s * tile : (s + 1) * tile]
        for plain, fast, arrays in [
            (_sweeps._leave_row, _sweeps._leave_row_by_kernel, (own, triangle, b)),
            (_sweeps._leave_rows, _sweeps._leave_rows_by_kernel, (b, triangle, own)),
        ]:
            which = {"columns": (0, rows), "upper": upper}
            _assert_equal(plain, fast, arrays, [jnp.asarray(top)], which, dtype)


@each_dtype
@sample(("width", "columns"), [(1, 1), (64, 3), (130, 17), (20, 0), (0, 2)], 2)
@pytest.mark.parametrize("adjoint", [False, True])
def test_rows_of_a_sweep(width: int, columns: int, adjoint: bool, dtype: Any) -> None:
    b = jnp.asarray(full((width, columns), dtype))
    numbers = full((width, width), dtype, 1) + 3 * width * np.eye(width)
    arrays = jnp.asarray(numbers, dtype), b  # what is above the triangle is not read
    both = _tiles.trsm, _sweeps.trsm_by_kernel
    _assert_equal(*both, arrays, (), {"conjugate_transpose": adjoint}, dtype)


@each_dtype
@sample("n", [1, 5, 64, 130], 3)
def test_factor_of_a_block(n: int, dtype: Any) -> None:
    block = jnp.asarray(positive(n, dtype) + np.triu(full((n, n), dtype), 1), dtype)
    _assert_equal(_tiles.potrf, _cholesky.potrf_by_kernel, (block,), (), {}, dtype)
    none = block.at[n // 2, n // 2].set(-1)
    found, wanted = _cpu_kernels.potrf(none), _tiles.potrf(none)
    np.testing.assert_array_equal(found.real, wanted.real)
    np.testing.assert_array_equal(found.imag, wanted.imag)


@pytest.mark.parametrize("dtype", TWO_DTYPES)
@sample("shape", [(2, 1, 2), (3, 7, 2), (2, 128, 2), (2, 130, 6)], 1)
def test_panels_of_cholesky_where_they_lie(shape: tuple[int, int, int], dtype: Any) -> None:
    layout, _ = layout_of(shape)
    devices, tile, rows = layout.devices, layout.tile, layout.rows
    size = devices * tile
    a = jnp.asarray(full((rows, devices, rows), dtype))
    l_block = jnp.asarray(np.tril(full((size, size), dtype, 1)) + 3 * size * np.eye(size))
    l_block = l_block.astype(dtype)
    for s in some_of(layout.steps):
        top = s * tile
        gathered = jnp.asarray(full((size, devices, top + tile), dtype, 2))
        both = _cholesky._factor_panel, _cholesky._factor_panel_by_kernel
        arrays, me = (a, gathered, l_block), jnp.int32(s % devices)
        _assert_equal(*both, arrays, [me], {"top": top}, dtype, _lower_in_third)


@each_dtype
@sample(("devices", "height", "first"), [(2, 1, 0), (2, 4, 8), (3, 5, 25)], 2)
def test_strips_of_a_diagonal_block(devices: int, height: int, first: int, dtype: Any) -> None:
    width, top = 2 * devices * height, 7
    strip = jnp.asarray(full((height, width), dtype, 3))
    numbers = full((width, devices, top + 2), dtype, 2)
    numbers[:, :, top:] = np.nan  # the block itself
    rows, end = jnp.asarray(numbers), first + height
    both = _cholesky._leave_strip, _cholesky._leave_strip_by_kernel

    def below(function: Any, strip: Any, rows: Any) -> Any:
        return function(strip, rows, jnp.int32(first), top=top)[:, :end]

    plain, fast = (functools.partial(below, f) for f in both)
    _assert_equal(plain, fast, (strip, rows), (), {}, dtype)
    left = both[1](strip, rows, jnp.int32(first), top=top)[:, end:]
    np.testing.assert_array_equal(left, strip[:, end:])  # the part above is not read


def _lower_in_third(a: Any, rows: Any, l_block: Any) -> tuple[Any, Any, Any]:
    return a, rows, jnp.tril(l_block)


@functools.cache
def _value_and_derivative(function: Any, prepare: Any, static: tuple[tuple[str, int], ...]) -> Any:
    """Compiled whole: the many small operations, one by one, take several times as long."""

    def both(arrays: Any, rest: Any) -> Any:
        return jax.jvp(lambda *x: function(*prepare(*x), *rest, **dict(static)), arrays, arrays)

    return jax.jit(both)


def _as_they_are(*arrays: Any) -> Any:
    return arrays


def _assert_equal(
    plain: Any,
    fast: Any,
    arrays: Any,
    rest: Any,
    static: dict[str, int],
    dtype: Any,
    prepare: Any = _as_they_are,
) -> None:
    """The values of both, and their derivatives along ``arrays``."""
    wanted, found = (
        _value_and_derivative(function, prepare, tuple(static.items()))(arrays, tuple(rest))
        for function in (plain, fast)
    )
    for got, want in zip(found, wanted, strict=True):
        assert_near(got, want, dtype)


@sample("dtype", TWO_DTYPES, 1)
@sample("shape", [*SHAPES, (2, 2, 9)], 5)
def test_products_of_the_inverse_where_they_lie(shape: tuple[int, int, int], dtype: Any) -> None:
    layout, _ = layout_of(shape)
    devices, tile, rows = layout.devices, layout.tile, layout.rows
    size, step = devices * tile, np.arange(rows) // tile
    above = np.broadcast_to(step[:, None, None] < step, (rows, devices, rows))
    numbers = full((rows, devices, rows), dtype)
    low = jnp.asarray(np.where(above, np.nan, numbers))  # the part above is not read
    for s in some_of(layout.steps):
        top, end = s * tile, (s + 1) * tile
        left = jnp.asarray(full((rows - top, size), dtype, 1))
        both = _inverse._rows_of_product, _inverse._rows_of_product_by_kernel
        _assert_equal(*both, (left, low), (), {"end": end}, dtype)
        product = np.einsum("mw,mdc->wdc", left.conj(), numbers[top:, :, :end])
        assert_near(both[1](left, low, end=end), product, dtype)
        if s:
            part = jnp.asarray(full((size, devices, end), dtype, 2))
            left = jnp.asarray(full((top, size), dtype, 3))
            both = _inverse._leave_products, _inverse._leave_products_by_kernel
            _assert_equal(*both, (part, left, low), (), {"tile": tile}, dtype)
            triangle = np.where(above, 0, numbers)[:top, :, :top]
            change = np.einsum("mw,mdc->wdc", left.conj(), triangle)
            wanted = np.asarray(part) - np.pad(change, ((0, 0), (0, 0), (0, tile)))
            assert_near(both[1](part, left, low, tile=tile), wanted, dtype)


def test_calls_from_several_threads() -> None:
    a, v = full((48, 2, 48), np.float64), full((2, 48), np.float64)
    run = jax.jit(lambda a, v, me: _cpu_kernels.hemv(a, v, 16, jnp.int32(0), me))

    def product(i: int) -> np.ndarray:
        with jax.enable_x64(True):  # it holds for one thread
            return np.asarray(run(a, v, jnp.int32(i % 2)))

    wanted = product(0), product(1)
    with ThreadPoolExecutor(4) as pool:
        for i, got in enumerate(pool.map(product, range(40))):
            np.testing.assert_array_equal(got, wanted[i % 2])


@each_dtype
@sample("shared", [False, True], 1)
@sample(("m", "width"), [(1, 1), (7, 3), (3, 7), (200, 65)], 1, 3)
def test_getrf(m: int, width: int, shared: bool, dtype: Any) -> None:
    panel = jnp.asarray(full((width, m), dtype))
    wanted = _tiles.getrf(panel)
    for got, want in zip(_cpu_kernels.getrf(panel, shared), wanted, strict=True):
        assert_near(got, want, dtype)


@sample("dtype", DTYPES, 2)
@sample("shape", SHAPES, 3)
def test_a_superstep_of_lu_where_it_lies(shape: tuple[int, int, int], dtype: Any) -> None:
    """The kernel beside plain JAX: values and derivatives."""
    layout, _ = layout_of(shape)
    devices, tile, rows = layout.devices, layout.tile, layout.rows
    a = jnp.asarray(full((rows, devices, rows), dtype))
    for s in some_of(layout.steps):
        top = s * tile
        panel = _tiles.getrf(jnp.asarray(full((devices * tile, devices * (rows - top)), dtype, s)))
        for me in {0, devices - 1}:
            rest, both = (*panel, jnp.int32(me)), (_lu._eliminate, _lu._eliminate_by_kernel)
            _assert_equal(*both, (a,), rest, {"top": top}, dtype)
