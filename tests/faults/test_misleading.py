"""Faults whose diagnosis is easily mistaken: what the launcher's report says of them."""

from __future__ import annotations

import re

import pytest

from faults.harness import PROGRAMS, TIMEOUT, line
from lanes import sample
from of_this_jax import needs_numbers, where_numbered
from support import Result, assert_unsaid, start_lockstep

PROGRAM = PROGRAMS / "misleading.py"


def report_of(fault: str, *options: str) -> Result:
    """Runs a fault that is not caught."""
    args = ["-n", "2", "--grace", "5", "--collective-timeout", "60", *options]
    with start_lockstep(args, PROGRAM, [fault], forked=True) as run:
        result = run.finish(TIMEOUT)
    assert result.status != 0, result
    return result


def at(marked: str) -> str:
    return line(marked, PROGRAM)


@needs_numbers
def test_the_line_is_the_users_and_then_the_librarys() -> None:
    said = report_of("library").said_by_launcher
    library = line("statistics", PROGRAMS / "site-packages" / "mc_stats.py")
    assert f"{at('average')} in average, through {library} in statistics" in said, said


@needs_numbers
def test_a_call_on_one_side_is_reported_once_with_the_stack_of_that_side() -> None:
    result = report_of("one_side")
    first, *rest = result.said_by_launcher.splitlines()
    assert first.startswith("lockstep: process 0 of 2 failed first: only process 0 (pid "), result
    assert f"{at('norm')} in norm, where process 1 (" in first, result
    # In view above the report, which does not repeat it.
    shown = "\n".join(result.stderr_by_process[0])
    assert f"line {at('one_side').rpartition(':')[2]}, in one_side" in shown, result
    assert f"line {at('log_norm').rpartition(':')[2]}, in log_norm" in shown, result
    assert "Traceback (most recent call last)" not in "\n".join(rest), result
    # The first line and the last one.
    assert result.stderr.count("these must be the same") == 2, result
    assert "these must be the same" in rest[-1], result
    assert result.stderr.count("Likely: norm is called under `if jax.process_index()") == 1, result
    assert_unsaid("site-packages", result.stderr)
    assert re.search(r"\.\.\. \d frames? of jax \(shown with --full-tracebacks\)", shown), result


@pytest.mark.full
def test_a_collective_in_an_exit_handler_is_none_of_the_program() -> None:
    result = report_of("at_exit")
    said = result.said_by_launcher
    assert said.startswith("lockstep: process 0 of 2 failed first: KeyboardInterrupt"), result
    assert "lockstep: process 1 waited in its 2nd: all-reduce (sum) of 1 x f32" in said, result
    assert at("norm") not in said, result


@needs_numbers
@pytest.mark.full
def test_errors_after_one_that_was_caught_say_that_they_are_not_new() -> None:
    result = report_of("caught")
    for process in range(2):
        [caught] = [x for x in result.by_process[process] if x.startswith("caught:")]
        assert "MPI error: lockstep: process 0 (pid" in caught, result
        [later] = [x for x in result.by_process[process] if x.startswith("later:")]
        assert "MPI error: lockstep: earlier failure: process 0 (pid" in later, result
    said = result.said_by_launcher
    assert re.search(r"failed first: process 0 \(pid \d+ on .*\) called", said), said
    assert "This process had raised the error before, and caught it or" in said, said


@needs_numbers
def test_several_threads_that_dispatch_collectives_are_named_first() -> None:
    said = report_of("prefetch").said_by_launcher
    likely = said.partition("Likely: ")[2]
    assert likely.startswith("several threads dispatch collectives ("), said
    threads = likely.partition("(")[2].partition(")")[0].split(", ")
    assert set(threads) == {"loss: MainThread", "_identity_fn: prefetch"}, said
    assert "jax.make_array_from_process_local_data does without it" in likely, said
    assert f"_identity_fn (first used at {at('fill')})" in said, said


def test_all_frames_are_shown_on_request() -> None:
    result = report_of("one_side", "--full-tracebacks")
    for process in range(2):
        assert "site-packages/jax/" in "\n".join(result.stderr_by_process[process]), result
    assert_unsaid("(shown with --full-tracebacks)", result.stderr)


@sample("name", ["callback", "callback_unread"], 1)
def test_an_exception_of_a_callback_is_the_reason(name: str) -> None:
    said = report_of(name, "-d", "2").said_by_launcher
    raised = f"RuntimeError: loss log disk full, {at('log')} in log"
    assert re.search(rf"process 0 \(.*?\) raised {re.escape(raised)}, in a callback", said), said
    assert "this has ended the program on its device 0; processes 0-1 wait" in said, said
    assert re.search("wait(s|ed) for its own device 0 in all-reduce", said), said
    assert said.count("its own device 0") == 1, said
    assert "RuntimeError: loss log disk full" in said.splitlines()[0], said
    assert f"{at('log')} in log" in said.splitlines()[0], said


@pytest.mark.full
def test_an_exception_that_has_ended_a_thread_is_named_beside_the_wait_for_its_process() -> None:
    said = report_of("loader_thread", "--collective-timeout", "4").said_by_launcher
    assert re.search(r"process 1 \(pid \d+ on \S+\) has not arrived yet \(its thread loader ", said)
    assert f"raised OSError: cannot decode image 7, {at('load')} in load)" in said, said


def test_devices_in_another_order_are_told_from_calls_in_another_order() -> None:
    said = report_of("device_order", "-d", "2").said_by_launcher
    assert where_numbered("in loss (") in said.splitlines()[0], said
    assert where_numbered("the mesh is devices ") in said.splitlines()[0], said
    assert "Likely: the processes have the same devices in another order, as in a mesh of" in said
    assert_unsaid("a set", said)


@pytest.mark.full
def test_a_branch_inside_of_a_program_that_only_some_devices_take() -> None:
    said = report_of("cond", "-d", "2", "--collective-timeout", "4").said_by_launcher
    assert "device 0 of process 0 (pid " in said, said
    assert f"{at('cond')} in " in said, said
    assert "Likely: a branch inside positive_sum: lax.cond or lax.while_loop on a value" in said


@sample(
    ("fault", "error", "advice"),
    [
        ("twice", "initialize() must be called before", "This process has joined the job already."),
        ("keyboard", "EOFError: EOF when", "standard input goes to process 0 alone."),
    ],
    0,
)
def test_an_error_that_means_something_else_in_a_job(fault: str, error: str, advice: str) -> None:
    result = report_of(fault)
    assert error in result.said_by_launcher.splitlines()[0], result
    assert advice in result.stderr, result


def test_a_program_that_has_caught_the_error_and_ends_well_is_told_so() -> None:
    with start_lockstep(["-n", "2"], PROGRAM, ["swallowed"], forked=True) as run:
        result = run.finish(TIMEOUT)
    assert result.status == 0, result
    [said] = [line for line in result.stderr.splitlines() if "has caught the error" in line]
    assert "ends with status 0: process 1 (pid " in said, result
    assert f"{at('loss')} in loss. If that is no success, end it by `raise` or sys.exit(1)." in said


@needs_numbers
def test_an_error_that_the_program_has_raised_from_that_of_a_collective() -> None:
    result = report_of("chained")
    first, *_, last = result.said_by_launcher.splitlines()
    for text in (first, last):
        assert f"{at('loss')} in loss, given x: f32[96,8]: as the 4th collective" in text, result
    assert "RuntimeError: training failed (exit code 1)" in result.said_by_launcher


@pytest.mark.full
def test_an_axis_that_the_mesh_does_not_have_is_named() -> None:
    said = report_of("axis").said_by_launcher.splitlines()
    first, last = said[0], said[-1]
    error = "unbound axis name 'date': the axes of the mesh are 'data'"
    assert f"{error} (exit code 1), {at('misspelt')} in misspelt" in first, first
    assert error in last, last


def test_a_value_on_a_device_of_another_process() -> None:
    result = report_of("elsewhere")
    assert (
        "process 1 of 2 failed first: RuntimeError: Fetching value for `jax.Array`"
        in (result.said_by_launcher.splitlines()[0])
    )
    assert "All of this array is on devices of other processes." in result.stderr, result
    assert "jax.local_devices() those of this one" in result.stderr, result
