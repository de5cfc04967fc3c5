"""A barrier against a collective is reported at once, and nothing else is taken for it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import jax
import pytest

from faults.harness import PROGRAMS, line
from lanes import full, sample
from support import Result, assert_unsaid, run_lockstep

PROGRAM = PROGRAMS / "at_barriers.py"


def run(name: str, n: int = 2, d: int = 2, status: int = 0, library: Path | None = None) -> Result:
    args = [name, *([str(library)] if library else [])]
    return run_lockstep(
        [], PROGRAM, n=n, d=d, program_args=args, timeout=90, expect_status=status, forked=True
    )


@pytest.mark.parametrize(
    ("name", "n", "d"),
    [("one_side", 2, 2), full("one_side", 2, 1), full("one_side", 3, 1)],
)
def test_both_lines_are_named(name: str, n: int, d: int) -> None:
    result = run(name, n, d, 1)
    said = result.said_by_launcher
    others = "process 1" if n == 2 else "processes 1-2"
    verb = "waits" if n == 2 else "wait"
    at = re.escape(line(f"{name}_barrier", PROGRAM))
    total = re.escape(line("total", PROGRAM))
    assert re.search(
        rf"^lockstep: process \d of {n} failed first: a deadlock: process 0 \(pid \d+ on \S+\) "
        rf"waits in barrier\('epoch'\) at {at} for {others}; {others}( \(pid \d+ on \S+\))? {verb} "
        rf"for process 0 in all-reduce \(sum\) of \d+ x f32, {total} in total",
        said,
        re.MULTILINE,
    ), result
    assert said.count("Likely: a barrier under `if jax.process_index() == 0`") == 1, result
    later = r"^lockstep: process(es)? [\d, -]+ failed \d\.\d (to \d\.\d )?s later: the same"
    assert re.search(later, said, re.MULTILINE), result
    assert "waiting for 3" not in result.stderr, result  # it was proved before a wait was long
    assert_unsaid("in no collective", result.stderr)


@pytest.mark.full
@sample("name", ["one_side_dispatches", "one_side_blocks"], 0)
def test_a_wait_for_a_result_or_for_room_is_recognized(name: str) -> None:
    result = run(name, status=1)
    at = line(f"{name}_barrier", PROGRAM)
    assert f"waits in barrier('epoch') at {at} for process 1;" in result.said_by_launcher, result
    assert "waiting for 3" not in result.stderr, result


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["in_flight", "another_thread", "not_read_yet", "timeout", "alarm", "own_name"]
)
def test_a_program_that_goes_on_is_not_accused(name: str) -> None:
    result = run(name)
    told = ["went on"] if name == "timeout" else []
    assert result.by_process == {0: [*told, "finished"], 1: ["finished"]}, result
    assert_unsaid("a deadlock", result.stderr)


@pytest.mark.full
@pytest.mark.parametrize("name", ["native_program", "native_call", "native_read"])
def test_native_code_that_sleeps_is_not_taken_for_a_deadlock(name: str, tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "the engine was built with a compiler, and this needs one too"
    library = tmp_path / "libsleep.so"
    options = ["-std=c++20", "-w", "-shared", "-fPIC", "-I", jax.ffi.include_dir()]
    source = PROGRAMS / "native_sleep.cc"
    subprocess.run([compiler, *options, str(source), "-o", str(library)], check=True, timeout=120)
    result = run(name, library=library)
    assert result.by_process == {0: ["finished"], 1: ["finished"]}, result
    assert_unsaid("a deadlock", result.stderr)
