"""Programs that differ between processes, over the engine: the error says in what."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from faults import harness
from lanes import full
from of_this_jax import needs_numbers
from support import assert_unsaid, run_lockstep

HEAD = f"""{harness.HEAD}
mesh = jax.make_mesh((count,), ("x",))
rows = NamedSharding(mesh, P("x"))
x = jax.make_array_from_callback((4 * count,), rows, lambda at: np.arange(4.0 * count)[at])
"""
CONSTANT = """
scale = 3.0 if me == 1 else 2.0

@jax.jit
def step(x):
    return (x * scale).sum()  # HERE

for _ in range(3):
    print(float(step(x)))
"""
DRAWN = """
@jax.jit
def step(x):
    return (x + np.random.default_rng(me).random()).sum()  # HERE

print(float(step(x)))
"""
BRANCH = """
@jax.jit
def step(x):
    y = x
    if me == 1:
        y = jnp.sin(y)  # HERE
    return y.sum()

print(float(step(x)))
"""
LAYOUT = """
from jax.experimental.layout import Format, Layout
whole = NamedSharding(mesh, P())
a = jax.make_array_from_callback((4, 8), whole, lambda _: np.ones((4, 8)))
order = (1, 0) if me == 1 else (0, 1)
step = jax.jit(lambda x, a: a + x.sum(), out_shardings=Format(Layout(order), a.sharding))
print(float(step(x, a)[0, 0]))
"""
UNUSED = """
step = jax.jit(lambda x, y: x.sum(), keep_unused=me == 1)
print(float(step(x, x)))
"""

RESULT = """
rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
x = jax.make_array_from_callback(x.shape, rows, lambda at: np.arange(4.0 * count)[at])
y = x[: 8 if me == 1 else 4]
print(float(y.sum()))
"""
BOTH_KNOWN = """
step, mean = jax.jit(lambda x: x.sum()), jax.jit(lambda x: x.mean())
for call in (step, mean):
    call(x)
for i in range(20):
    (mean if me == 1 and i == 11 else step)(x)
"""
TURNED = """
mesh = Mesh(np.array(jax.devices()[:: -1 if me == 1 else 1]), ("x",))
rows = NamedSharding(mesh, P("x"))
y = jax.make_array_from_callback(x.shape, rows, lambda at: np.arange(4.0 * count)[at])
if me == 0:  # it shows which of the others is the odd one
    time.sleep(0.5)
print(float(jax.jit(lambda y: jnp.cumsum(y)[3:7].sum())(y)))
"""


@needs_numbers
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (RESULT, r"result 1 is f32\[8\] on process 1, f32\[4\] on processes 0, 2"),
        (
            BOTH_KNOWN,
            r"mean \(program.py:\d+\) and not step|one more operation: divide on process 1",
        ),
        (TURNED, r"the mesh is devices 4096, 2048, 0 on process 1, devices 0, 2048, 4096 on"),
    ],
    ids=["result", "known", "mesh"],
)
def test_alike_calls_are_told_by_their_programs(program: str, words: str) -> None:
    result = run_lockstep([], HEAD + program, n=3, d=1, timeout=120, expect_status=1, forked=True)
    headline = result.said_by_launcher.splitlines()[0]
    assert "process 1 runs another program than processes 0, 2: " in headline, result
    assert re.search(words, headline), result


@needs_numbers
@pytest.mark.parametrize(
    ("program", "words"),
    [
        pytest.param(
            CONSTANT,
            "a constant is 3.0 on process 1, 2.0 on processes 0, 2",
            id="constant",
        ),
        full(DRAWN, "a constant is 0.", id="drawn"),
        full(BRANCH, "one more operation: sine on process 1", id="branch"),
    ],
)
@pytest.mark.parametrize("d", [full(1), 2])
def test_what_differs_is_the_headline(program: str, words: str, d: int) -> None:
    result = run_lockstep([], HEAD + program, n=3, d=d, timeout=120, expect_status=1, forked=True)
    headline = result.said_by_launcher.splitlines()[0]
    # Where all three differ, process 2 may have come before process 1.
    other = "process [12]" if program is DRAWN else "process 1"
    assert re.search(f"{other} runs another program than process", headline), result
    assert words in headline
    assert "# HERE" in headline
    assert all(not lines for lines in result.by_process.values()), "a number was returned"


@needs_numbers
def test_a_warning_goes_on() -> None:
    options = ["--check-programs", "warn"]
    result = run_lockstep(options, HEAD + CONSTANT, d=2, timeout=120, forked=True)
    assert {len(lines) for lines in result.by_process.values()} == {3}, result
    assert "lockstep: warning: process 1 runs another program than process 0" in result.stderr


@pytest.mark.full
def test_off_does_not_look() -> None:
    result = run_lockstep(
        ["--check-programs", "off"], HEAD + CONSTANT, d=2, timeout=120, forked=True
    )
    assert {len(lines) for lines in result.by_process.values()} == {3}, result
    assert_unsaid("another program", result.stderr)


FLAGS_OF_ONE = """
import os
if os.environ.get("LOCKSTEP_PROCESS_ID") == "1":
    os.environ["XLA_FLAGS"] = "GIVEN"
"""
SUM = """
print(float(jax.jit(lambda x: x.sum())(x)))
"""
OWN_SUM = """
print(float(jax.jit(lambda x: x.sum())(jnp.arange(4.0))))
"""


def run_with_flags_of_one(
    flags: str, options: list[str], program: str, folder: Path, given: Sequence[str] = ()
) -> Any:
    (folder / "sitecustomize.py").write_text(FLAGS_OF_ONE.replace("GIVEN", flags))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": path}
    return run_lockstep(
        options, program, d=1, timeout=120, env=env, expect_status=None, program_args=given
    )


@pytest.mark.parametrize("collectives", ["lockstep", full("gloo"), full("mpi")])
def test_flags_of_one_process_are_an_error(collectives: str, tmp_path: Path) -> None:
    """The compiled text does not show them, nor do the numbers of executions."""
    flags = f"--xla_cpu_enable_fast_math=true --xla_dump_to={tmp_path / 'dump'}"
    result = run_with_flags_of_one(flags, ["--collectives", collectives], HEAD + SUM, tmp_path)
    assert "lockstep: warning: the processes of this job differ in XLA_FLAGS:" in result.stderr
    assert result.status not in (0, None), result
    headline = result.said_by_launcher.splitlines()[0]
    flag = "XLA_FLAGS is --xla_cpu_enable_fast_math=true on process 1, not set on process 0"
    assert flag in headline, result
    assert not any(result.by_process.values()), "a number was computed before"
    for process in (0, 1):
        assert f"[{process}] lockstep.DisagreementError: process 1 runs" in result.stderr, result


@pytest.mark.parametrize("collectives", [full("lockstep"), full("gloo"), full("mpi")])
@pytest.mark.parametrize(
    ("flags", "options", "program"),
    [
        ("--xla_dump_to=DUMP --xla_force_host_platform_device_count=1", [], SUM),
        ("--xla_cpu_enable_fast_math=true", ["--check-programs", "warn"], SUM),
        ("--xla_cpu_enable_fast_math=true", [], OWN_SUM),
    ],
    ids=["harmless", "warn", "own devices"],
)
def test_flags_of_one_process_are_no_error(
    collectives: str, flags: str, options: list[str], program: str, tmp_path: Path
) -> None:
    flags = flags.replace("DUMP", str(tmp_path / "dump"))
    result = run_with_flags_of_one(
        flags, ["--collectives", collectives, *options], HEAD + program, tmp_path
    )
    assert result.status == 0, result


TRIANGLE = """
square = jax.make_array_from_callback(
    (4, 4), NamedSharding(mesh, P()), lambda at: np.arange(16.0).reshape(4, 4)[at]
)

@jax.jit
def step(x, a):
    w, _ = jax.lax.linalg.eigh(a, lower=me == 1, symmetrize_input=False)  # HERE
    return x.sum() + w.max()

print(float(step(x, square)))
"""
OPTION = """
options = {"xla_cpu_enable_fast_math": True} if SOME else None
step = jax.jit(lambda x: x.sum(), compiler_options=options)
print(float(step(x)))
"""
SETTING = """
if SOME:
    jax.config.update("jax_disable_most_optimizations", True)
print(float(jax.jit(lambda x: x.sum())(x)))
"""


@needs_numbers
@pytest.mark.parametrize("collectives", ["lockstep", full("gloo")])
@pytest.mark.parametrize(
    ("program", "words"),
    [
        # XLA's text has it in the configuration of a call, where other libraries have addresses.
        (TRIANGLE, "uplo.*# HERE"),
        # As flags, options of the compiler are in no module and in no text of an executable.
        (
            OPTION,
            "compiler_options is xla_cpu_enable_fast_math=True on process 1, not set on process 0",
        ),
        full(SETTING, "compiler_options is xla_backend_optimization_level=0 xla_llvm_disable_"),
        # The calls of the two programs read alike.
        full(LAYOUT, r"the layout of result 1 is \{0,1\} on process 1, not given on process 0"),
        full(UNUSED, r"argument y is used \(f32\[8\]\) on process 1, not used on process 0"),
    ],
    ids=["LAPACK", "option", "setting", "layout", "unused"],
)
def test_what_a_program_is_given_beside_its_operations_is_compared(
    program: str, words: str, collectives: str
) -> None:
    options = ["--collectives", collectives, "--grace", "10"]
    planted = HEAD + program.replace("SOME", "me == 1")
    result = run_lockstep(options, planted, d=1, timeout=120, expect_status=1, forked=True)
    headline = result.said_by_launcher.splitlines()[0]
    assert "process 1 runs another program than process 0" in headline, result
    assert re.search(words, headline), result
    if "compiler_options" in words:
        assert "compiler_options" in result.said_by_launcher.partition("Likely: ")[2], result


SLOW = """
from lockstep.watchdog import program_equality

def same(self, *question):
    global is_asked
    is_asked = True
    if not is_known:
        raise TimeoutError("the coordination service is slow")
    return compare(self, *question)

is_known, is_asked, compare = False, False, program_equality.Comparison.same
program_equality.Comparison.same, program_equality.TIMEOUT_SECONDS = same, 0.5
"""
UNREAD = "is_known = True"
LATER = f"""
{UNREAD}
while True:
    time.sleep(0.1)
    jax.jit(lambda x: x.sum())(x)
"""


@pytest.mark.parametrize("later", [UNREAD, LATER], ids=["at the end", "in a loop"])
def test_a_difference_that_is_known_late_is_an_error(later: str) -> None:
    planted = HEAD + SLOW + DRAWN + later
    result = run_lockstep([], planted, d=1, timeout=60, expect_status=1, forked=True)
    for process in (0, 1):
        assert len(result.by_process[process]) == 1, "the number of which nothing was known"
    headline = result.said_by_launcher.splitlines()[0]
    assert "process 1 runs another program than process 0" in headline, result
    assert "# HERE" in headline, result


@pytest.mark.full
def test_a_difference_that_is_known_after_the_wait_is_an_error() -> None:
    """The engine waits 20 s for the watchdog, which answers when no rank waits any more."""
    slow = SLOW.replace("if not is_known:", "if pauses:").replace(
        'raise TimeoutError("the coordination service is slow")', "time.sleep(pauses.pop())"
    )
    slow += "\npauses = [22.0]\n"
    result = run_lockstep([], HEAD + slow + DRAWN, d=1, timeout=100, expect_status=1, forked=True)
    assert "process 1 runs another program than process 0" in result.said_by_launcher, result


@pytest.mark.full
@pytest.mark.parametrize("later", [UNREAD, LATER.replace("True:", "time.monotonic() < end:")])
def test_what_is_known_late_to_be_one_program_is_no_error(later: str) -> None:
    one = """
step = jax.jit(lambda x: x.sum())
if me == 1:
    step = jax.jit(lambda x: x.sum())
print(float(step(x)), is_asked)
end = time.monotonic() + 3
"""
    result = run_lockstep([], HEAD + SLOW + one + later, d=1, timeout=60, forked=True)
    assert [result.by_process[process] for process in (0, 1)] == [["28.0 True"]] * 2, result


@pytest.mark.full
@pytest.mark.parametrize("collectives", ["lockstep", "gloo"])
def test_options_that_all_give_are_no_difference(collectives: str, tmp_path: Path) -> None:
    """Also where one process compiles and the other one has the program in its cache."""
    cached = f"""
folder = f"{tmp_path}/{{os.environ['LOCKSTEP_PROCESS_ID']}}"
jax.config.update("jax_compilation_cache_dir", folder)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
"""
    given = HEAD + cached + OPTION.replace("SOME", "True")
    options = ["--collectives", collectives]
    for _ in range(2):
        result = run_lockstep(options, given, d=1, timeout=120, forked=True)
        assert [result.by_process[process][-1] for process in (0, 1)] == ["28.0"] * 2, result
        shutil.rmtree(tmp_path / "1", ignore_errors=True)


@pytest.mark.parametrize("collectives", [full("lockstep"), "gloo"])
def test_where_the_compiler_writes_is_no_difference(collectives: str, tmp_path: Path) -> None:
    """As JAX's profile-guided optimization has it."""
    folder = f"{{'xla_dump_to': f'{tmp_path}/{{me}}'}}"
    given = HEAD + OPTION.replace('{"xla_cpu_enable_fast_math": True} if SOME else None', folder)
    result = run_lockstep(["--collectives", collectives], given, d=1, timeout=120, forked=True)
    assert [result.by_process[process][-1] for process in (0, 1)] == ["28.0"] * 2, result


AGAIN = """
def make():
    def step(x):
        return jnp.where(x > 1, x * 2, jnp.sin(x)).sum()
    return step

if me == 1:
    local = jnp.where(jnp.arange(4.0) > 1, 1.0, 2.0)  # fills JAX's caches of traced functions
    jax.clear_caches()
first = jax.jit(make())
if me == 0:
    print(first(x))
else:

    print(first(x))
if me == 1:
    jax.clear_caches()
print(jax.jit(make())(x))
jax.jit(lambda v: v * me)(jnp.ones(3))  # over devices of each process alone
"""


@needs_numbers
def test_what_is_traced_elsewhere_or_again_is_the_same_program() -> None:
    result = run_lockstep([], HEAD + AGAIN, d=2, timeout=120, forked=True)
    assert result.by_process[0] == result.by_process[1]
    assert_unsaid("another program", result.stderr)


@pytest.mark.full
def test_programs_are_compared_over_mpi() -> None:
    options = ["--collectives", "mpi", "--grace", "10"]
    result = run_lockstep(options, HEAD + CONSTANT, d=1, timeout=120, expect_status=None)
    assert result.status not in (0, None), result
    assert "a constant is 3.0 on process 1, 2.0 on process 0" in result.said_by_launcher, result
    assert "# HERE" in result.said_by_launcher
