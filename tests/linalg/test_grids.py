"""benchmarks/linalg_grids.py counts a compiled program's collectives, and what they send."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from linalg.matrices import mesh

SENT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "linalg_grids.py"))["sent"]


def test_loops_count_as_often_as_they_run_and_the_cheaper_branch() -> None:
    over = mesh((4,))

    def body(a: Any) -> Any:
        def step(_: Any, a: Any) -> Any:
            return a + lax.psum(a, "x")  # 128 bytes, twice

        a = lax.fori_loop(0, 3, step, a)
        many = jnp.isfinite(lax.all_gather(a, "x")).all()  # 512 bytes of all
        return lax.cond(many, lambda a: a, lambda a: a * lax.psum(a, "x").sum(), a)

    run = jax.jit(jax.shard_map(body, mesh=over, in_specs=P("x"), out_specs=P("x")))
    a = jax.ShapeDtypeStruct((64,), "float64")
    text = run.lower(a).compile().as_text()
    assert SENT(text, 4) == (4, 3 * 2 * 128 * 3 / 4 + 512 * 3 / 4)
