"""Programs that are long when packed: one process sends each, and a difference is explained."""

from __future__ import annotations

import collections
import re

import pytest

from faults.test_programs_differ import HEAD
from lanes import full
from support import run_lockstep

PROGRAM = """
from lockstep.job import kv_store
from lockstep.programs import compilations, modules

table = np.random.default_rng(7).random(30_000, "float32")

put = kv_store.Store.put
def noted(store, name, value, overwrite=False):
    if name.startswith(modules._PREFIX):
        print("sends", len(compilations.Program.from_json(value).module), name, flush=True)
    return put(store, name, value, overwrite)
kv_store.Store.put = noted

@jax.jit
def alike(x):
    return x.sum() + table

until = time.monotonic() + 60
alike(x).block_until_ready()
while not modules._published and time.monotonic() < until:
    time.sleep(0.05)
alike(x).block_until_ready()

scale = 3.0 if me == 1 else 2.0

@jax.jit
def step(x):
    return (x.sum() + table).sum() * scale  # HERE

float(step(x))
time.sleep(60)
"""
SENDS = re.compile(r"sends (\d+) (\S+)")
EXPLAINED = r"process 1 runs .* processes 0, 2: in step \(program.py:\d+\) a constant is 3.0 on "


@pytest.mark.parametrize("collectives", [full("lockstep"), "gloo"])
def test_one_process_sends_a_long_program_and_a_difference_is_explained(collectives: str) -> None:
    options, program = ["--collectives", collectives], HEAD + PROGRAM
    result = run_lockstep(options, program, n=3, d=1, timeout=120, expect_status=1, forked=True)
    sent = [found for found in map(SENDS.search, result.stdout.splitlines()) if found]
    assert all(int(one[1]) > 1 << 16 for one in sent), result
    times = collections.Counter(one[2] for one in sent)
    assert list(times.values()) == [1, 1, 1], f"{times}: {result}"
    headline = result.said_by_launcher.splitlines()[0]
    assert re.search(EXPLAINED, headline), result
    assert "# HERE" in headline, result
