"""What watches programs never changes what they compute: switched off, or with a bug of its own."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest

from lanes import full, sample
from support import assert_unsaid, run_lockstep

PROGRAM = """
import functools, hashlib, pickle, sys, threading
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

exec(sys.argv[1])  # a bug in what watches
jax.distributed.initialize()
me, count = jax.process_index(), jax.device_count()
mesh = jax.make_mesh((count,), ("x",), (AxisType.Auto,))
rows, everywhere = (NamedSharding(mesh, spec) for spec in (P("x"), P()))
drawn = np.random.default_rng(7)

def array(*shape):
    whole = drawn.normal(size=shape).astype("float32")
    return jax.make_array_from_callback(shape, rows, lambda at: whole[at])

def say(name, tree):
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        for shard in sorted(leaf.addressable_shards, key=lambda one: one.device.id):
            digest.update(np.asarray(shard.data).tobytes())
    print(name, digest.hexdigest()[:16], flush=True)

def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w["a"]) @ w["b"])

@functools.partial(jax.jit, donate_argnums=0)
def train(w, x):
    value, slope = jax.value_and_grad(loss)(w, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, slope), value

@functools.partial(jax.jit, static_argnums=1)
def power(x, n):
    return (x ** n).sum()

x = array(4 * count, 8)
first = {"a": drawn.normal(size=(8, 16)), "b": drawn.normal(size=(16,))}
w = jax.device_put(jax.tree.map(np.float32, first), everywhere)
for step in range(70):
    w, value = train(w, x)
say("trained", (w, value))
say("powers", [power(x, n) for n in (2, 3, 2, 3)])

lowered = jax.jit(loss).lower(w, x)
compiled = lowered.compile()
saved = pickle.dumps(serialize_executable.serialize(compiled))
loaded = serialize_executable.deserialize_and_load(*pickle.loads(saved))
exported = jax.jit(jax.export.export(jax.jit(loss))(w, x).call)
say("ahead of time", [call(w, x) for call in (compiled, loaded, exported) for _ in range(2)])

over = functools.partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
say("mapped", jax.jit(over(lambda a: a * jax.lax.psum(a, "x")))(x))
say("own", jax.jit(lambda a: a * (me + 1))(jnp.arange(3.0)) / (me + 1))
with jax.debug_nans(True):
    say("checked", power(x, 4))
try:
    jax.jit(lambda a: a @ jnp.ones((3, 3)))(x)
except TypeError:
    print("raised at the trace")
thread = threading.Thread(target=lambda: say("thread", power(x, 2)))
thread.start()
thread.join()
"""


NUMBERS = ("trained", "powers", "ahead", "mapped", "own", "checked", "raised", "thread")


def computed(*options: str, bug: str = "", env: Mapping[str, str] | None = None) -> dict[int, Any]:
    """What each process has computed; fails where the job does not end well."""
    result = run_lockstep(
        list(options), PROGRAM, d=2, program_args=[bug], timeout=150, env=env, forked=True
    )
    assert_unsaid("another program", result.stderr)
    found = {
        process: [line for line in lines if line.startswith(NUMBERS)]
        for process, lines in result.by_process.items()
    }
    assert {len(lines) for lines in found.values()} == {len(NUMBERS)}, result
    return found


@functools.cache
def unwatched(collectives: str) -> dict[int, Any]:
    off = {"LOCKSTEP_RECORD": "0"}
    return computed("--collectives", collectives, "--check-programs", "off", env=off)


SWITCHES = [
    ([], {}),
    (["--check-programs", "warn"], {}),
    (["--check-programs", "off"], {}),
    ([], {"LOCKSTEP_RECORD": "0"}),
    (["--strict"], {}),
    (["--check-replicas", "1"], {}),
]


@pytest.mark.full
@pytest.mark.parametrize("collectives", ["lockstep", "gloo"])
@pytest.mark.parametrize(("options", "env"), SWITCHES)
def test_the_same_is_computed_as_without_a_watch(
    options: list[str], env: dict[str, str], collectives: str
) -> None:
    assert computed("--collectives", collectives, *options, env=env) == unwatched(collectives)


FAILS = """
from lockstep.programs import compilations, jitted, launches, modules
from lockstep.watchdog import launch_comparison, own_waits, without_collectives
def fail(*_, **__):
    raise ZeroDivisionError("a bug of Lockstep's")
{} = fail
"""
BUGS = [
    "compilations._described",
    "compilations.identity",
    "compilations.of_executable",
    "compilations.current",
    "compilations.fresh",
    "compilations.frames.innermost",
    "own_waits.OwnWaits.note_compilation",
    "jitted._signature",
    "jitted.Functions.learn",
    "jitted.Functions.launched_by",
    "launches.Record._add",
    "launches.Record._of_executable",
    "compilations._described_executable",
    "launches.Record.begin",
    "launches.Record.end",
    "launches.Record.look",
    "modules.publish",
    "launch_comparison.Launches.differ",
    "without_collectives.Comparison.difference",
    "compilations.made",
]


@pytest.mark.full
@pytest.mark.parametrize("collectives", [full("lockstep"), "gloo"])
@sample("bug", BUGS, BUGS.index("launches.Record.look"))
def test_the_same_is_computed_with_a_bug_in_the_watch(bug: str, collectives: str) -> None:
    found = computed("--collectives", collectives, bug=FAILS.format(bug))
    assert found == unwatched(collectives)
