"""The error of a watch, which comes to the main thread wherever that is."""

from __future__ import annotations

import sys

import pytest

from processes import captured

PROGRAM = """
import sys, threading, time
import lockstep
import jax, jax.numpy as jnp
from lockstep._jax_compat import backends
from lockstep.watchdog import ending

def waits(*_):
    raised = ending._raise_in_main_thread
    threading.Timer(0.5, raised, ["lockstep: process 1 has left"]).start()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        time.sleep(0.01)

x = jnp.ones(3)
if sys.argv[1] == "dispatching":
    backends._last_programs = waits
else:
    class Array:
        is_ready = waits
        is_deleted = lambda self: False
    backends._last_programs = lambda _: [Array()]
try:
    found = backends.wait_for_dispatched()
except jax.errors.JaxRuntimeError as error:
    print("raised:", error)
"""


@pytest.mark.parametrize("at", ["dispatching", "waiting"])
def test_it_is_raised_from_the_wait_at_the_end_of_a_program(at: str) -> None:
    """It is no sign that jax differs, nor the error of an array."""
    ended = captured([sys.executable, "-c", PROGRAM, at], timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "raised: lockstep: process 1 has left\n", ended.stderr
