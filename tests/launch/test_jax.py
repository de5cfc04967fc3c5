"""JAX programs: every way to begin, and failures while the others wait in a collective."""

from __future__ import annotations

import pytest

from lanes import sample
from support import run_lockstep

SUM = """
from jax.experimental import multihost_utils
import jax.numpy as jnp
everybody = multihost_utils.process_allgather(jnp.array([10 + jax.process_index()]))
print(f"sum {jax.process_count()} {jax.local_device_count()} {everybody.ravel().tolist()}")
"""
# Process 1 fails after three steps; process 0 goes on and waits for it.
STEPS = """
import os, sys, jax, numpy as np
jax.distributed.initialize()
from jax.experimental import multihost_utils
for step in range(1000):
    if step == 3 and jax.process_index() == 1:
        {failure}
    multihost_utils.process_allgather(np.array([step]))
"""

# The same program everywhere, so nothing but the order in which a set is iterated over can differ.
OVER_SETS = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
jax.distributed.initialize()
rows = NamedSharding(jax.make_mesh((2,), ("x",)), PartitionSpec("x"))
total = jax.jit(lambda x: x.sum())
for round in range(5):
    layers = {f"layer {round} {i}": float(i) for i in range(8)}
    sums = {}
    for name in set(layers):
        mine = np.full(1, layers[name], np.float32)
        sums[name] = float(total(jax.make_array_from_process_local_data(rows, mine)))
    assert sums == {name: 2 * value for name, value in layers.items()}, sums
"""


@sample(
    ("options", "beginning"),
    [
        ([], "import jax\njax.distributed.initialize()"),
        ([], "import lockstep, jax\nlockstep.initialize()"),
        (["--auto-init"], "import jax"),
    ],
    *(0, 2),
    ids=["jax", "lockstep", "auto-init"],
)
@sample("collectives", ["lockstep", "gloo"], 0)
def test_every_way_to_begin(collectives: str, options: list[str], beginning: str) -> None:
    options = ["--collectives", collectives, *options]
    result = run_lockstep(options, beginning + SUM, d=2, timeout=120)
    for process in range(2):
        # Gloo prints too, from threads of its own, and may do so before the end of the line.
        assert any("sum 2 2 [10, 11]" in line for line in result.by_process[process]), result


@pytest.mark.full
def test_sums_in_the_order_of_a_set_of_strings_are_right() -> None:
    run_lockstep([], OVER_SETS, timeout=120, env={"PYTHONHASHSEED": ""})


def test_a_platform_without_its_device_is_told_in_words() -> None:
    # JAX looks for the device files only; where there is a GPU, it is hidden by being none here.
    program = """
        import jax
        from jax._src import hardware_utils
        hardware_utils.has_visible_nvidia_gpu = lambda: False
        jax.devices()
    """
    result = run_lockstep(["--platform", "cuda"], program, n=1, expect_status=1, forked=True)
    first = result.said_by_launcher.splitlines()[0]
    assert "failed first: RuntimeError: JAX may use the platform cuda only" in first
    assert "finds no NVIDIA GPU on this machine" in first


@pytest.mark.full
def test_processes_that_never_join_are_told_so() -> None:
    said = run_lockstep([], "import jax; print(jax.device_count())").said_by_launcher
    assert "no process joined the job: each of the 2 ran alone" in said
    assert "jax.distributed.initialize()" in said
    assert "--auto-init" in said
    left = "import jax; jax.distributed.initialize(); jax.devices(); jax.distributed.shutdown()"
    assert run_lockstep([], left).said_by_launcher == ""


@sample(
    ("failure", "status", "headline"),
    [
        ("raise ValueError('no data')", 1, "ValueError: no data (exit code 1)"),
        ("sys.exit(3)", 3, "sys.exit(3) (exit code 3)"),
        ("os.kill(os.getpid(), 9)", 137, "killed by SIGKILL (signal 9)"),
    ],
    0,
)
@sample("collectives", ["lockstep", "gloo"], 1)
def test_the_first_failure_ends_a_job_that_waits_for_it(
    collectives: str, failure: str, status: int, headline: str
) -> None:
    program = STEPS.format(failure=failure)
    options = ["--collectives", collectives]
    result = run_lockstep(options, program, timeout=90, expect_status=status, forked=True)
    first = result.said_by_launcher.splitlines()[0]
    assert first.startswith(f"lockstep: process 1 of 2 failed first: {headline}")


@pytest.mark.full
def test_a_failure_ends_a_job_whose_other_process_waits_in_jax_s_shutdown() -> None:
    program = """
import sys, jax
jax.distributed.initialize()
if jax.process_index() == 1:
    import time
    time.sleep(1)
    raise ValueError("late")
"""
    result = run_lockstep(["--collectives", "gloo"], program, expect_status=1)
    assert "process 1 of 2 failed first: ValueError: late" in result.said_by_launcher
