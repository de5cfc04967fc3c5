"""Collectives whose length XLA would cut off on its way to the engine."""

from __future__ import annotations

import pytest

import lockstep

# Nothing of this size is ever made: a program is compiled for arrays that it only describes.
SIZES = {
    "permute": (2**29 - 1, 2**29),
    "gather": (2**29 - 1, 2**29),
    "all_to_all": (2**30 - 2, 2**30),
    "sum": (2**31 - 1, 2**31),
    "scatter": (2**31 - 2, 2**33),
}


def compiles(name: str, elements: int) -> str:
    """What the compiler says against a collective of so many elements; "": nothing."""
    import jax
    from jax import lax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    body = {
        "permute": lambda x: lax.ppermute(x, "process", [(0, 1), (1, 0)]),
        "gather": lambda x: lax.all_gather(x, "process")[0],
        "all_to_all": lambda x: lax.all_to_all(x, "process", 0, 0, tiled=True),
        "sum": lambda x: lax.psum(x, "process"),
        "scatter": lambda x: lax.psum_scatter(x, "process", tiled=True),
    }[name]
    dtype = "int8" if name == "scatter" else "float32"
    mesh, spec = lockstep.process_mesh(), P("process")
    x = jax.ShapeDtypeStruct((2 * elements,), dtype, sharding=NamedSharding(mesh, spec))
    program = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    try:
        jax.jit(program).lower(x).compile()
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    return ""


@pytest.mark.full
@pytest.mark.lockstep(n=2, devices=1)
@pytest.mark.parametrize("name", SIZES)
def test_what_does_not_fit_is_refused_when_it_is_compiled(name: str) -> None:
    fits, does_not = (compiles(name, elements) for elements in SIZES[name])
    assert fits == ""
    assert "XLA can move at most 2147483647" in does_not
    assert "Use more devices, or split the array." in does_not
    assert "jit(" in does_not
