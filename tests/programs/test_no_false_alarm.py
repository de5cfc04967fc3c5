"""Sound programs over gloo, whose launches are compared: nothing is said, and nothing ends early.

Over the engine: tests/faults/test_no_false_alarm.py. JAX's own tests:
scripts/jax_multiprocess_tests.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.test_examples import EXAMPLES, EXAMPLES_ALONE, LINES
from faults.harness import PROGRAMS
from of_this_jax import needs_float16_pass, without_warnings
from pytest_sessions import project
from support import Result, assert_unsaid, run_lockstep

GLOO = ["--collectives", "gloo"]
LOW_PRECISION = Path(__file__).parents[1] / "hlo" / "programs" / "low_precision.py"


def assert_nothing_said(result: Result) -> None:
    assert_unsaid("lockstep", "".join(without_warnings(result.stderr)))


@pytest.mark.full
@pytest.mark.parametrize(("n", "d"), [(2, 2), (4, 1)])
def test_a_sound_program(n: int, d: int) -> None:
    given = ["", "gloo"]
    result = run_lockstep(
        GLOO, PROGRAMS / "sound.py", n=n, d=d, program_args=given, timeout=150, forked=True
    )
    assert [line for line in result.stdout.splitlines() if line.endswith("] finished")], result
    assert_nothing_said(result)


OF_ITS_OWN = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
me = jax.process_index()
own = Mesh(np.array(jax.local_devices()[::-1 if me else 1]), ("x",), axis_types=(AxisType.Auto,))
rows = NamedSharding(own, P("x"))

def total(x):
    return jax.lax.psum(x * (me + 2.0), "x")  # a constant of each process

summed = jax.jit(jax.shard_map(total, mesh=own, in_specs=P("x"), out_specs=P()))
for i in range(30 + 40 * me):  # more of them in one process than in the other
    x = jax.device_put(np.ones(4, np.float32), rows)
    assert float(summed(x).sum()) == 4 * (me + 2)
    if me:
        assert float(jax.jit(lambda x: x.max() * i)(x)) == i
world = NamedSharding(Mesh(np.array(jax.devices()), ("x",), axis_types=(AxisType.Auto,)), P("x"))
y = jax.make_array_from_callback((8,), world, lambda at: np.ones(8, np.float32)[at])
for i in range(3):
    print(float(jax.jit(jnp.sum)(y)))
"""


@pytest.mark.full
@pytest.mark.parametrize("collectives", ["gloo", "lockstep"])
def test_programs_on_the_devices_of_one_process(collectives: str) -> None:
    options = ["--collectives", collectives]
    result = run_lockstep(options, OF_ITS_OWN, d=2, timeout=120, forked=True)
    for process in (0, 1):
        assert result.by_process[process][-3:] == ["8.0"] * 3, result
    assert_nothing_said(result)


TWO_THREADS = """
import random, threading, time
import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
count, each = jax.process_count(), jax.local_device_count()
mesh = jax.make_mesh((count, each), ("process", "own"), axis_types=(AxisType.Auto,) * 2)
sharding = NamedSharding(mesh, P("process", "own"))
x = jax.make_array_from_process_local_data(sharding, np.ones((1, each), np.float32))

def total(axes, out):
    summed = lambda x: jax.lax.psum(x, axes)
    return jax.jit(jax.shard_map(summed, mesh=mesh, in_specs=P("process", "own"), out_specs=out))

def work(call, value, pause):
    for _ in range(100):
        y = call(x)
        time.sleep(0.01 * pause.random())
        assert float(np.asarray(y.addressable_data(0)).item()) == value

pauses = [random.Random(2 * jax.process_index() + i) for i in range(2)]
own = total("own", P("process"))
thread = threading.Thread(target=work, args=(own, each, pauses[0]))
thread.start()
work(total(("process", "own"), P()), count * each, pauses[1])
thread.join()
print("right")
"""


@pytest.mark.full
def test_a_thread_whose_collectives_stay_in_its_process() -> None:
    """Such programs are on all devices, and a thread may launch them at any time."""
    result = run_lockstep(GLOO, TWO_THREADS, d=2, timeout=120, forked=True)
    assert result.stdout.count("right") == 2, result
    assert_nothing_said(result)


@pytest.mark.full
@pytest.mark.parametrize("example", EXAMPLES_ALONE)
def test_an_example(example: str) -> None:
    result = run_lockstep(GLOO, EXAMPLES / example, d=4, timeout=200, forked=True)
    for line in LINES[example]:
        assert result.stdout.count(line) == 2, (line, result)
    assert_nothing_said(result)


@pytest.mark.full
@pytest.mark.parametrize(
    ("example", "arguments"),
    [
        ("checkpoint_restart.py", ["--steps", "20"]),
        ("flax_digits.py", ["--epochs", "8", "--kill-at", "25"]),
    ],
)
def test_an_example_that_is_started_again(
    example: str, arguments: list[str], tmp_path: Path
) -> None:
    options = [*GLOO, "--max-restarts", "1"]
    given = ["--folder", str(tmp_path), *arguments]
    result = run_lockstep(
        options, EXAMPLES / example, d=2, program_args=given, timeout=240, forked=True
    )
    for line in LINES[example]:
        assert result.stdout.count(line) == 2, (line, result)
    assert_unsaid("another program than", result.stderr)


@pytest.mark.full
@needs_float16_pass
def test_narrow_types() -> None:
    given = ["--dtypes", "float16,bfloat16,float8_e4m3fn"]
    result = run_lockstep(GLOO, LOW_PRECISION, d=2, program_args=given, timeout=200, forked=True)
    assert result.stdout.count("derivatives right") == 2, result
    assert_nothing_said(result)


SUITE = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import pytest
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    @pytest.fixture
    def x():
        mesh = jax.make_mesh((jax.device_count(),), ("x",), (AxisType.Auto,))
        rows = NamedSharding(mesh, P("x"))
        return jax.make_array_from_callback((8,), rows, lambda at: np.arange(8.0)[at])

    @pytest.mark.parametrize("function", [jnp.sum, jnp.max, jnp.min])
    def test_reductions(x, function):
        assert float(jax.jit(function)(x)) == function(np.arange(8.0))

    def test_own():
        assert jax.jit(lambda: jax.process_index() + jnp.ones(2))().sum() >= 2
"""


@pytest.mark.full
def test_a_suite_under_auto_init(tmp_path: Path) -> None:
    folder = project(tmp_path, SUITE)
    result = run_lockstep(
        [*GLOO, "--auto-init"],
        Path("-m"),
        d=2,
        program_args=["pytest", str(folder)],
        timeout=120,
        forked=True,
    )
    assert "rank 0: 4 passed" in result.stdout, result
    assert_unsaid("another program than", result.stderr)
