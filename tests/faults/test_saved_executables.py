"""Executables that were saved and differ between processes: the error says in what."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.test_programs_differ import HEAD, run_with_flags_of_one
from lanes import full, sample
from of_this_jax import needs_numbers
from support import run_lockstep

IMPORTS = """
import pickle, sys
from pathlib import Path
from jax.experimental import serialize_executable

is_other = jax.process_index() == 1 and sys.argv[2] == "other"
"""
LOADED_OR_MADE = """
file = Path(f"{sys.argv[1]}-{jax.process_index()}")
if file.exists():
    step = serialize_executable.deserialize_and_load(*pickle.loads(file.read_bytes()))
    print(float(step(x)))
else:
    file.write_bytes(pickle.dumps(serialize_executable.serialize(step.lower(x).compile())))
"""
STEP = """
scale = 3.0 if is_other else 2.0
step = jax.jit(lambda x: (x * scale).sum())  # HERE
"""
STEP_WITH_OPTIONS = """
options = {"xla_cpu_enable_fast_math": True} if is_other else None
step = jax.jit(lambda x: x.sum(), compiler_options=options)
"""
SAVED = IMPORTS + STEP + LOADED_OR_MADE
SAVED_WITH_OPTIONS = IMPORTS + STEP_WITH_OPTIONS + LOADED_OR_MADE
EXECUTABLES = full("lockstep"), full("gloo"), full("mpi")


def save(
    collectives: str, folder: Path, which: str, program: str = SAVED
) -> tuple[list[str], list[str]]:
    """Has a job save its executables; the options and arguments of a job that loads them."""
    options, given = ["--collectives", collectives, "--grace", "10"], [str(folder / "e"), which]
    run_lockstep(options, HEAD + program, d=1, timeout=120, program_args=given, forked=True)
    return options, given


# The file that an executable was traced from is that of the first run.
LINE = (HEAD + SAVED).partition("# HERE")[0].count("\n") + 1
CONSTANT = f"a constant is 3 on process 1, 2 on process 0, program.py:{LINE}"
OPTION = "compiler_options is xla_cpu_enable_fast_math=True on process 1, not set on process 0"


@needs_numbers
@pytest.mark.parametrize("collectives", ["lockstep", *EXECUTABLES[1:]])
@sample(
    ("program", "said"),
    [(SAVED, CONSTANT), (SAVED_WITH_OPTIONS, OPTION)],
    0,
    ids=["constant", "options"],
)
def test_what_differs_in_executables_that_were_saved(
    collectives: str, program: str, said: str, tmp_path: Path
) -> None:
    """They have no modules: their compiled texts are compared."""
    options, given = save(collectives, tmp_path, "other", program)
    result = run_lockstep(
        options,
        HEAD + program,
        d=1,
        timeout=120,
        program_args=given,
        expect_status=None,
        forked=True,
    )
    assert result.status not in (0, None), result
    assert said in result.said_by_launcher, result


@pytest.mark.parametrize("collectives", EXECUTABLES)
def test_an_executable_that_one_process_compiles_is_no_difference(
    collectives: str, tmp_path: Path
) -> None:
    options, given = save(collectives, tmp_path, "same")
    (tmp_path / "e-1").unlink()
    one = SAVED.replace("    file.write", "    print(float(step(x)))\n    file.write")
    result = run_lockstep(options, HEAD + one, d=1, timeout=120, program_args=given, forked=True)
    assert all(result.by_process.values()), result


@pytest.mark.parametrize("collectives", EXECUTABLES)
def test_flags_of_one_process_are_an_error_for_an_executable(
    collectives: str, tmp_path: Path
) -> None:
    options, given = save(collectives, tmp_path, "same")
    flags = "--xla_cpu_enable_fast_math=true"
    result = run_with_flags_of_one(flags, options, HEAD + SAVED, tmp_path, given)
    assert result.status not in (0, None), result
    flag = f"XLA_FLAGS is {flags} on process 1, not set on process 0"
    assert flag in result.said_by_launcher.splitlines()[0], result
    assert not any(result.by_process.values()), "a number was computed before"
