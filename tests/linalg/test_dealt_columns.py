"""Solutions with a triangle whose columns are dealt to the devices, beside NumPy's."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import sample
from linalg.matrices import assert_close, each_dtype, full, mesh, positive, put
from lockstep.linalg import _cpu_kernels, _dealt_columns, _sweeps
from lockstep.linalg._dealt_columns import Triangle
from lockstep.linalg._layout import RowMap


@pytest.fixture(autouse=True, scope="module")
def _kernels_are_there() -> None:
    assert _cpu_kernels.available("cpu")


def slots_of(a: np.ndarray, layout: RowMap) -> np.ndarray:
    """(P R, P, R): the slots of all devices of a matrix in the order of elimination."""
    order = np.asarray(layout.elimination_order)
    return a[order][:, :, order].reshape(-1, *order.shape)


@pytest.mark.parametrize("kernels", [True, False])
@sample("kind", ["lower", "upper", "unit upper"], 0, 2)
@pytest.mark.parametrize("conjugate_transpose", [False, True])
@sample(("devices", "tile", "steps", "columns"), [(2, 3, 4, 24), (3, 2, 5, 16), (4, 1, 9, 50)], 2)
@each_dtype
def test_every_triangle(
    kernels: bool,
    kind: str,
    conjugate_transpose: bool,
    devices: int,
    tile: int,
    steps: int,
    columns: int,
    dtype: Any,
) -> None:
    layout, over = RowMap.cyclic(devices * tile * steps, devices, tile), mesh((devices,))
    n, order = layout.n, np.asarray(layout.elimination_order).ravel()
    a, b = full((n, n), dtype) + 3 * n * np.eye(n, dtype=dtype), full((n, columns), dtype, 1)
    triangle = np.tril(a) if kind == "lower" else np.triu(a)
    if kind == "unit upper":
        triangle = np.triu(full((n, n), dtype), 1) / n + np.eye(n, dtype=dtype)
        a = np.tril(a) + np.triu(triangle, 1)
    hidden = np.arange(n) // (devices * tile)  # no other superstep's numbers are read
    never = hidden[:, None] < hidden if kind == "lower" else hidden[:, None] > hidden
    numbers = slots_of(np.where(never, np.nan, a).astype(dtype), layout)

    def run(slots: Any, b: Any) -> Any:
        how = layout, ("x",), kernels, conjugate_transpose
        return _dealt_columns.solve(Triangle(slots, kind != "lower", "unit" in kind), b, *how)

    run = jax.shard_map(run, mesh=over, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    found = np.asarray(jax.jit(run)(*(put(x, over, P("x")) for x in (numbers, b[order]))))
    of = triangle.conj().T if conjugate_transpose else triangle
    assert_close(found[np.argsort(order)], np.linalg.solve(of, b).astype(dtype), 1000)


@pytest.mark.parametrize("upper", [False, True])
@each_dtype
def test_kernels_do_what_plain_jax_does(upper: bool, dtype: Any) -> None:
    """Values and derivatives, from each row on; the panel begins at the second local row."""
    devices, rows, tile, columns = 3, 7, 2, 5
    height, width = rows - 1, devices * tile
    shape = (width, devices, height) if upper else (devices, height, width)
    panel, x = (jnp.asarray(full(s, dtype, 1)) for s in (shape, (devices, rows, columns)))
    solved, rest = (full(s, dtype, 2) for s in ((width, columns), (devices, tile, columns)))
    names = [("_leave", (x, panel, solved)), ("_left_to", (rest, panel, x))]
    for after in (3, 5, 7):
        for name, arrays in names:
            found, wanted = (
                jax.jvp(
                    functools.partial(_fixed, getattr(_dealt_columns, name + end), after, upper),
                    arrays,
                    tuple(jnp.ones_like(x) for x in arrays),
                )
                for end in ("_by_kernel", "")
            )
            for got, want in zip(found, wanted, strict=True):
                assert_close(got, np.asarray(want))


def _fixed(function: Any, after: int, upper: bool, *arrays: Any) -> Any:
    return function(*arrays, jnp.int32(after), upper=upper)


@sample("kernels", [True, False], 0, indirect=True)
@sample("dtype", [np.float64, np.complex128], 1)
@pytest.mark.usefixtures("kernels")
def test_the_functions_that_take_it(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With half as many columns as rows, and no sweep then; one less, and sweeps."""
    n, over = 32, mesh((4,))
    a, spd = full((n, n), dtype) + 9 * np.eye(n), positive(n, dtype)
    b = full((n, n // 2), dtype, 1)
    sharded, rhs = put(a, over, P("x")), put(b, over, P("x"))
    cases = {
        "solve": (lambda b: la.solve(sharded, b, tile=2), np.linalg.solve(a, b)),
        "transposed": (
            lambda b: la.solve(sharded, b, transposed=True, tile=2),
            np.linalg.solve(a.T, b),
        ),
        "potrs": (lambda b: la.potrs(put(spd, over, P("x")), b, 2), np.linalg.solve(spd, b)),
        "lower": (
            lambda b: la.solve_triangular(sharded, b, 0, True, tile=2),
            np.linalg.solve(np.tril(a), b),
        ),
        "upper": (
            lambda b: la.solve_triangular(sharded, b, 2, False, tile=2),
            np.linalg.solve(np.triu(a).conj().T, b),
        ),
    }
    sweeps: list[str] = []
    for name in ("solve_gathered", "solve_adjoint"):
        function = getattr(_sweeps, name)

        def watched(*arguments: Any, function: Any = function, **named: Any) -> Any:
            sweeps.append(function.__name__)
            return function(*arguments, **named)

        monkeypatch.setattr(_sweeps, name, watched)
    for name, (run, wanted) in cases.items():
        jax.clear_caches()
        sweeps.clear()
        assert_close(run(rhs), wanted, 1000)
        assert not sweeps, name
        assert_close(run(put(b[:, 1:], over, P("x"))), wanted[:, 1:], 1000)
        assert sweeps, name
