"""What JAX calls after each execution, beside its own check for NaN."""

from __future__ import annotations

import sys

import pytest

from processes import captured

PROGRAM = """
import lockstep
import jax, jax.numpy as jnp
from lockstep import _jax_compat

begun, ended, learned, fast = [], [], [], []
def begin(executable):
    begun.append(executable)
    return executable
_jax_compat.note_launches(
    begin,
    lambda *told: ended.append(told),
    lambda *told: learned.append(told),
    lambda *told: fast.append(told),
)
step = jax.jit(lambda x: x + 1)
x = jnp.ones(3)
step(x)
assert begun and ended == [(executable, None) for executable in begun]
assert any(function is step.__wrapped__ for function, *_ in learned), learned
assert learned[-1][2:] == ((x,), {}, ((), ()))
power = jax.jit(lambda x, n: x**n, static_argnames="n")
power(x, n=2), power(x, 3)
assert [told[3:] for told in learned[-2:]] == [({"n": 2}, ((1,), ("n",))), ({}, ((1,), ("n",)))]
before = len(fast)
step(x)
assert len(fast) == before + 1
assert fast[-1][0].__wrapped__ is step.__wrapped__
with jax.debug_nans(False):
    step(x)
step(x)
assert len(fast) == before + 3, "the thread has lost the hook"
jax.config.update("jax_debug_nans", True)
step(x)
assert len(fast) >= before + 4
def fails(x):
    raise ValueError("bad")
try:
    jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(fails, x, x))(x))
except Exception as error:
    assert ended[-1][1] in (None, error)
try:
    jax.jit(lambda x: x / 0 * 0)(jnp.zeros(3))
except FloatingPointError:
    print("found")
jax.config.update("jax_debug_nans", False)
before = len(fast)
step(x)
assert len(fast) == before + 1
"""


@pytest.mark.full
def test_every_launch_is_noted_also_beside_the_check_for_nan() -> None:
    ended = captured([sys.executable, "-c", PROGRAM], timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("found\n")
