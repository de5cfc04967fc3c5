"""Jobs with a profiler plug-in of the user's own: what NCCL's RAS says, joined with the launches.

Real processes launch programs over gloo, which are told to be GPUs, and one of them has a stand-in
of the RAS port.
"""

from __future__ import annotations

import pytest

from nccl.told_gpus import ROWS, TOLD_GPUS, line_of
from support import Result, assert_unsaid, run_lockstep

HEAD = f"""
import os
os.environ["NCCL_PROFILER_PLUGIN"] = "libmine.so"
{TOLD_GPUS}
{ROWS}
from jax.experimental import multihost_utils
from nccl import ras_stand_in as ras
pids = [int(pid) for pid in np.ravel(multihost_utils.process_allgather(np.int32(os.getpid())))]

def late(seconds):
    if me == 1:
        time.sleep(float(seconds))
    return seconds

def body(v, seconds):
    wait = jax.pure_callback(late, jax.ShapeDtypeStruct((), "float32"), seconds)
    return jax.lax.psum(v * (1 + 0 * wait), "x")

step = jax.jit(  # STEP
    jax.shard_map(body, mesh=mesh, in_specs=(P("x"), P()), out_specs=P(), check_vma=False)
)

@jax.jit
def computed(v):
    # Still to be computed when `step` is called, which is so dispatched to another thread.
    a = jax.lax.fori_loop(0, 30, lambda _, a: a @ a / 900, jax.numpy.ones((900, 900)))
    return v + 0 * a[0, 0]

def answers(first, second):
    ranks = [ras.rank(n, pids[n], AllReduce=second if n == 1 else first) for n in range(count)]
    return ras.sends(ras.answer((ranks, [])))

def listen(*behaviours):
    port = ras.RasPort(*behaviours)
    os.environ["NCCL_RAS_ADDR"] = "127.0.0.1:%d" % port.address[1]
    return port

zero = np.float32(0)
for _ in range(3):
    jax.block_until_ready(step(x, zero))
"""
OPTIONS = ["--collectives", "gloo", "--stall-warning", "4", "--collective-timeout", "10"]


def run(program: str, n: int = 2, status: int = 1) -> Result:
    # A fork of an interpreter with jax has its hooks already, which HEAD is to change before.
    return run_lockstep(OPTIONS, HEAD + program, n=n, timeout=100, expect_status=status)


def test_a_process_that_does_not_come_is_told_with_its_line_and_the_counts_of_nccl() -> None:
    program = """
port = listen(answers(4, 3))
if me == 1:
    time.sleep(1000)  # LATE
jax.block_until_ready(step(x, zero))  # WAITS
"""
    result = run(program)
    late = line_of(HEAD + program, "# LATE")
    assert "waiting for" in result.stderr, result
    said = result.said_by_launcher
    assert "a collective over NCCL has waited" in said, result
    assert "has not arrived yet; process 0 waits" in said
    assert f"program.py:{late}" in said
    assert (
        "NCCL counts on 2 GPUs (3 equal answers of its RAS): 3 all-reduces of process 1, " in said
    )
    assert "process 0 waits in body (program.py" in said


@pytest.mark.full
def test_one_that_lags_inside_of_a_program_that_all_have_launched_is_named() -> None:
    program = """
port = listen(answers(4, 3))
result = step(computed(x), np.float32(1000))
jax.block_until_ready(result)  # WAITS
"""
    result = run(program)
    said, line = result.said_by_launcher, line_of(HEAD + program, "# WAITS")
    wanted = (
        "a collective over NCCL has waited",
        "process 1 lags: NCCL counts on 2 GPUs",
        "3 all-reduces of process 1, 4 of process 0",
        "process 1 launched last body (program.py",
        f"and is at program.py:{line}",
        "process 0 waits in body (program.py",
    )
    for words in wanted:
        assert words in said.partition("\n")[0], (words, result)
    warning = result.stderr.partition("lockstep: waiting for")[2]
    assert "process 1 lags: NCCL counts" in warning.partition("\n")[0], result
    assert "process 1 does meanwhile:" in warning
    assert f'program.py", line {line}' in warning.partition("meanwhile:")[2]


@pytest.mark.full
def test_the_launches_are_recorded_where_nccl_is_too_old_for_the_plug_in() -> None:
    old = HEAD.replace(
        'os.environ["NCCL_PROFILER_PLUGIN"] = "libmine.so"',
        "from lockstep.nccl import installed\ninstalled.version = lambda vendor: '2.26.2'",
    )
    assert old != HEAD
    program = "if me == 1:\n    time.sleep(1000)\njax.block_until_ready(step(x, zero))\n"
    result = run_lockstep(OPTIONS, old + program, timeout=100, expect_status=1)
    assert "has not arrived yet; process 0 waits in its 5th: body" in result.said_by_launcher, (
        result
    )


@pytest.mark.full
@pytest.mark.parametrize("behaviour", ["ras.sends(b'garbage')", "ras.slowly(b'x' * 9000)", "None"])
def test_a_hostile_port_changes_nothing(behaviour: str) -> None:
    program = f"""
port = listen({behaviour})
if me == 1:
    time.sleep(1000)
jax.block_until_ready(step(x, zero))
"""
    result = run(program)
    assert "has not arrived yet; process 0 waits" in result.said_by_launcher, result
    assert_unsaid("NCCL counts on", result.stderr)
    assert_unsaid("the watch of", result.stderr)


@pytest.mark.full
def test_a_job_that_computes_long_hears_nothing() -> None:
    program = """
port = listen(answers(4, 4))
jax.block_until_ready(step(computed(x), np.float32(13)))
print("done")
"""
    result = run(program, status=0)
    assert {process: lines[-1] for process, lines in result.by_process.items()} == {
        0: "done",
        1: "done",
    }
    assert_unsaid("over NCCL", result.stderr)
