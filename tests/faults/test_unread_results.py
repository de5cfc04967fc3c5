"""A collective that fails and whose result no line reads: the job fails all the same, and says why.

With several devices a process JAX raises nothing where such a program is called.
"""

from __future__ import annotations

import re
import sys

import pytest

from faults.harness import HEAD
from lanes import sample
from of_this_jax import where_numbered, without_warnings
from support import run_lockstep

PROGRAM = f"""{HEAD}
def main():
    local = np.ones(jax.local_device_count(), np.float32)
    x = jax.make_array_from_process_local_data(rows, local)
    total = jax.jit(jnp.sum)
    for step in range(10 + (jax.process_index() == 0)):
        t = total(x)
    time.sleep({{pause}})
    return {{kept}}

t = main()
"""
CAUGHT = f"""{HEAD}
local = np.ones((jax.local_device_count(), {{size}}), np.float32)
x = jax.make_array_from_process_local_data(rows, local)
total = jax.jit(lambda x: x.sum(0))
try:
    for step in range(10 + 3 * (jax.process_index() == 0)):
        t = total(x)
    t.block_until_ready()
except (ValueError, jax.errors.JaxRuntimeError):
    print("caught")
"""
IN_A_THREAD = """
import threading
x = jax.make_array_from_process_local_data(rows, np.ones((jax.local_device_count(), 1)))
call = jax.jit((lambda x: x.sum()) if jax.process_index() == 0 else (lambda x: x.max()))
thread = threading.Thread(target=lambda: float(call(x)), name="evaluation")
thread.start()
thread.join()
"""
OVER_GLOO_CAUGHT = f"""{HEAD}
x = jax.make_array_from_process_local_data(rows, np.ones((1, SIZE), np.float32))
total = jax.jit(lambda x: x.sum(0))
for step in range(10):
    if jax.process_index() == 1 and step == 5:
        END
    try:
        total(x).block_until_ready()
    except KIND:
        print("caught")
        break
"""
SWALLOWED = "this program has caught the error and ends with status 0: "
ENDED = "ended after 10 collectives; process 0 waits in its 11th: all-reduce (sum) of 1 x f32"
NOTE = "The program had ended: none of its lines reads the result that failed."
SECONDS = 60
"""Far less than JAX's own wait at the end, which hides a failure of a collective there."""


@sample(
    ("pause", "kept"),
    [(0, "t"), (0, "None"), (2, "t"), (2, "None")],
    1,
    2,
    ids=["kept", "dropped", "kept, failed before the end", "dropped, failed before the end"],
)
def test_the_job_fails_and_names_the_line(pause: int, kept: str) -> None:
    program = PROGRAM.format(pause=pause, kept=kept)
    result = run_lockstep([], program, d=2, timeout=SECONDS, expect_status=1, forked=True)
    first, *_, last = result.said_by_launcher.splitlines()
    for line in (first, last):
        assert re.match(r"lockstep: process 1 \(pid \d+ on \S+\) " + re.escape(ENDED), line), result
        assert "so process 0 of 2 failed (exit code 1)" in line
    line = program.splitlines().index("        t = total(x)") + 1
    assert where_numbered(f"program.py:{line} in sum") in result.said_by_launcher
    assert NOTE in result.said_by_launcher
    assert not without_warnings("\n".join(result.stderr_by_process.get(1, []))), result


@sample(("devices", "size"), [(1, 1), (1, 100_000), (2, 1), (2, 100_000)], 0, 2)
def test_a_program_that_has_caught_the_error_ends_as_it_likes(devices: int, size: int) -> None:
    """JAX raises at the call, or where the result is read: by the devices and the size."""
    program = CAUGHT.format(size=size)
    result = run_lockstep([], program, d=devices, timeout=SECONDS, forked=True)
    assert result.by_process == {0: ["caught"]}, result
    assert re.search(
        SWALLOWED + r"process 1 \(.*\) ended after 10 collectives; process 0", result.stderr
    )


def test_an_error_that_has_ended_a_thread_fails_the_program() -> None:
    """Python goes on without the thread, and would end with status 0."""
    result = run_lockstep(
        [], HEAD + IN_A_THREAD, d=1, timeout=SECONDS, expect_status=1, forked=True
    )
    assert "this error has ended its thread evaluation." in result.stderr, result
    last = result.said_by_launcher.splitlines()[-1]
    assert re.search("called all-reduce|runs another program", last), result


@sample(
    ("kind", "end"), [("ValueError", "left"), ("Exception", "os._exit(0)"), ("late", "left")], 0
)
def test_a_program_that_has_caught_the_error_over_gloo_is_told_so(kind: str, end: str) -> None:
    program = OVER_GLOO_CAUGHT.replace("KIND", kind.replace("late", "jax.errors.JaxRuntimeError"))
    program = program.replace("END", "break" if end == "left" else end)
    if kind == "late":  # the result of a large array is read later, where JAX raises another error
        program = program.replace("SIZE", "100_000")
    elif sys.version_info < (3, 12):
        pytest.skip("before Python 3.12 nothing tells of an exception that a program has caught")
    options = ["--collectives", "gloo"]
    result = run_lockstep(options, program.replace("SIZE", "1"), d=1, timeout=SECONDS, forked=True)
    assert [p for p, lines in result.by_process.items() if "caught" in lines] == [0], result
    assert re.search(
        SWALLOWED + r"process 1 \(.*\) (ended after 5|is gone: .*in its 6th)", result.stderr
    ), result


OVER_GLOO = f"""{HEAD}
x = jax.device_put(jnp.ones(1 << 20), rows)
total = jax.jit(lambda x: jnp.sum(jnp.sin(x)))
total(x).block_until_ready()
if jax.process_index() == 1:
    os._exit(0)
time.sleep(0.5)
y = total(x)
"""


@pytest.mark.full
@sample("end", ["", "jax.distributed.shutdown()"], 1)
def test_it_fails_over_gloo_too(end: str) -> None:
    options = ["--collectives", "gloo"]
    result = run_lockstep(options, OVER_GLOO + end, d=1, expect_status=1, forked=True)
    assert "process 1 (" in result.said_by_launcher.splitlines()[0], result
    assert "Gloo all-reduce failed" in result.stderr
    assert NOTE in result.stderr


@pytest.mark.full
def test_long_work_at_the_end_is_told_and_is_no_failure() -> None:
    program = """
        import jax, jax.numpy as jnp
        jax.distributed.initialize()
        long = jax.jit(lambda x: jax.lax.fori_loop(0, 500, lambda _, x: jnp.sin(x) + x * x, x))
        x = long(jnp.ones(1 << 20))
        """
    options = ["--collectives", "gloo", "--collective-timeout", "0.1"]
    result = run_lockstep(options, program, d=1, forked=True)
    for process in range(2):
        [line] = result.stderr_by_process[process]
        assert line.startswith(
            f"lockstep: process {process} has come to the end of its program, and has waited 0.1 s"
        ), result


def test_what_is_dispatched_last_is_done_before_a_process_leaves() -> None:
    program = PROGRAM.replace("(jax.process_index() == 0)", "0").format(pause=0, kept="None")
    result = run_lockstep([], program, d=2, timeout=SECONDS, forked=True)
    assert not without_warnings(result.stderr), result
