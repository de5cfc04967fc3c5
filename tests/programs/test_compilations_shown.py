"""A compilation that takes long is shown to those who wait for the process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.flight_recorder.waits import Waits, read_waits
from lockstep.watchdog.own_waits import OwnWaits
from support import run_lockstep

PROGRAM = """
import os, subprocess, sys, time
import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.distributed.initialize()
rows = NamedSharding(jax.make_mesh((2,), ("x",), (AxisType.Auto,)), P("x"))
x = jax.make_array_from_callback((8,), rows, lambda index: np.ones(8, np.float32)[index])

@jax.jit
def step(x):
    return x.sum()

def compile_for_long(event, **_):
    if jax.process_index() == 1 and event.endswith("compile_requests_use_cache"):
        time.sleep(7)

jax.monitoring.register_event_listener(compile_for_long)
if os.fork() == 0:
    time.sleep(4)
    report = [sys.executable, "-m", "lockstep", "report", "--json", os.environ["LOCKSTEP_RUN_DIR"]]
    if jax.process_index() == 0:
        print(subprocess.run(report, capture_output=True, text=True).stdout.replace(chr(10), " "))
    os._exit(0)
print(float(step(x)))
"""


@pytest.mark.full
@pytest.mark.parametrize("collectives", ["lockstep", "gloo"])
def test_a_process_that_compiles_is_reported_as_such(tmp_path: Path, collectives: str) -> None:
    options = ["--collectives", collectives, "--stall-warning", "3"]
    result = run_lockstep(
        options, PROGRAM, d=1, program_args=[str(tmp_path)], timeout=90, forked=True
    )
    assert "compiles step (program.py:" in result.stderr, result
    [found] = [line for line in result.by_process[0] if line.startswith("{")]
    rows = {row["process"]: row for row in json.loads(found)["processes"]}
    assert str(rows[1]["compiles"]).startswith("step (program.py:"), rows
    assert rows[0]["compiles"] is None, rows


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path, waits = tmp_path / "waits.json", OwnWaits()
    waits.keep_in(str(path))
    waits.note_compilation("step (train.py:34)", 100.0)
    found = read_waits(path)
    assert found == Waits(compiles="step (train.py:34)", compiles_since=100.0)
    assert found.compilation == "compiles step (train.py:34)"
    waits.note_compilation("", 0.0)
    assert read_waits(path).compilation == ""
