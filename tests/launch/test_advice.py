"""What is added to errors of Python and JAX that do not say what to do in a job."""

from __future__ import annotations

import pytest

from lockstep.processes.advice import advice
from support import run_lockstep

ERRORS = """
import functools, jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from lockstep.processes.advice import advice

jax.distributed.initialize()
mesh = jax.make_mesh((4,), ("x",))
kept = jnp.ones(4)
functools.partial(jax.jit, donate_argnums=0)(lambda x: x + 1)(kept)
for what in (
    lambda: np.array(jax.devices()).reshape(4, 2),
    lambda: jax.make_mesh((4, 2), ("x", "y")),
    lambda: np.ones(12).reshape(4, 2),
    lambda: jax.device_put(np.ones(10), NamedSharding(mesh, P("x"))),
    lambda: kept + 1,
    lambda: jax.distributed.initialize(),
    lambda: jnp.ones(3) + jnp.ones(4),
):
    try:
        what()
        print("no error")
    except Exception as error:
        print(advice(error, 1))
"""


def test_errors_of_jax_say_what_to_do_in_a_job() -> None:
    said = run_lockstep([], ERRORS, d=2, timeout=90, forked=True).by_process[1]
    devices = "This job has 4 devices on 2 processes, of which this one has 2. `lockstep run -n"
    begins = (
        devices,
        devices,
        "",
        "The devices of all processes share such an array in equal parts",
        "A function with donate_argnums or donate_argnames has taken this array",
        "This process has joined the job already",
        "",
    )
    assert len(said) == len(begins), said
    for text, start in zip(said, begins, strict=True):
        assert text.startswith(start), said
        assert bool(text) == bool(start), said


@pytest.mark.parametrize(("process", "said"), [(0, False), (1, True)])
def test_input_on_another_process_than_0(process: int, said: bool) -> None:
    error = EOFError("EOF when reading a line")
    assert advice(error, process).startswith("The launcher's standard input") == said
    assert advice(EOFError("of a file"), process) == ""
