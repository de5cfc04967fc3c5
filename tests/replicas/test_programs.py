"""``--check-replicas``: the arguments of programs, under any implementation of the collectives."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanes import sample
from support import Result, assert_unsaid, run_lockstep

HEAD = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
"""
START = """
import os, jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from replicas.copies import flip_bit, replicated
jax.distributed.initialize()
me = jax.process_index()
mesh = jax.make_mesh((jax.device_count(),), ("x",))
rows = NamedSharding(mesh, P("x"))
x = jax.make_array_from_process_local_data(rows, np.ones((jax.local_device_count(), 4), np.float32))

@jax.jit
def step(params, unused, x):
    return jax.tree.map(lambda p: p - 0.1 * (x @ params["w"]).sum(), params)

params = {"b": np.zeros(5, np.float32), "w": np.ones((4, 3), np.float32)}
params = {name: replicated(mesh, value) for name, value in params.items()}
"""
BACKENDS = [("lockstep", 2), ("gloo", 2), ("gloo", 1), ("lockstep", 1)]


def run(
    program: str, *options: str, status: int = 0, n: int = 2, d: int = 2, timeout: float = 100
) -> Result:
    return run_lockstep(
        list(options),
        HEAD + START + program,
        n=n,
        d=d,
        timeout=timeout,
        expect_status=status,
        forked=True,
    )


def errors(result: Result) -> dict[int, list[str]]:
    """The lines of the error on each process that has printed it."""
    return {
        process: lines[next(i for i, line in enumerate(lines) if "--check-replicas: " in line) :]
        for process, lines in result.by_process.items()
        if any("--check-replicas: " in line for line in lines)
    }


CAUGHT = """
import lockstep
try:
    for i in range(20):
        if i == 12 and me == 1:
            for shard in params["w"].addressable_shards:
                flip_bit(shard.data, 4 * 7 + 2, 3)
        params = step(params, 1, x)
        jax.block_until_ready(params)
except lockstep.DifferenceError as error:
    print(error, flush=True)
"""


@sample(("collectives", "d"), BACKENDS, 0)
def test_a_flipped_bit_is_found_at_the_next_check_and_named(collectives: str, d: int) -> None:
    result = run(CAUGHT, "--collectives", collectives, "--check-replicas", "5", d=d)
    found = errors(result)
    assert found.keys() == {0, 1}, result
    assert found[0] == found[1]
    first, *_ = found[0]
    assert first.startswith("--check-replicas: step, call 16, program.py:"), result
    assert " argument params['w'] (float32[4, 3]) is not the same on processes 0-1: at [" in first


@pytest.mark.full
def test_calls_with_shardings_that_are_spelled_differently_are_counted_together() -> None:
    """JAX compiles the program for each spelling; the results have the same fingerprint."""
    spelled = """
columns = NamedSharding(mesh, P("x", None))
own = np.ones((jax.local_device_count(), 4), np.float32)
spelled = [x, jax.make_array_from_process_local_data(columns, own)]
"""
    program = spelled + CAUGHT.replace("step(params, 1, x)", "step(params, 1, spelled[i % 2])")
    result = run(program, "--check-replicas", "5", d=1)
    found = errors(result)
    assert found.keys() == {0, 1}, result
    assert found[0][0].startswith("--check-replicas: step, call 16, program.py:"), result


@pytest.mark.full
def test_each_call_is_checked_with_one() -> None:
    first, *_ = errors(run(CAUGHT, "--check-replicas=1"))[0]
    # JAX compiles the function again at its second call, whose arguments have another sharding.
    assert "step, call 12, " in first or "step, call 13, " in first
    assert "at [2, 1] " in first


@pytest.mark.full
def test_with_zero_nothing_is_compared() -> None:
    assert errors(run(CAUGHT, "--check-replicas", "0")) == {}


SEEDS = """
local = {"b": np.zeros(5, np.float32),
         "w": np.random.default_rng(me).normal(size=(4, 3)).astype(np.float32)}
everywhere = NamedSharding(mesh, P())
if MADE:
    params = {k: jax.make_array_from_process_local_data(everywhere, v) for k, v in local.items()}
else:
    params = {k: jnp.asarray(v) for k, v in local.items()}  # JAX takes them for replicated
step(params, 1, x)
"""


@pytest.mark.full
@sample("made", [True, False], 0)
def test_params_from_a_seed_of_each_process_stop_the_first_step(made: bool) -> None:
    result = run(f"MADE = {made}\n{SEEDS}", "--check-replicas", status=1)
    [first] = [line for line in result.said_by_launcher.splitlines() if "DifferenceError" in line]
    assert "--check-replicas: step, call 1, program.py:" in first, result
    assert "argument params['w'] (float32[4, 3]) is not the same on processes 0-1" in first
    assert "Likely: each process made the array by itself, from a seed" in str(result)


AXES = """
import lockstep
auto = (jax.sharding.AxisType.Auto,) * 2
mesh = jax.make_mesh((2, jax.local_device_count()), ("process", "device"), axis_types=auto)
w = replicated(mesh, np.arange(8, dtype=np.float32), P("device"))
key = jax.jit(lambda: jax.random.key(0), out_shardings=NamedSharding(mesh, P()))()

@jax.jit
def total(key, w):
    return w.sum() + jax.random.uniform(key)

total(key, w).block_until_ready()
if me == 0:
    flip_bit(w.addressable_shards[1].data, 4 + 3, 6)
try:
    total(key, w)
except lockstep.DifferenceError as error:
    print(error, flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize("collectives", ["lockstep", "gloo"])
def test_a_shard_that_is_replicated_along_one_axis(collectives: str) -> None:
    result = run(AXES, "--collectives", collectives, "--check-replicas", "1")
    for lines in errors(result).values():
        assert "argument w (float32[8]) is not the same on processes 0-1: at [5] " in lines[0]
    assert errors(result).keys() == {0, 1}, result


ALONE = """
w = params["w"]
if me == 0:
    print("norm", float(jnp.linalg.norm(w)), flush=True)  # no collective: process 0 may do it
own = jax.jit(lambda y: y + 1)(jnp.full(3, float(me)))
jax.pmap(lambda y: jax.lax.psum(y, "i"), axis_name="i", devices=jax.local_devices())(
    np.full(jax.local_device_count(), float(me))
)
params = step(params, 1, x)
print("done", float(params["b"][0]), flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize("collectives", ["lockstep", "gloo"])
def test_programs_of_one_process_are_left_alone(collectives: str) -> None:
    result = run(ALONE, "--collectives", collectives, "--check-replicas", "1")
    assert all(any("done" in line for line in result.by_process[i]) for i in (0, 1)), result
    assert_unsaid("--check-replicas: ", result)


EFFECTS = """
@jax.jit
def noisy(params, x):
    jax.debug.print("sum {}", x.sum(), ordered=False)
    return (x @ params["w"]).sum()

donating = jax.jit(lambda p, x: p + x.sum(), donate_argnums=0)
compiled = step.lower(params, 1, x).compile()
kept = replicated(mesh, np.zeros(5, np.float32))
for _ in range(3):
    noisy(params, x).block_until_ready()
    compiled(params, 1, x)
    kept = donating(kept, x)
with jax.set_mesh(mesh):
    step(params, 1, x)
print("done", float(kept[0]), flush=True)
flip_bit(params["w"].addressable_shards[0].data, 0, me)
noisy(params, x)
"""


@pytest.mark.full
def test_programs_with_effects_donations_and_ahead_of_time() -> None:
    result = run(EFFECTS, "--check-replicas", "1", status=1)
    assert all("done" in "".join(result.by_process[i]) for i in (0, 1)), result
    assert "--check-replicas: noisy, call 4" in result.said_by_launcher, result
    assert "argument params['w']" in result.said_by_launcher


OTHER_SHAPE = """
size = 4 + me
y = replicated(mesh, np.ones(size, np.float32))
jax.jit(lambda y, x: y.sum() + x.sum())(y, x).block_until_ready()
"""
OTHER_PROGRAM = """
def first(y, x): return y.sum() + x.sum()
def second(y, x): return y.max() + x.max()
f, g = jax.jit(first), jax.jit(second)
for h in (f, g) if me else (g, f):
    h(params["w"], x).block_until_ready()
"""
LEAVES = """
for i in range(3 if me == 0 else 2):
    params = step(params, 1, x)
    jax.block_until_ready(params)
"""


@pytest.mark.full
@sample(
    ("program", "said"),
    [
        (OTHER_SHAPE, "these must be the same"),
        (OTHER_PROGRAM, "these must be the same"),
        (LEAVES, "ended (exit code 0) after"),
    ],
    1,
)
def test_the_guard_names_what_the_check_cannot_compare(program: str, said: str) -> None:
    """The check waits for no process that will not come."""
    result = run(program, "--check-replicas", "1", status=1, timeout=60)
    assert said in str(result), result


@pytest.mark.full
def test_a_check_that_fails_changes_nothing() -> None:
    broken = """
from lockstep.replicas import hashes
def of(pieces): raise KeyError("planted")
hashes.of = of
for _ in range(3):
    params = step(params, 1, x)
print("done", float(params["b"][0]), flush=True)
"""
    result = run(broken, "--check-replicas", "1")
    assert all(any("done" in line for line in result.by_process[i]) for i in (0, 1)), result
    said = "\n".join(result.stderr_by_process[1])
    assert said.count("lockstep: --check-replicas: step is not checked: KeyError: 'planted'.") == 1
