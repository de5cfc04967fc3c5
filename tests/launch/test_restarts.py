"""``--max-restarts``: the job again, until it ends well, is stopped, or has failed too often."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support import assert_unsaid, run_lockstep, start_lockstep, wait_until

START = """
import os, pathlib, sys, time
me, attempt = int(os.environ["LOCKSTEP_PROCESS_ID"]), int(os.environ["LOCKSTEP_ATTEMPT"])
here = pathlib.Path(os.environ["TMPDIR"])
print("attempt", attempt, flush=True)
"""


def test_a_job_starts_again_until_it_ends_well(tmp_path: Path) -> None:
    program = START + "if me == 1 and attempt < 2: sys.exit(5)"
    logs = tmp_path / "logs"
    result = run_lockstep(["--max-restarts", "3", "--log-dir", str(logs)], program, forked=True)
    assert "attempt 2" in result.by_process[0]
    assert result.said_by_launcher.count("process 1 of 2 failed first: sys.exit(5)") == 2
    assert "attempt 0 has failed; starting again (3 restarts left)" in result.said_by_launcher
    assert "attempt 1 has failed; starting again (2 restarts left)" in result.said_by_launcher
    [run] = logs.iterdir()
    for attempt in range(3):
        text = (run / f"attempt_{attempt}/process_1/stdout.log").read_text()
        assert text == f"attempt {attempt}\n"


def test_a_job_that_fails_too_often_ends_with_its_last_status() -> None:
    program = START + "sys.exit(10 + attempt) if me == 0 else time.sleep(100)"
    options = ["--max-restarts", "1", "--grace", "0.5"]
    result = run_lockstep(options, program, expect_status=11, forked=True)
    assert result.by_process[0] == ["attempt 0", "attempt 1"]
    # Once for each attempt, and the last line.
    assert result.said_by_launcher.count("failed first") == 3
    assert result.said_by_launcher.count("starting again (1 restart left)") == 1


COMPILES = """
import collections, os, sys
import jax, jax.monitoring, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name.split("/")[-1]]))
jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(AxisType.Auto,))
rows = np.arange(8, dtype=np.float32)
x = jax.make_array_from_callback((8,), NamedSharding(mesh, P("x")), lambda i: rows[i])
total = float(jax.jit(lambda x: jnp.tanh(x).sum())(x))
print(os.environ["LOCKSTEP_ATTEMPT"], events["cache_misses"], events["cache_hits"], total.hex())
sys.exit(os.environ["LOCKSTEP_ATTEMPT"] == "0")
"""


@pytest.mark.full
@pytest.mark.parametrize("hosts", [False, True])
def test_what_an_attempt_has_compiled_the_next_one_loads(hosts: bool) -> None:
    where = ["--hosts", "localhost:2"] if hosts else []
    result = run_lockstep([*where, "--max-restarts", "1"], COMPILES, timeout=100, forked=True)
    for process in (0, 1):
        first, second = (line.split() for line in result.by_process[process])
        assert (first[0], second[:2], second[3]) == ("0", ["1", "0"], first[3])
        assert int(second[2]) == int(first[1]) + int(first[2]) > 0
    assert "cpu_aot_loader" not in result.stderr


@pytest.mark.full
def test_a_cache_of_the_user_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1000")
    result = run_lockstep(["--max-restarts", "1"], COMPILES, timeout=100, forked=True)
    for process in (0, 1):
        assert [line.split()[2] for line in result.by_process[process]] == ["0", "0"]


def test_a_job_that_is_stopped_does_not_start_again() -> None:
    program = START + "(here / f'ready_{me}').touch(); time.sleep(100)"
    with start_lockstep(["-n", "2", "--max-restarts", "5"], program, forked=True) as run:
        run.wait_files("ready_*", 2)
        run.process.send_signal(signal.SIGTERM)
        result = run.finish(30)
    assert result.status == 143
    assert_unsaid("starting again", result.stderr)


@pytest.mark.full
def test_ctrl_c_while_a_failed_attempt_stops_is_the_end() -> None:
    # Process 0 ignores what it is told, so the attempt takes its grace period to stop.
    program = (
        START
        + """
import signal
if me == 1: sys.exit(5)
signal.signal(signal.SIGINT, lambda number, frame: (here / "interrupted").touch())
while True: time.sleep(100)
"""
    )
    options = ["-n", "2", "--max-restarts", "5"]
    with start_lockstep([*options, "--grace", "10"], program, forked=True) as run:
        wait_until((run.folder / "interrupted").exists, "process 0 is told to stop", 30)
        run.process.send_signal(signal.SIGINT)
        result = run.finish(30)
    assert_unsaid("starting again", result.stderr)
    assert result.by_process[0] == ["attempt 0"]


def test_a_jax_job_starts_again_with_another_coordinator() -> None:
    program = (
        START
        + """
import jax, jax.numpy as jnp
jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
for step in range(5):
    if attempt == 0 and step == 3 and me == 0: os.kill(os.getpid(), 9)
    value = float(total(jnp.ones(1))[0])
print("sum", value, os.environ["LOCKSTEP_COORDINATOR"])
"""
    )
    options = ["--max-restarts", "1", "--collective-timeout", "2"]
    result = run_lockstep(options, program, timeout=90, forked=True)
    assert [lines[-1].split()[1] for lines in result.by_process.values()] == ["2.0", "2.0"]
    assert "process 0 of 2 failed first: killed by SIGKILL" in result.said_by_launcher
