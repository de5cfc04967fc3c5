"""What JAX lowers does not depend on what the process has traced before.

`lockstep.programs` compares what processes lower, so a process that has traced a helper alone must
not differ from one that has not.
"""

from __future__ import annotations

import pytest

from processes import assert_all_well, python

PROGRAM = """
import hashlib, sys
import jax, jax.numpy as jnp

@jax.jit
def helper(x):
    return jnp.where(x > 0, jnp.sin(x), jax.nn.relu(x)).sum()

def g(x):
    return jax.nn.softmax(x).sum() + jnp.std(x)

def step(x):
    y = helper(x) + helper(2 * x) + g(x) + jax.grad(helper)(x).sum() + jax.grad(g)(x).sum()
    z = jax.vmap(helper)(jnp.stack([x, x])).sum()
    c, _ = jax.lax.scan(lambda c, _: (helper(x) + c, None), 0.0, None, length=3)
    return y + z + c + jnp.median(x) + jax.checkpoint(helper)(x)

x = jnp.arange(8.0)
if sys.argv[1] == "helpers alone":
    helper(x), jax.grad(helper)(x), g(x), jax.jit(g)(x), jnp.median(x), jax.nn.relu(x)
if sys.argv[1] == "other shapes":
    helper(jnp.arange(9.0)), jax.jit(jax.grad(g))(jnp.arange(9.0))
if sys.argv[1] == "cleared caches":
    jax.jit(step).lower(x)
    jax.clear_caches()
module = jax.jit(step).lower(x).compiler_ir()
text = module.operation.get_asm(enable_debug_info=False)
print(hashlib.sha256(text.encode()).hexdigest())
"""
HISTORIES = ("nothing", "helpers alone", "other shapes", "cleared caches")


@pytest.mark.full
def test_the_history_of_a_process_does_not_change_what_it_lowers() -> None:
    ended = [python(PROGRAM, history, timeout=120) for history in HISTORIES]
    assert_all_well(ended)
    assert len({end.stdout for end in ended}) == 1, dict(zip(HISTORIES, ended, strict=True))
