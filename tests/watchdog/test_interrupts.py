"""The error of a watch, which comes to the main thread wherever that is."""

from __future__ import annotations

from processes import python

PROGRAM = """
import threading, time
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

class Array:
    is_ready = waits
    is_deleted = lambda self: False

x = jnp.ones(3)
for last_programs in (waits, lambda _: [Array()]):  # while it dispatches, and while it waits
    backends._last_programs = last_programs
    try:
        found = backends.wait_for_dispatched()
    except jax.errors.JaxRuntimeError as error:
        print("raised:", error)
"""


def test_it_is_raised_from_the_wait_at_the_end_of_a_program() -> None:
    """It is no sign that jax differs, nor the error of an array."""
    ended = python(PROGRAM, timeout=120)
    assert ended.status == 0, ended
    assert ended.stdout == "raised: lockstep: process 1 has left\n" * 2, ended
