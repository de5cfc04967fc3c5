"""Programs that run under ``lockstep run`` as they run on stock JAX without a launcher.

gloo is what Lockstep falls back to, so under the launcher it must do all that stock JAX does over
gloo. Each program runs on stock JAX over gloo, then under the launcher, and says the same.
"""

from __future__ import annotations

import ast
import functools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from processes import clean_environ
from support import Run, run_lockstep

STOCK_JOB = Path(__file__).parents[2] / "benchmarks" / "stock_job.py"
HEAD = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp, numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

def say(*what):
    print("says", repr(what), file=sys.stderr, flush=True)  # gloo writes to stdout

def attempt(name, call):
    try:
        call()
        say(name, "passed")
    except Exception as error:
        say(name, type(error).__name__, str(error).partition(":")[0])

jax.distributed.initialize()
me, client = jax.process_index(), distributed.global_state.client
mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(AxisType.Auto,))

def rows(size=16):
    return jax.device_put(jnp.arange(size, dtype=jnp.float32), NamedSharding(mesh, P("x")))

mean = jax.jit(jnp.mean)
centred = jax.jit(lambda x: x - jnp.mean(x))
"""

PROGRAMS = {
    # Most runs hung: the process that does not read the result ended, and took its part with it.
    "a result that only one process reads": """
        x = mean(rows())
        if me == 0:
            say(float(x))
        """,
    "results that no process reads": """
        x = rows(1 << 20)
        for _ in range(20):
            x = centred(x)
        mean(x)
        del x
        if me == 0:
            say(abs(float(mean(centred(rows(1 << 20))))) < 1)
        else:
            mean(centred(rows(1 << 20)))
        """,
    "the program leaves the job itself": """
        x = rows(1 << 20)
        for _ in range(20):
            x = centred(x)
        x = mean(x)
        if me == 0:
            say(abs(float(x)) < 1)
        jax.distributed.shutdown()
        say("left")
        """,
    "a process goes on alone": """
        say(float(mean(rows())))
        if me == 1:
            time.sleep(4)
            client.key_value_set("key", "value")
            say(client.blocking_key_value_get("key", 20000), float(jnp.ones(3).sum()))
        """,
    "barriers that fail": """
        if me == 0:
            client.blocking_key_value_get("1 has come", 20000)
        attempt("no part in it", lambda: client.wait_at_barrier("of 0", 2000, process_ids=[0]))
        if me == 1:
            client.key_value_set("1 has come", "")
        client.wait_at_barrier("both", 20000)
        if me == 1:
            client.blocking_key_value_get("0 has given up", 20000)
        attempt("1 is late", lambda: client.wait_at_barrier("late", 500))
        if me == 0:
            client.key_value_set("0 has given up", "")
        client.wait_at_barrier("both", 20000)
        attempt("another", lambda: client.wait_at_barrier("other", 20000))
        """,
    "a preemption": """
        for step in range(400):
            if step == 5 and me == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.02)
            if multihost_utils.reached_preemption_sync_point(step):
                say("saves", step > 5)
                break
        """,
}
SETTINGS = """
        jax.devices()
        say({name: str(value) for name, value in jax.config.values.items()})
        masks = dict(line.split(":") for line in open("/proc/self/status") if line[:3] == "Sig")
        caught = int(masks["SigCgt"], 16)
        names = "HUP INT QUIT TERM USR1 USR2 PIPE CHLD".split()
        numbers = {name: getattr(signal, f"SIG{name}") for name in names}
        say(
            {name: str(signal.getsignal(number)) for name, number in numbers.items()},
            {name: caught >> number - 1 & 1 for name, number in numbers.items()},
            [masks[name].strip() for name in ("SigBlk", "SigIgn")],
            [t.name for t in threading.enumerate() if not t.name.startswith("lockstep-")],
        )
        """
PROGRAMS["settings"] = PROGRAMS["barriers that fail"] + SETTINGS
CHANGED = {"jax_enable_recoverability"}
"""What Lockstep changes in ``jax.config``: docs/design/plug.md says why."""


def _said(lines: Sequence[str]) -> list[Any]:
    return [ast.literal_eval(line[5:]) for line in lines if line.startswith("says ")]


def _program(name: str) -> str:
    return HEAD + "\n".join(line[8:] for line in PROGRAMS[name].splitlines())


@functools.cache
def stock(name: str, devices: int) -> dict[int, list[Any]]:
    """What the processes say on stock JAX over gloo."""
    with tempfile.TemporaryDirectory(prefix="test-") as folder:
        file = Path(folder, "program.py")
        file.write_text(_program(name))
        environ = clean_environ(JAX_NUM_CPU_DEVICES=str(devices))
        command = [sys.executable, str(STOCK_JOB), "2", str(file)]
        with Run(command, environ, Path(folder)) as run:
            result = run.finish(60)
    assert result.status == 0, result
    return {process: _said(result.by_process.get(process, [])) for process in range(2)}


def launched(name: str, devices: int, collectives: str) -> dict[int, list[Any]]:
    options = ["--collectives", collectives]
    environ = {"JAX_PLATFORMS": "cpu"}
    result = run_lockstep(options, _program(name), d=devices, env=environ)
    return {process: _said(result.stderr_by_process.get(process, [])) for process in range(2)}


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "devices", "collectives"),
    [
        ("a result that only one process reads", 2, "gloo"),
        ("a result that only one process reads", 1, "gloo"),
        ("a result that only one process reads", 1, "mpi"),
        ("a result that only one process reads", 2, "lockstep"),
        ("results that no process reads", 2, "gloo"),
        ("results that no process reads", 1, "gloo"),
        ("results that no process reads", 1, "mpi"),
        ("results that no process reads", 2, "lockstep"),
        ("the program leaves the job itself", 2, "gloo"),
        ("the program leaves the job itself", 1, "mpi"),
        ("the program leaves the job itself", 2, "lockstep"),
        ("a process goes on alone", 2, "gloo"),
        ("a process goes on alone", 1, "lockstep"),
        ("barriers that fail", 1, "lockstep"),
        ("a preemption", 1, "gloo"),
        ("a preemption", 1, "lockstep"),
    ],
)
def test_a_program_says_what_it_says_on_stock_jax(
    name: str, devices: int, collectives: str
) -> None:
    expected = stock(name, devices)
    assert expected[0], expected
    assert launched(name, devices, collectives) == expected


@pytest.mark.full
def test_settings_signals_and_barriers_are_those_of_stock_jax() -> None:
    expected, found = stock("settings", 1), launched("settings", 1, "gloo")
    for process in range(2):
        *barriers, (of_stock,), signals = expected[process]
        *our_barriers, (ours,), our_signals = found[process]
        assert {name for name in of_stock if ours[name] != of_stock[name]} == CHANGED
        assert our_signals == signals
        assert our_barriers == barriers
