"""The reductions to a band, its singular values and its eigenvalues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import sample
from linalg.matrices import each_dtype, full, mesh, put
from linalg.test_kernels import SHAPES, assert_near, layout_of, some_of
from lockstep.linalg import _band, _bidiagonalize, _cpu_kernels
from lockstep.linalg._layout import Axes


@pytest.fixture(autouse=True)
def _kernels_are_there() -> None:
    assert _cpu_kernels.available("cpu")


@each_dtype
@sample("shape", SHAPES, 3)
def test_a_block_reflector(shape: tuple[int, int, int], dtype: Any) -> None:
    layout, order = layout_of(shape)
    width, place = layout.devices * layout.tile, np.argsort(order.ravel())
    for s in some_of(layout.steps):
        given = full((width, layout.devices, layout.rows), dtype, s)
        x = np.where(order >= s * width, given, np.nan)
        v, t, r = _cpu_kernels.block_reflector(jnp.asarray(x), jnp.int32(s), layout.tile)
        v, x = (np.asarray(y).reshape(width, -1)[:, place].T for y in (v, x))
        q = np.eye(layout.padded) - v @ t @ v.conj().T
        assert not v[: s * width].any()
        assert_near(q.conj().T @ q, np.eye(len(q)), dtype)
        wanted = np.zeros_like(x)
        wanted[s * width : (s + 1) * width] = r
        assert_near(q @ wanted, np.nan_to_num(x), dtype)
        for triangle in (t, r):
            assert not np.tril(triangle, -1).any()


def test_no_column_is_left_after_the_last_superstep() -> None:
    x = jnp.full((4, 2, 6), jnp.nan)
    for found in _cpu_kernels.block_reflector(x, jnp.int32(3), 2):
        assert not np.asarray(found).any()


BANDS = sample(("steps", "width"), [(1, 1), (1, 5), (4, 1), (3, 4), (2, 9)], 3)


def a_band(steps: int, width: int, dtype: Any) -> tuple[jax.Array, np.ndarray]:
    """The blocks that kernels read, NaN where they must not, and the band as a square matrix."""
    given = full((steps, 2, width, width), dtype)
    blocks = np.where(np.tril(np.ones((width, width)), -1), np.nan, given)
    blocks[-1, 1] = np.nan
    band, upper = np.zeros((steps * width, steps * width), dtype), np.triu(given)
    for s in range(steps):
        here, following = (slice(k * width, (k + 1) * width) for k in (s, s + 1))
        band[here, here] = upper[s, 0]
        if s + 1 < steps:
            band[here, following] = upper[s, 1].conj().T
    return jnp.asarray(blocks), band


@each_dtype
@BANDS
def test_the_bidiagonal_form_of_a_band(steps: int, width: int, dtype: Any) -> None:
    blocks, band = a_band(steps, width, dtype)
    diagonal, right = _cpu_kernels.band_to_bidiagonal(blocks)
    bidiagonal = np.diag(diagonal) + np.diag(right[:-1], 1)
    assert right[-1] == 0
    found, wanted = (np.linalg.svd(x, compute_uv=False) for x in (bidiagonal, band))
    assert_near(found, wanted, dtype)


@each_dtype
@BANDS
def test_the_eigenvalues_of_a_band(steps: int, width: int, dtype: Any) -> None:
    blocks, band = a_band(steps, width, dtype)
    wanted = np.linalg.eigvalsh(band, UPLO="U")
    assert_near(_cpu_kernels.band_eigenvalues(blocks), wanted, dtype)


def test_errors_in_32_bits_do_not_grow_with_the_band() -> None:
    """LAPACK's routines for float have 20 to 50 rounding errors of the largest value here."""
    blocks, band = a_band(20, 32, np.float32)
    wide = band.astype(np.float64)
    values = _cpu_kernels.band_eigenvalues(blocks)
    singular = _cpu_kernels.bidiagonal_values(*_cpu_kernels.band_to_bidiagonal(blocks))
    for found, wanted in (
        (values, np.linalg.eigvalsh(wide, UPLO="U")),
        (singular, np.linalg.svd(wide, compute_uv=False)),
    ):
        limit = 3 * np.finfo(np.float32).eps * np.abs(wanted).max()
        assert np.abs(np.asarray(found) - wanted).max() < limit


def test_bands_of_other_shapes_with_the_same_numbers() -> None:
    """The kernel keeps what it has found last: the shape is part of the question."""
    numbers = np.arange(1.0, 9)
    for shape, read in (((4, 2, 1, 1), numbers[:7]), ((1, 2, 2, 2), numbers[[0, 1, 3]])):
        found = _cpu_kernels.band_to_bidiagonal(jnp.asarray(numbers.reshape(shape)))
        # Both matrices have the same sum of squares.
        assert_near(sum(np.sum(np.square(x)) for x in found), np.sum(read**2), np.float64)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_band_that_is_not_finite(wrong: float) -> None:
    blocks = full((3, 2, 4, 4), np.complex128)
    blocks[1, 1, 0, 2] = wrong
    blocks = jnp.asarray(blocks)
    values = _cpu_kernels.band_eigenvalues(blocks)
    for found in (*_cpu_kernels.band_to_bidiagonal(blocks), values):
        assert np.isnan(np.asarray(found)).all()


def on_devices(function: Callable[[jax.Array, Axes], jax.Array], slots: np.ndarray) -> np.ndarray:
    """What the function finds of ``slots`` (P, R, P, R), the same on all devices."""
    run = jax.shard_map(
        lambda a: function(a[0], ("x",)),
        mesh=mesh((len(slots),)),
        in_specs=P("x"),
        out_specs=P(),
        check_vma=False,
    )
    return np.asarray(jax.jit(run)(slots))


@each_dtype
@sample("width", [8, 4, 2], 0, 2)
def test_singular_values_by_either_first_stage(
    width: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Panels have two columns of each device, or one; or there are more devices than `WIDTH`."""
    monkeypatch.setattr(_band, "WIDTH", width)
    devices, rows = 4, 9
    a = full((devices, rows, devices, rows), dtype)
    a[2, 5] = a[:, :, 1, 3] = 0
    calls = []
    for module, name in ((_band, "reduce"), (_bidiagonalize, "diagonals")):
        real = getattr(module, name)

        def counted(*args: Any, real: Any = real, name: str = name) -> Any:
            calls.append(name)
            return real(*args)

        monkeypatch.setattr(module, name, counted)
    found = on_devices(_band.singular_values, a)
    assert calls == ["diagonals" if devices > width else "reduce"]
    wanted = np.linalg.svd(a.reshape(36, 36), compute_uv=False)
    assert_near(found, np.pad(wanted, (0, len(found) - 36)), dtype)


@each_dtype
@sample(("devices", "rows", "zeros"), [(4, 16, 0), (4, 17, 5), (2, 40, 0), (1, 3, 2)], 1)
def test_eigenvalues(devices: int, rows: int, zeros: int, dtype: Any) -> None:
    """Padding is anywhere, and as many values of zero are left out, whatever their sign is."""
    size = devices * rows
    a = full((size, size), dtype)
    a = a + a.conj().T
    a[:zeros] = a[:, :zeros] = 0
    slots = a.reshape(devices, rows, devices, rows)
    found = on_devices(lambda a, axes: _band.eigenvalues(a, size - zeros, axes), slots)
    assert_near(found, np.linalg.eigvalsh(a[zeros:, zeros:]), dtype)


def test_true_eigenvalues_of_zero_beside_those_of_padding() -> None:
    x = full((36, 3), np.complex128)
    x[30:] = 0
    a = x @ np.diag([1, -1, 2]) @ x.conj().T
    found = on_devices(lambda a, axes: _band.eigenvalues(a, 30, axes), a.reshape(4, 9, 4, 9))
    assert_near(found, np.linalg.eigvalsh(a[:30, :30]), np.complex128)


def test_eigenvalues_of_zero() -> None:
    found = on_devices(lambda a, axes: _band.eigenvalues(a, 30, axes), np.zeros((4, 9, 4, 9)))
    assert not found.any()


def test_eigenvalues_with_more_devices_than_a_panel_has_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_band, "WIDTH", 3)
    monkeypatch.delattr(_band, "eigenvalues")
    a = full((52, 52), np.float64)
    a = put(a + a.T, mesh((4,)), P("x"))
    found = la.eigh(a, eigvals_only=True, method="distributed")
    assert_near(found, np.linalg.eigvalsh(a), np.float64)
