"""A process dies; the others catch the error, go on, and end with a status of their own."""

from __future__ import annotations

import json
import time

import pytest

from lanes import sample
from processes import free_port, python, run_processes
from support import Result, run_lockstep, wait_until, with_variables

# Heartbeats that are missed abort a process of stock JAX; here they are missed while it naps.
LOOP = """
import os, sys, time, jax, jax.numpy as jnp
jax.distributed.initialize(heartbeat_timeout_seconds=3)
me = jax.process_index()
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
try:
    for step in range(10**6):
        if step == 3 and me == {victim}:
            os.kill(os.getpid(), 9)
        total(jnp.ones(jax.local_device_count())).block_until_ready()
except Exception as error:
    print("caught", str(error).replace(chr(10), " "), flush=True)
lost = time.monotonic()
while time.monotonic() < lost + 5:
    time.sleep(0.1)
from lockstep import _jax_compat
client = _jax_compat.distributed_client()
client.key_value_set(f"alive/{{me}}", "yes")
print("saved", float(jnp.ones(10).sum()), client.blocking_key_value_get(f"alive/{{me}}", 5000))
sys.exit(40 + me)
"""


def assert_survived(result: Result, victim: int) -> None:
    for process in {0, 1, 2} - {victim}:
        lines = result.by_process[process]
        assert any(line.startswith("caught") for line in lines), result  # gloo talks
        assert lines[-1] == "saved 10.0 yes", result
        assert f"process {process} failed" in result.said_by_launcher, result
        assert f"sys.exit({40 + process})" in result.said_by_launcher, result
    headline = f"process {victim} of 3 failed first: killed by SIGKILL (signal 9)"
    assert headline in result.said_by_launcher


@sample("victim", [0, 1], 0)
@sample("collectives", ["lockstep", "gloo"], 0)
def test_survivors_catch_the_error_save_and_end_as_they_like(collectives: str, victim: int) -> None:
    options = ["--collectives", collectives, "--collective-timeout", "2", "--grace", "60"]
    program = LOOP.format(victim=victim)
    result = run_lockstep(options, program, n=3, timeout=120, expect_status=137, forked=True)
    assert_survived(result, victim)


@pytest.mark.full
def test_survivors_of_process_0_without_the_launcher() -> None:
    address = f"127.0.0.1:{free_port()}"
    environs = [
        {
            "LOCKSTEP_COORDINATOR": address,
            "LOCKSTEP_NUM_PROCESSES": "3",
            "LOCKSTEP_PROCESS_ID": str(process),
            "LOCKSTEP_COLLECTIVE_TIMEOUT": "2",
        }
        for process in range(3)
    ]
    ended = run_processes("import lockstep" + LOOP.format(victim=0), environs, timeout=120)
    assert [end.status for end in ended] == [-9, 41, 42], ended
    assert "saved 10.0 yes" in ended[1].stdout

    left = f"LOCKSTEP_COORDINATOR={address}"
    wait_until(lambda: not with_variables(left), "the service ends with the last process", 30)


@pytest.mark.full
def test_a_second_job_waits_for_processes_that_come_late() -> None:
    """By then the service of the first has ended by itself, and that of the second serves."""
    program = """
import os, time
import jax
jax.distributed.initialize()
from lockstep import _jax_compat
_jax_compat.distributed_client().wait_at_barrier("all", 20_000)
jax.distributed.shutdown()
time.sleep(4 * int(os.environ["LOCKSTEP_PROCESS_ID"]))
jax.distributed.initialize()
_jax_compat.distributed_client().wait_at_barrier("all", 20_000)
print("both jobs")
"""
    result = run_lockstep([], program, forked=True)
    assert result.by_process == {0: ["both jobs"], 1: ["both jobs"]}


@pytest.mark.full
def test_the_service_is_in_process_0_when_the_user_wants_no_recoverability() -> None:
    program = """
import jax
jax.distributed.initialize()
from jax._src import distributed
print(type(distributed.global_state.service).__name__)
"""
    result = run_lockstep([], program, env={"JAX_ENABLE_RECOVERABILITY": "0"}, forked=True)
    assert result.by_process == {0: ["DistributedRuntimeService"], 1: ["NoneType"]}
    assert run_lockstep([], program, forked=True).by_process[0] == ["Outside"]


EXITS = """
import os, pathlib, sys, time
me = int(os.environ["LOCKSTEP_PROCESS_ID"])
folder = pathlib.Path(os.environ["LOCKSTEP_RUN_DIR"], "attempt_0")
if me == 1:
    {end}
exit_file = folder / "process_1" / "exit.json"
while not exit_file.exists():
    time.sleep(0.01)
print(exit_file.read_text().replace(chr(10), " "))
"""


@pytest.mark.parametrize(
    ("end", "exit_code", "number"),
    [("os.kill(os.getpid(), 9)", None, 9), ("os._exit(3)", 3, None), ("sys.exit(0)", 0, None)],
)
def test_the_others_can_read_how_a_process_ended(
    end: str, exit_code: int | None, number: int | None
) -> None:
    before = time.time_ns()
    result = run_lockstep([], EXITS.format(end=end), timeout=30, expect_status=None, forked=True)
    said = json.loads(result.by_process[0][0])
    assert said["pid"] > 1
    assert before < said["realtime_ns"] < time.time_ns()
    expected = {"exit_code": exit_code, "signal": number, "reason": None}
    assert {key: said[key] for key in expected} == expected


def test_a_failed_job_leaves_the_others_alone_for_half_of_the_grace_period() -> None:
    # Process 0 learns of the failure by itself and takes a while to save: no signal disturbs it.
    program = EXITS.format(end="raise ValueError('no data')").replace(
        "print(", "time.sleep(1); print('saved'); sys.exit(5)\nprint("
    )
    result = run_lockstep(["--grace", "20"], program, expect_status=1, forked=True)
    assert result.by_process == {0: ["saved"]}
    assert "process 1 of 2 failed first: ValueError: no data" in result.said_by_launcher
    assert "sys.exit(5)" in result.said_by_launcher


def test_a_service_that_cannot_start_outside_is_left_to_process_0() -> None:
    program = """
import os
from lockstep.bootstrap import coordination_service
pipe, end = os.pipe()
os.set_inheritable(end, True)
print(coordination_service.start("no address:20001", 2, {}))
os.close(end)
print(os.read(pipe, 1))  # ends: no child holds the other end
# By then jaxlib has threads, and the child is a new program.
print(coordination_service.replace("no address:20001", ["host:20001", "host:22019"]))
print(coordination_service.start("no address:20001", 2, {}))
"""
    ended = python(program)
    assert ended.stdout == "None\nb''\nno address:24037\nNone\n"
    assert ended.stderr.count("JAX's coordination service did not start outside process 0") == 2
