"""The program of jax-ml/jax#40830, for which gloo gives wrong numbers: the engine gives none."""

from __future__ import annotations

import pathlib

import pytest

from lanes import sample
from support import run_lockstep

PROGRAM = pathlib.Path(__file__).parents[2] / "benchmarks" / "gloo_reduce_scatter.py"


def run(n: int, d: int, timeout: float, *args: str) -> None:
    result = run_lockstep([], PROGRAM, n=n, d=d, timeout=timeout, program_args=args, forked=True)
    counted = [line for line in result.stdout.splitlines() if "executions wrong" in line]
    assert counted, result
    assert all(": 0 of " in line for line in counted), result


@pytest.mark.parametrize(("n", "d"), [(2, 1), (4, 1), (2, 2)])
@pytest.mark.full
def test_no_result_is_wrong(n: int, d: int) -> None:
    run(n, d, 200, "--mib", "4", "32", "--executions", "50")


@pytest.mark.full
@sample(("n", "executions"), [(2, 30), (2, 100), (4, 100)], 0)
def test_no_result_inside_a_scan_is_wrong(n: int, executions: int) -> None:
    run(n, 1, 200, "--mib", "8", "--executions", str(executions), "--scan", "10")


@pytest.mark.slow
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("n", [2, 4])
def test_no_result_of_many_large_ones_is_wrong(n: int) -> None:
    run(n, 1, 1200, "--mib", "8", "32", "64", "--executions", "200")
    run(n, 1, 1200, "--mib", "32", "--executions", "200", "--scan", "10")


@pytest.mark.full
def test_a_wrong_result_would_be_counted() -> None:
    """The program's own check, on a result that has one element off."""
    result = run_lockstep(
        [],
        f"""
        import runpy, sys
        import jax
        import numpy as np
        real = np.asarray
        def spoiled(x, *args):
            y = real(x, *args)
            if isinstance(x, jax.Array) and y.ndim == 2:
                y = y.copy()
                y[0, -1] += 1
            return y
        sys.argv = ["x", "--mib", "0.1", "--executions", "3", "--dtype", "float64"]
        module = runpy.run_path({str(PROGRAM)!r})
        np.asarray = spoiled
        module["main"]()
        """,
        timeout=100,
        forked=True,
    )
    assert result.stdout.count("3 of 3 executions wrong") == 2, result
