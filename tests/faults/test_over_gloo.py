"""Faults over gloo: the process that caused one is named, and no wrong number passes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from faults.harness import HEAD
from lanes import full, sample
from processes import captured
from support import Result, assert_unsaid, run_lockstep

PROGRAM = f"""{HEAD}
def array(size):
    at = np.arange(size, dtype="float32")
    return jax.make_array_from_callback((size,), rows, lambda index: at[index])

# The loop's carry is on one device at first, and on all later: two modules, and one executable.
@jax.jit
def step(w, x):
    return w + x.sum()

@jax.jit
def evaluate(w, x):
    return w + x.max()

@jax.jit
def save(w, x):
    return w + x.prod()

def train(fault, x, at, steps):
    value = jax.numpy.float32(0)
    for i in range(steps):
        call = step
        if me == 1 and i == at:
            if fault == "left":
                break
            if fault == "raised":
                raise ValueError("bad batch")
            if fault == "exit":
                sys.exit(0)
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "late":
                time.sleep(1000)  # LATE
            if fault == "shape":
                x = array(8 * count)
            if fault == "reduction":
                call = evaluate
        if fault == "swapped" and i in (at, at + 1):
            call = (evaluate, save)[(i - at + (me == 1)) % 2]
        value = call(value, x)
        if i % 10 == 0:
            float(value)
        time.sleep(0.05)
    return float(value)
"""
RUN = "\nprint(train(sys.argv[1], array(4 * count), 25, 120))\n"
NUMBER = re.compile(r"[\d.]+")
OPTIONS = ["--collectives", "gloo", "--stall-warning", "4", "--collective-timeout", "10"]


def run(
    program: str,
    *args: str,
    n: int = 2,
    d: int = 1,
    status: int | None = 1,
    options: Sequence[str] = (),
) -> Result:
    """A job of `PROGRAM` and what follows it."""
    return run_lockstep(
        [*OPTIONS, *options],
        PROGRAM + program,
        n=n,
        d=d,
        program_args=args,
        timeout=150,
        expect_status=status,
        forked=True,
    )


@sample(
    ("fault", "words"),
    [
        ("left", r"process 1 \(.*\) ended( \(exit code 0\))? after 25 programs; process"),
        ("exit", r"process 1 \(.*\) ended by sys.exit\(\) at program.py:\d+ .*after 25 programs; "),
        ("raised", r"process 1 of 3 failed first: ValueError: bad batch"),
        ("killed", r"process 1 of 3 failed first: killed by SIGKILL"),
        ("shape", r"process 1 runs another program than .* argument x is f32\[48\] on process 1"),
        ("reduction", r"process 1 \(.*\) called evaluate"),
        ("swapped", r"process 1 \(.*\) called save"),
    ],
    0,
)
def test_the_process_with_the_fault_is_the_headline(fault: str, words: str) -> None:
    result = run(RUN, fault, n=3, d=2, status=None if fault == "killed" else 1)
    assert re.search(words, result.said_by_launcher.splitlines()[0]), result
    last = result.said_by_launcher.splitlines()[-1]
    assert re.search(r"program\.py:\d+", last), result
    ended = [p for p in (0, 2) for line in result.by_process.get(p, ()) if NUMBER.fullmatch(line)]
    assert not ended, "a process ended as if nothing had happened"


CAUGHT = """
try:
    train(sys.argv[1], array(4 * count), 25, 120)
except jax.errors.JaxRuntimeError:
    sys.exit(75)  # the queue starts the job again
"""


@pytest.mark.full
@pytest.mark.parametrize("fault", ["exit", "shape"])
def test_a_survivor_that_chooses_its_exit_code_is_not_the_headline(fault: str) -> None:
    result = run(CAUGHT, fault, status=None)
    first = result.said_by_launcher.splitlines()[0]
    assert re.search(r"process 1 \(.*\) ended .*after 25 programs|process 1 runs another", first), (
        result
    )
    assert re.search(r"process 0 failed .* later", result.said_by_launcher), result


@pytest.mark.full
def test_a_process_that_does_not_come_is_reported_and_then_ends_the_job() -> None:
    result = run(RUN, "late", n=3, d=2)
    assert "lockstep: waiting for" in result.stderr, result
    assert "process 1 does meanwhile:" in result.stderr
    first, *_, last = result.said_by_launcher.splitlines()
    at = f"program.py:{PROGRAM[: PROGRAM.index('# LATE')].count(chr(10)) + 1}"
    for line in (first, last):
        assert "has waited 1" in line, result
        assert "process 1 (" in line
        assert re.search(rf"; process 1 is at {at}; so process [02] ", line), result


HANGS_ONCE = """
from pathlib import Path
if os.environ["LOCKSTEP_ATTEMPT"] == "0" and me == 1:
    float(step(0.0, array(4 * count)))
    if sys.argv[1] == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)
for _ in range(3):
    float(step(0.0, array(4 * count)))
print("attempt", os.environ["LOCKSTEP_ATTEMPT"])
"""


@pytest.mark.full
@pytest.mark.parametrize("how", ["asleep", "stopped"])
def test_a_wait_that_cannot_be_interrupted_ends_and_the_job_starts_again(how: str) -> None:
    result = run(HANGS_ONCE, how, status=0, options=["--max-restarts", "1", "--grace", "2"])
    assert "(--collective-timeout). process 1 (" in result.said_by_launcher, result
    assert result.stdout.count("attempt 1") == 2


STOPPED = """
import subprocess
from jax.experimental import multihost_utils
pids = " ".join(map(str, multihost_utils.process_allgather(np.int32(os.getpid())).ravel()))
float(step(0.0, array(4 * count)))
if me == 1:
    with subprocess.Popen(["sh", "-c", f"sleep 3; kill -STOP {pids}; sleep 10; kill -CONT {pids}"]):
        time.sleep(4)
    time.sleep(3)
print(float(step(0.0, array(4 * count))))
"""


@pytest.mark.full
def test_the_time_that_a_job_is_stopped_is_no_wait() -> None:
    """Ctrl-Z, or Slurm's suspend: process 0 stands in a launch, process 1 has yet to come."""
    result = run_lockstep(
        ["--collectives", "gloo", "--collective-timeout", "9"],
        PROGRAM + STOPPED,
        d=1,
        timeout=120,
    )
    assert all(result.by_process.values()), result


CHOSEN = """
steps = {"train": step}
value = step(0.0, array(4 * count))
for i in range(5):
    if me == 1 and i == 2:
        time.sleep(1000)
    value = steps["train"](value, array(4 * count))
"""


ALL_GATHER = """
from jax.experimental import multihost_utils
for number in range(9):
    if number == 5 and me == 1:
        time.sleep(300)  # stuck
    multihost_utils.process_allgather(np.ones(1))
"""
"""JAX jits a function and calls it in one expression, so that what is called has no name."""


@pytest.mark.full
@pytest.mark.parametrize(("n", "d"), [(2, 2), (3, 1)])
def test_a_healthy_job_hears_nothing(n: int, d: int) -> None:
    result = run(RUN, "none", n=n, d=d, status=0)
    lines = [line for lines in result.by_process.values() for line in lines]
    assert len([line for line in lines if NUMBER.fullmatch(line)]) == n
    assert_unsaid("waiting for", result.stderr)


SHORT = """
for i in range(5):
    print(float((evaluate if me == 1 and i == 3 else step)(1.0, array(4 * count))))
"""


AHEAD_OF_TIME = """
import pickle
from jax.experimental import serialize_executable
w = jax.device_put(np.float32(0), NamedSharding(rows.mesh, P()))
x = array(4 * count)

def compiled(function):
    return function.lower(w, x).compile()

def exported(function):
    return jax.jit(jax.export.export(function)(w, x).call)

def saved(function):
    with open(f"{sys.argv[2]}-{function.__name__}-{me}", "wb") as file:
        pickle.dump(serialize_executable.serialize(compiled(function)), file)
    return compiled(function)

def loaded(function):
    with open(f"{sys.argv[2]}-{function.__name__}-{me}", "rb") as file:
        return serialize_executable.deserialize_and_load(*pickle.load(file))

def loaded_on_one(function):
    return (loaded if me == 0 else compiled)(function)

made = {f.__name__: globals()[sys.argv[1]](f) for f in (step, evaluate)}
for i in range(20):
    w = made["evaluate" if me == 1 and str(i) == sys.argv[3] else "step"](w, x)
print(float(w))
"""


def ahead_of_time(how: str, at: str, folder: Path, status: int) -> Result:
    return run(AHEAD_OF_TIME, how, str(folder / "program"), at, status=status)


@pytest.mark.parametrize("how", ["compiled", full("exported")])
def test_a_program_compiled_ahead_of_time_is_compared(how: str, tmp_path: Path) -> None:
    result = ahead_of_time(how, "13", tmp_path, status=1)
    headline = result.said_by_launcher.splitlines()[0]
    assert re.search(r"process 1 (runs another program|\(.*\) called evaluate)", headline), result


@pytest.mark.full
def test_a_program_that_was_saved_is_compared(tmp_path: Path) -> None:
    ahead_of_time("saved", "none", tmp_path, status=0)
    ahead_of_time("loaded", "none", tmp_path, status=0)
    # The program that is loaded was traced from other lines than the one that is compiled.
    ahead_of_time("loaded_on_one", "none", tmp_path, status=0)
    for how in ("loaded", "loaded_on_one"):
        result = ahead_of_time(how, "13", tmp_path, status=1)
        assert "called evaluate" in result.said_by_launcher.splitlines()[0], result


LOSS_READ_LATE = """
@jax.jit
def descend(w, x):
    loss, slope = jax.value_and_grad(lambda w: ((x @ w - 1) ** 2).mean())(w)
    return w - 0.1 * slope, loss

w = np.zeros(8, "float32")
for i in range(100):
    dtype = "uint8" if me == 1 and i == 3 else "float32"
    w, loss = descend(w, jax.make_array_from_process_local_data(rows, np.ones((8, 8), dtype)))
print(float(loss))
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "n", "words"),
    [
        (ALL_GATHER, 2, ("process 1 (", "(--collective-timeout)")),
        # With one device a process the call itself waits, so JAX has told of no launch.
        (CHOSEN, 2, ("process 1 (", "has not arrived yet; process 0 waits in its 4th: step")),
        (SHORT, 3, ("process 1 (", "called evaluate")),
        (LOSS_READ_LATE, 2, ("descend (", "x is u8[16,8] on process 1, f32[16,8] on process 0")),
    ],
    ids=["jitted at once", "in a container", "ends at once", "read late"],
)
def test_what_differs_is_seen(program: str, n: int, words: tuple[str, str]) -> None:
    result = run(program, n=n)
    headline = result.said_by_launcher.splitlines()[0]
    assert all(each in headline for each in words), result


@pytest.mark.full
def test_the_report_shows_launches(tmp_path: Path) -> None:
    run(RUN, "left", options=["--log-dir", str(tmp_path)])
    shown = captured([sys.executable, "-m", "lockstep", "report", "--json", str(tmp_path)])
    document = json.loads(shown.stdout)
    assert (document["kind"], document["culprits"]) == ("ended", [1])
