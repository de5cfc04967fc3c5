"""Collectives whose length XLA would cut off on its way to the engine."""

from __future__ import annotations

import json

import pytest

from support import run_lockstep

# Nothing of this size is ever made: a program is compiled for arrays that it only describes.
PROGRAM = """
import json, jax, numpy as np, jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("x",))

def compiles(body, elements, dtype):
    x = jax.ShapeDtypeStruct((2 * elements,), dtype, sharding=NamedSharding(mesh, P("x")))
    specs = dict(mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    try:
        jax.jit(jax.shard_map(body, **specs)).lower(x).compile()
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    return ""

f32, i8, swap = jnp.float32, jnp.int8, [(0, 1), (1, 0)]
said = {
    "permute": [compiles(lambda x: lax.ppermute(x, "x", swap), n, f32) for n in (2**29 - 1, 2**29)],
    "gather": [compiles(lambda x: lax.all_gather(x, "x")[0], n, f32) for n in (2**29 - 1, 2**29)],
    "all_to_all": [
        compiles(lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True), n, f32)
        for n in (2**30 - 2, 2**30)
    ],
    "sum": [compiles(lambda x: lax.psum(x, "x"), n, f32) for n in (2**31 - 1, 2**31)],
    "scatter": [
        compiles(lambda x: lax.psum_scatter(x, "x", tiled=True), n, i8) for n in (2**31 - 2, 2**33)
    ],
}
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    result = run_lockstep([], PROGRAM, n=2, timeout=100)
    return json.loads(result.by_process[0][0])


@pytest.mark.parametrize("name", ["permute", "gather", "all_to_all", "sum", "scatter"])
def test_what_does_not_fit_is_refused_when_it_is_compiled(
    said: dict[str, list[str]], name: str
) -> None:
    fits, does_not = said[name]
    assert fits == ""
    assert "XLA can move at most 2147483647" in does_not
    assert "Use more devices, or split the array." in does_not
    assert "jit(" in does_not
