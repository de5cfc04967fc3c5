"""Every process solves the same sharded systems with lineax, and checks its shards.

With the argument "quick" it is one system, and XLA optimizes nothing, which is most of the time.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import quick
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from quick import assert_shards

from lockstep.linalg.lineax import AutoLinearSolver

jax.config.update("jax_enable_x64", True)
jax.distributed.initialize()


def check(a: np.ndarray, tags: Any, b: np.ndarray, mesh: jax.sharding.Mesh) -> None:
    """The solution, and the gradient of the sum of its squares."""
    by_rows = NamedSharding(mesh, P("x"))
    operator, vector = lx.MatrixLinearOperator(jax.device_put(a, by_rows), tags), jnp.asarray(b)
    solver = AutoLinearSolver(None, mesh, (P("x"), P("x")))
    x = lx.linear_solve(operator, jax.device_put(b, by_rows), solver).value
    wanted = np.linalg.lstsq(a, b)[0]
    assert_shards(x, wanted)
    solve = functools.partial(lx.linear_solve, operator, solver=solver)
    gradient = jax.grad(lambda b: jnp.sum(solve(b).value ** 2))(vector)
    assert_shards(gradient, 2 * np.linalg.pinv(a).T @ wanted)


def main() -> None:
    mesh = jax.make_mesh((jax.device_count(),), ("x",), (AxisType.Auto,))
    rng = np.random.default_rng(0)
    square, b = rng.standard_normal((24, 24)) + 5 * np.eye(24), rng.standard_normal(24)
    check(square @ square.T, lx.positive_semidefinite_tag, b, mesh)
    if not quick.QUICK:
        check(square, (), b, mesh)
        check(rng.standard_normal((24, 10)), (), b, mesh)
    print("right")


quick.run(main)
