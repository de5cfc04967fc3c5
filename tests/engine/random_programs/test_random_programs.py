"""Random programs over the engine, on jobs of several sizes, against NumPy."""

from __future__ import annotations

import collections
import os
import pathlib

import pytest

from engine.random_programs import auto, model, program
from lanes import sample
from support import run_lockstep

WORKER = pathlib.Path(__file__).parent / "worker.py"
TESTS = pathlib.Path(__file__).parents[2]

# XLA runs all that is in flight on one pool of max(cores, local devices) threads, and programs that
# wait in collectives can take each other's threads away. Gloo hangs on that too.
ENVIRON = {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
    "NPROC": "32",
}


def run(n: int, d: int, first: int, count: int, timeout: float) -> None:
    result = run_lockstep(
        ["--collective-timeout", "60"],
        WORKER,
        n=n,
        d=d,
        env=ENVIRON,
        program_args=["--first", str(first), "--count", str(count)],
        timeout=timeout,
        forked=True,
    )
    assert result.stdout.count(" 0 wrong") == n, result


@sample(
    ("n", "d", "count"), [(2, 4, 15), (1, 4, 40), (2, 1, 40), (2, 4, 40), (3, 2, 40), (4, 1, 40)], 0
)
def test_every_step_is_exact(n: int, d: int, count: int) -> None:
    run(n, d, first=100 * (10 * n + d), count=count, timeout=200)


@pytest.mark.slow
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_every_step_of_many_programs_is_exact(n: int, d: int) -> None:
    run(n, d, first=100_000 + 1000 * (10 * n + d), count=250, timeout=1200)


def test_a_seed_always_gives_the_same_program() -> None:
    for seed in range(50):
        assert program.generate(seed, 6) == program.generate(seed, 6)
        assert auto.generate(seed, 6) == auto.generate(seed, 6)


def test_the_programs_reach_every_operation_type_and_layout() -> None:
    programs = [program.generate(seed, 8) for seed in range(600)]
    steps = [step for p in programs for step in p.steps]
    ops = collections.Counter(step.op for step in steps)
    assert set(ops) >= {*model.OPERATIONS, "loop", "branch", "stack", "mix"}
    assert {p.dtype for p in programs} == set(program.DTYPES)
    assert {len(p.mesh) for p in programs} == {1, 2, 3}
    assert {len(p.devices) for p in programs} == set(range(1, 9))
    assert any(0 in p.shape for p in programs)
    assert any(max(p.shape, default=0) > 100_000 for p in programs)
    groups = [step.params["groups"] for step in steps if step.params.get("groups")]
    assert any(len({len(group) for group in g}) > 1 for g in groups)
    assert any(len(step.axes) == 2 for step in steps)
    pairs = [step.params["pairs"] for step in steps if step.op == "ppermute"]
    assert () in pairs
    assert any(source == target for p in pairs for source, target in p)
