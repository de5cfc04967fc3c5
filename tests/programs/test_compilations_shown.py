"""A compilation that takes long is shown to those who wait for the process."""

from __future__ import annotations

import json
import re
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
        for _ in range(600):
            if not os.path.exists(f"{sys.argv[1]}/seen"):
                time.sleep(0.1)

largest = jax.jit(lambda x: x.max())  # LAUNCHED
for _ in range(3):
    float(largest(x))  # FIRST
jax.monitoring.register_event_listener(compile_for_long)
if jax.process_index() == 0 and os.fork() == 0:
    time.sleep(4)
    for number, arguments in enumerate(SHOWN):
        folder = os.environ["LOCKSTEP_RUN_DIR"]
        file = open(f"{sys.argv[1]}/shown-{number}", "w")
        words = [word.replace("FOLDER", sys.argv[1]) for word in arguments.split()]
        command = [sys.executable, "-m", "lockstep", *words, folder]
        subprocess.run(command, stdout=file, env={**os.environ, "COLUMNS": "200"})
    open(f"{sys.argv[1]}/seen", "w").close()
    os._exit(0)
print(float(step(x)))
"""
SHOWN = ["report --json", "report", "report --trace FOLDER/trace.json", "top --once"]


@pytest.mark.full
@pytest.mark.parametrize("collectives", ["lockstep", "gloo"])
def test_what_a_process_compiles_and_launches_is_shown(tmp_path: Path, collectives: str) -> None:
    options = ["--collectives", collectives, "--stall-warning", "3"]
    program = f"SHOWN = {SHOWN}\n{PROGRAM}"
    mark = "# LAUNCHED" if collectives == "lockstep" else "# FIRST"
    line = f"program.py:{program[: program.index(mark)].count(chr(10)) + 1}"
    result = run_lockstep(
        options, program, d=1, program_args=[str(tmp_path)], timeout=120, forked=True
    )
    step = r"step \(program\.py:\d+\)"
    compiles = rf"has been compiling {step} for \d+ s"
    assert re.search(compiles, result.stderr), result
    document, text, _, top = ((tmp_path / f"shown-{n}").read_text() for n in range(len(SHOWN)))
    rows = {row["process"]: row for row in json.loads(document)["processes"]}
    assert str(rows[1]["compiles"]).startswith("step (program.py:"), rows
    assert rows[1]["compiles_for"] >= 1, rows
    assert rows[0]["compiles"] is None, rows
    assert re.search(rf"process 1 .*: {compiles}", text), text
    assert re.search(rf"compiles {step} *│ *\d+(\.\d+)? s", top), top
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    [slice] = [event for event in events if event["name"].startswith("compiles step (program.py:")]
    assert slice["pid"] == 1
    assert slice["dur"] > 1e6
    name = "_lambda" if collectives == "gloo" else "all-reduce (max) of 1 x f32"
    launched = [event for event in events if event["name"] == name]
    assert [event["pid"] for event in launched] == [0, 0, 0, 1, 1, 1], events
    assert {line in event["args"]["where"] for event in launched} == {True}, launched
    assert line in top


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path, waits = tmp_path / "waits.json", OwnWaits()
    waits.keep_in(str(path))
    waits.note_compilation("step (train.py:34)", 100.0)
    found = read_waits(path)
    assert found == Waits(compiles="step (train.py:34)", compiles_since=100.0)
    assert found.compilation == "compiles step (train.py:34)"
    assert found.at(140.2).compilation == "has been compiling step (train.py:34) for 40 s"
    waits.note_compilation("", 0.0)
    assert read_waits(path).compilation == ""
