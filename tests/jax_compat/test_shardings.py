"""The errors about shardings in types say what to do; the hook fails soft."""

from __future__ import annotations

import pytest

from jax_compat.test_hooks import broken
from processes import python

PROGRAM = """
import lockstep
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

def product(kind):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        a = jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh, P(None, "x")))
        return jax.jit(lambda a: a @ a.T)(a)

print(product(AxisType.Auto).shape)
try:
    product(AxisType.Explicit)
except Exception as error:
    print(type(error).__name__, str(error)[:34])
    print([note for note in error.__notes__ if note.startswith("lockstep")])
"""
REMOVED = broken("hide(importlib.import_module('jax._src.core'), 'ShardingTypeError')")
TWO = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


@pytest.mark.full
def test_the_error_of_an_ambiguous_sharding_says_what_to_do() -> None:
    ended = python(PROGRAM, env=TWO)
    assert ended.status == 0, ended
    shape, error, note = ended.stdout.splitlines()
    assert shape == "(4, 4)"
    assert error == "ShardingTypeError Contracting dimensions are sharded"
    assert "axis_types=(jax.sharding.AxisType.Auto,) * number_of_axes" in note
    assert "out_sharding=" in note
    assert note.count("lockstep: ") == 1


@pytest.mark.full
def test_the_hook_is_left_out_where_jax_has_changed() -> None:
    ended = python(REMOVED + PROGRAM, env=TWO)
    assert ended.status == 0, ended
    assert ended.stdout.splitlines()[-1] == "[]"
    [line] = [line for line in ended.stderr.splitlines() if "hook" in line]
    assert 'the hook "types with shardings" does not fit jax' in line
