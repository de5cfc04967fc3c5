"""Programs of many checks, each over several layouts: a job costs seconds, a check milliseconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.programs import checks
from lanes import sample
from support import Result, run_lockstep

PROGRAMS = Path(__file__).parent / "programs"


def assert_every_check_held(result: Result, program: Path, n: int) -> None:
    names = checks.names(program)
    assert len(names) > 3
    for process in range(n):
        lines = result.by_process.get(process, [])
        held = [line.removeprefix("ok ") for line in lines if line.startswith("ok ")]
        assert held == names, f"process {process}: {result}"


def run(name: str, n: int, d: int) -> Result:
    program = PROGRAMS / name
    result = run_lockstep(
        ["--collective-timeout", "30"], program, n=n, d=d, timeout=150, forked=True
    )
    assert_every_check_held(result, program, n)
    return result


@sample(("n", "d"), [(2, 2), (1, 4), (3, 1)], 0)
def test_every_collective_of_every_dtype(n: int, d: int) -> None:
    result = run("collectives.py", n, d)
    digests = {
        line for lines in result.by_process.values() for line in lines if line.startswith("digest ")
    }
    assert len(digests) == 1, "sums of floating-point numbers differ between processes"


@pytest.mark.full
@pytest.mark.parametrize(("n", "d"), [(2, 2), (2, 4), (4, 1)])
def test_groups_that_look_alike_are_distinguished(n: int, d: int) -> None:
    run("meshes.py", n, d)


@pytest.mark.full
def test_computations_over_some_of_the_processes() -> None:
    run("subsets.py", 3, 2)


def test_the_ways_to_write_a_program() -> None:
    run("ways.py", 2, 2)


@pytest.mark.full
def test_more_processes_than_cores_make_progress() -> None:
    program = """
        import jax, jax.numpy as jnp, numpy as np
        jax.distributed.initialize()
        n, me = jax.process_count(), jax.process_index()
        ring = [(i, (i + 1) % n) for i in range(n)]
        step = jax.pmap(
            lambda a: (jax.lax.psum(a, "i"), jax.lax.ppermute(a, "i", ring)), axis_name="i"
        )
        for k in range(30):
            total, moved = step(np.full((1, 100), me + k, np.int32))
        assert (np.asarray(total.addressable_data(0)) == n * (n - 1) // 2 + n * 29).all()
        assert (np.asarray(moved.addressable_data(0)) == (me - 1) % n + 29).all()
        print("right")
    """
    result = run_lockstep([], program, n=16, d=1, timeout=200, forked=True)
    assert result.by_process == {process: ["right"] for process in range(16)}
