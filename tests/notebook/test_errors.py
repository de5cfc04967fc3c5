"""The error of a cell names the culprit first."""

from __future__ import annotations

from lockstep.notebook.errors import Failure, cell_error

ENGINES = "UNKNOWN: MPI error: lockstep: process 1 failed: ValueError: boom\nmore"
ENGINES_OF_JAXLIB_0_8 = ENGINES.replace("UNKNOWN: ", "UNKNOWN: Buffer Definition Event: ")


def test_the_error_of_the_program_comes_before_those_of_the_engine() -> None:
    failures = [
        Failure(0, "JaxRuntimeError", ENGINES, "trace 0"),
        Failure(1, "ValueError", "boom", "trace 1"),
        Failure(2, "JaxRuntimeError", ENGINES_OF_JAXLIB_0_8, "trace 2"),
    ]
    error = cell_error(failures, (), "do this")
    assert str(error) == "[1] ValueError: boom"
    assert error._render_traceback_() == [
        "[1] failed:",
        "trace 1",
        "[0,2] JaxRuntimeError: lockstep: process 1 failed: ValueError: boom",
        "do this",
    ]
    assert [failure.process for failure in error.failures] == [1, 0, 2]


def test_equal_errors_are_one() -> None:
    failures = [Failure(p, "NameError", "name 'x'", f"\x1b[{31 + p}mtrace") for p in range(4)]
    assert cell_error(failures)._render_traceback_() == ["[0-3] failed:", "\x1b[31mtrace"]


def test_equal_messages_from_different_lines_are_two() -> None:
    failures = [Failure(p, "NameError", "name 'x'", f"line {p}") for p in range(2)]
    lines = cell_error(failures)._render_traceback_()
    assert lines == ["[0] failed:", "line 0", "[1] NameError: name 'x'"]


def test_the_records_say_which_of_the_engines_errors_explains_it() -> None:
    failures = [Failure(p, "JaxRuntimeError", ENGINES, f"trace {p}") for p in range(3)]
    lines = cell_error(failures, [2])._render_traceback_()
    assert lines == ["[0-2] failed:", "trace 2"]


def test_the_report_follows_an_engines_error_that_has_no_room_for_it() -> None:
    cut = f"{ENGINES}\n  and 1 process more"
    for message, shown in ((cut, ["head", "rows"]), (ENGINES, [])):
        failures = [Failure(0, "JaxRuntimeError", message, "trace")]
        lines = cell_error(failures, (), "do this", "head\nrows")._render_traceback_()
        assert lines == ["[0] failed:", "trace", *shown, "do this"]


def test_an_interrupt_is_one_line() -> None:
    failures = [Failure(p, "KeyboardInterrupt", "", "long trace") for p in range(2)]
    assert cell_error(failures)._render_traceback_() == ["[0-1] KeyboardInterrupt"]
    failures.append(Failure(2, "JaxRuntimeError", ENGINES_OF_JAXLIB_0_8, "trace 2"))
    assert cell_error(failures)._render_traceback_()[0] == "[2] failed:"
