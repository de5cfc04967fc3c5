"""Programs that no process waits for, which differ: each computes its part of one result."""

from __future__ import annotations

import pytest

from faults.harness import HEAD
from lanes import sample
from support import assert_unsaid, run_lockstep

PROGRAM = f"""{HEAD}
x = jax.make_array_from_callback((count,), rows, lambda at: np.arange(float(count))[at])
scale = 3.0 if me == 1 else 2.0
total = jax.jit(jnp.sum)
"""
GOES_ON = """
@jax.jit
def step(x):
    return x * scale

for _ in range(100):
    print(float(total(step(x))))
    time.sleep(0.1)
print("went on")
"""
ENDS = """
@jax.jit
def step(x):
    return x * scale

print(step(x).addressable_data(0))
"""
LOGS = """
for i in range(30):
    loss = total(x)
    if me == 1:
        print(float(loss * 2 + 1 / (loss + 1)), float(jnp.sqrt(loss)))
    loss = loss - 1.0
    if i == 10 + me:
        total.clear_cache()
    time.sleep(0.05)
print("right", float(total(x) + loss))
"""
OUT_OF_REACH = """
from jax._src.distributed import global_state

(x + 1).block_until_ready()
for _ in range(20):
    float(total(x))
    time.sleep(0.1)
if me == 1:  # as where the link to process 0 is cut one way
    unanswered = lambda *_: time.sleep(60)
    for name in ("key_value_dir_get", "key_value_dir_get_bytes"):
        setattr(type(global_state.client), name, unanswered)
    time.sleep(2)
    float(total(x))
time.sleep(60)
"""
SAID = "process 1 runs another program than processes 0, 2: in step (program.py:{}) a constant is "
VALUES = "3.0 on process 1, 2.0 on processes 0, 2, program.py:16: return x * scale"


@sample(
    ("collectives", "program", "line"),
    [
        ("lockstep", "goes on", 19),
        ("gloo", "goes on", 19),
        ("mpi", "goes on", 19),
        ("lockstep", "ends", 18),
        ("gloo", "ends", 18),
    ],
    0,
)
def test_a_constant_is_the_headline(collectives: str, program: str, line: int) -> None:
    result = run_lockstep(
        ["--collectives", collectives],
        PROGRAM + {"goes on": GOES_ON, "ends": ENDS}[program],
        n=3,
        d=1,
        timeout=120,
        expect_status=1,
        forked=True,
    )
    assert SAID.format(line) + VALUES in result.said_by_launcher.splitlines()[0], result
    assert_unsaid("went on", result.stdout)


@pytest.mark.full
@pytest.mark.parametrize("collectives", ["lockstep", "gloo"])
def test_a_warning_goes_on(collectives: str) -> None:
    options = ["--collectives", collectives, "--check-programs", "warn"]
    result = run_lockstep(options, PROGRAM + GOES_ON, n=3, d=1, timeout=120, forked=True)
    assert result.stdout.count("went on") == 3, result
    assert f"warning: {SAID.format(19)}{VALUES}" in result.stderr


@pytest.mark.full
@pytest.mark.parametrize("collectives", ["lockstep", "gloo"])
def test_what_one_process_computes_for_its_log_is_no_difference(collectives: str) -> None:
    options = ["--collectives", collectives]
    result = run_lockstep(options, PROGRAM + LOGS, d=2, timeout=120, forked=True)
    assert result.stdout.count("right") == 2, result
    assert_unsaid("another program", result.stderr)


@pytest.mark.full
def test_an_error_has_its_words_where_the_service_does_not_answer() -> None:
    """The watchdog gives up in time: "waits" is its word, "waited" that of the launcher."""
    options = ["--collective-timeout", "4", "--grace", "1"]
    program = PROGRAM + OUT_OF_REACH
    result = run_lockstep(options, program, d=1, timeout=120, expect_status=None, forked=True)
    assert result.status not in (0, None), result
    assert "has not arrived yet; process 1 waits in its 21st: all-reduce" in result.stderr, result
