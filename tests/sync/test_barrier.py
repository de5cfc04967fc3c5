"""The application's own waits: `barrier`, `assert_same`, `only_on`."""

from __future__ import annotations

import pytest

import lockstep
from lanes import sample
from support import run_lockstep

START = """
import os, sys, time, jax, jax.numpy as jnp, lockstep
import numpy as np
lockstep.initialize()
me = jax.process_index()
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
"""

CHECKS = {
    "late": """
if me == 2:
    time.sleep(1)
    open(os.environ["TMPDIR"] + "/last", "x").close()
for again in range(3):
    lockstep.barrier("all here")
    print(os.path.exists(os.environ["TMPDIR"] + "/last"))
""",
    "equal": """
from jax.sharding import NamedSharding, PartitionSpec
mesh = lockstep.process_mesh()
replicated = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, PartitionSpec()))
for step in range(3):
    lockstep.assert_same({"step": step, "w": replicated, "rng": jax.random.key(1)}, "state")
    lockstep.assert_same(np.arange(3) + step, "batch")
lockstep.assert_same(frozenset({"a", "b", "c"}), "names")
from lockstep import _jax_compat
left = _jax_compat.distributed_client().key_value_dir_get("lockstep/same/state/")
print("left", len(left), len({key.split("/")[3] for key, _ in left}))
""",
    "different": """
try:
    lockstep.assert_same({"lr": 0.1 if me != 1 else 0.5, "w": np.zeros(3)}, "config")
except lockstep.DifferenceError as error:
    print(error)
""",
    "spread": """
spread = jax.make_array_from_process_local_data(
    NamedSharding(mesh, PartitionSpec("process")), np.ones(1))
try:
    lockstep.assert_same([spread], "x")
except ValueError as error:
    print(error)
""",
    "for one": """
@lockstep.only_on(1)
def told():
    return f"only here: {float(jnp.ones(3).sum())}"
print(told())
with lockstep.only_on(1) as here:
    print("here", here, float(jnp.ones(2).sum()))
with lockstep.only_on(0), lockstep.only_on(1):
    pass
for step in range(20):
    pending = total(jnp.ones(jax.local_device_count()))  # still runs when the block begins
    with lockstep.only_on(0):
        pass
print("sum", float(pending[0]))
""",
    "no such process": """
try:
    lockstep.only_on(3)(print)()
except ValueError as error:
    print(error)
""",
}
"""What each of three processes runs, one after the other: a job costs seconds, a check nothing."""


@pytest.fixture(scope="module")
def printed() -> dict[str, list[list[str]]]:
    """Check -> what each process printed in it."""
    program = "".join(f"print('CHECK {name}', flush=True){text}" for name, text in CHECKS.items())
    result = run_lockstep([], START + program, n=3, timeout=90)
    of_process = ["\n".join(result.by_process[i]).split("CHECK ")[1:] for i in range(3)]
    checks = [dict(text.split("\n", 1) for text in texts) for texts in of_process]
    return {name: [check[name].splitlines() for check in checks] for name in CHECKS}


def test_a_barrier_holds_everybody_until_the_last_has_come(
    printed: dict[str, list[list[str]]],
) -> None:
    assert printed["late"] == [["True"] * 3] * 3


def test_equal_values_pass_again_and_again(printed: dict[str, list[list[str]]]) -> None:
    # The values of earlier checks do not pile up in the service.
    assert printed["equal"] == [["left 3 1"]] * 3


def test_who_differs_is_told_on_every_process_with_the_values(
    printed: dict[str, list[list[str]]],
) -> None:
    for first, place, *rest in printed["different"]:
        assert first == "assert_same(..., 'config'): the processes differ"
        assert place == "at ['lr']:"
        assert rest[0] == "  processes 0, 2: 0.1"
        assert rest[1].startswith("  process 1 (pid ")
        assert rest[1].endswith("): 0.5 <- differs")


def test_an_array_that_no_process_has_whole_is_refused(printed: dict[str, list[list[str]]]) -> None:
    for [said] in printed["spread"]:
        assert "the array at [0] is spread over processes" in said


def test_code_for_one_process_runs_there_and_collectives_go_on_after_it(
    printed: dict[str, list[list[str]]],
) -> None:
    elsewhere = ["None", "here False 2.0", "sum 3.0"]
    here = ["only here: 3.0", "here True 2.0", "sum 3.0"]
    assert printed["for one"] == [elsewhere, here, elsewhere]


def test_a_process_that_is_not_there(printed: dict[str, list[list[str]]]) -> None:
    assert printed["no such process"] == [["only_on(3): the job has 3 processes: 0-2."]] * 3


MISSING = """
if me == 1:
    def busy_elsewhere():
        {elsewhere}
    busy_elsewhere()
else:
    try:
        lockstep.barrier("checkpoint", timeout={timeout})
    except lockstep.MissingProcessError as error:
        print(error)
        print("end of error")
    os.close(os.open(os.environ["TMPDIR"] + f"/told_{{me}}", os.O_CREAT))
"""
WAIT = 'while str(os.listdir(os.environ["TMPDIR"])).count("told") < 2: time.sleep(0.1)'


def test_a_barrier_says_who_is_missing_and_where_that_process_is() -> None:
    program = START + MISSING.format(elsewhere=WAIT, timeout=1)
    result = run_lockstep([], program, n=3, timeout=60)
    for process in (0, 2):
        text = "\n".join(result.by_process[process])
        assert f"barrier('checkpoint'): process {process} (pid " in text
        assert "Missing: 1 of 3 processes:\n  process 1 (pid " in text
        assert "has not come" in text
        assert "in busy_elsewhere" in text


@pytest.mark.full
def test_who_comes_after_the_others_gave_up_is_told_so() -> None:
    late = f'{WAIT}\n        lockstep.barrier("checkpoint", timeout=5)'
    program = START + MISSING.format(elsewhere=late, timeout=1)
    result = run_lockstep([], program, n=3, timeout=60, expect_status=1)
    assert "MissingProcessError: barrier('checkpoint')" in result.stderr
    assert "process 1 of 3 failed first" in result.said_by_launcher


@sample(
    ("end", "manner"),
    [
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL (signal 9)"),
        ("os._exit(3)", "failed with exit code 3"),
        ("sys.exit(0)", "ended (exit code 0)"),
    ],
    0,
)
def test_a_barrier_ends_as_soon_as_a_missing_process_has_ended(end: str, manner: str) -> None:
    program = START + MISSING.format(elsewhere=end, timeout=200)
    result = run_lockstep(["--grace", "60"], program, n=3, timeout=60, expect_status=None)
    for process in (0, 2):
        text = "\n".join(result.by_process[process])
        assert "Missing: 1 of 3 processes:" in text, result
        assert manner in text, result


def test_processes_in_different_barriers_learn_of_each_other() -> None:
    program = """
try:
    lockstep.barrier("even" if me % 2 == 0 else "odd", timeout=2)
except lockstep.MissingProcessError as error:
    print(error)
"""
    result = run_lockstep([], START + program, timeout=60)
    assert "last seen in barrier('odd')" in "\n".join(result.by_process[0])
    assert "last seen in barrier('even')" in "\n".join(result.by_process[1])


def test_alone_there_is_nobody_to_wait_for() -> None:
    lockstep.barrier("alone")
    lockstep.assert_same(1, "alone")
    with lockstep.only_on(0) as here:
        assert here
    with pytest.raises(ValueError, match=r"only_on\(1\): the job has 1 process: 0\."):
        lockstep.only_on(1).__enter__()


ONLY_ON = """
total(jnp.ones(jax.local_device_count())).block_until_ready()
def try_it(what):
    try:
        what()
    except Exception as error:
        print("refused", str(error).replace(chr(10), " "))
"""


def test_a_collective_in_code_for_one_process_is_an_error_at_once() -> None:
    program = """
@lockstep.only_on(0)
def save():
    total(jnp.ones(jax.local_device_count())).block_until_ready()
    return "unreachable"
try_it(save)
def block():
    global kept
    with lockstep.only_on(0) as here:
        if here:
            kept = total(jnp.ones(jax.local_device_count()))  # the block's end waits for it
try_it(block)
"""
    result = run_lockstep([], START + ONLY_ON + program, d=2, timeout=60)
    assert 1 not in result.by_process
    first, second = result.by_process[0]
    for line in (first, second):
        assert "process 0 started a collective inside lockstep.only_on(0)" in line
        assert "Move the collective out of it" in line
    assert "program.py:" in first
