"""What jaxlib puts around the texts of errors, and what is left of it."""

from __future__ import annotations

import re

import pytest

from lockstep._jax_compat import texts

DISPATCH = "Error dispatching computation: "
EVENT = "Buffer Definition Event: "


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            f"INTERNAL: {DISPATCH * 194}MPI error: lockstep: x: y",
            "INTERNAL: MPI error: lockstep: x: y",
        ),
        (f"UNKNOWN: {EVENT}{DISPATCH}MPI error: lockstep: x", "UNKNOWN: MPI error: lockstep: x"),
        ("UNKNOWN: MPI error: lockstep: x", "UNKNOWN: MPI error: lockstep: x"),
        (
            f"INTERNAL: {DISPATCH * 3}Gloo all-reduce failed",
            f"INTERNAL: {DISPATCH}Gloo all-reduce failed",
        ),
        (f"UNKNOWN: {DISPATCH}{EVENT}{DISPATCH}x", f"UNKNOWN: {DISPATCH}{EVENT}x"),
        ("INTERNAL: RuntimeError: Error: Error: x", "INTERNAL: RuntimeError: Error: Error: x"),
        (f"a user's {DISPATCH * 2}x", f"a user's {DISPATCH * 2}x"),
        ("", ""),
    ],
)
def test_each_prefix_is_left_once_and_none_before_the_engines_text(text: str, left: str) -> None:
    assert texts.without_prefixes(text) == left


@pytest.mark.parametrize("prefixes", ["", EVENT, DISPATCH, EVENT + DISPATCH * 100])
@pytest.mark.parametrize("again", ["", "earlier failure: "])
def test_an_engines_error_is_recognised_below_any_prefixes(prefixes: str, again: str) -> None:
    found = re.match(texts.ENGINE_ERROR, f"INTERNAL: {prefixes}MPI error: lockstep: {again}words")
    assert found is not None
    assert found["again"] == (again or None)


@pytest.mark.parametrize(
    ("text", "is_collectives"),
    [
        ("UNKNOWN: Gloo all-reduce failed: closed by peer", True),
        (f"INTERNAL: {DISPATCH}Gloo context initialization failed", True),
        ("INTERNAL: NCCL operation ncclGroupEnd() failed", True),
        ("UNKNOWN: MPI error: lockstep: process 1 ended", True),
        ("NOT_FOUND: Config key lockstep/failed_barriers/0/Gloo and NCCL not found.", False),
        ("INTERNAL: Failed to open libtpu.so", False),
        (f"INTERNAL: {DISPATCH}CpuCallback error: ValueError: Gloo", False),
    ],
)
def test_errors_of_collectives_are_told_from_others(text: str, is_collectives: bool) -> None:
    assert texts.is_of_collective(text) == is_collectives


def test_an_error_of_another_library_is_none_of_the_engines() -> None:
    assert not re.match(texts.ENGINE_ERROR, "INTERNAL: the log has: MPI error: lockstep: words")


def test_the_first_line_of_an_exception_of_a_callback_has_the_exception() -> None:
    head = "INTERNAL: CpuCallback error calling callback: "
    stack = 'Traceback (most recent call last):\n  File "a.py", line 7, in log\n'
    note = "-" * 20 + "\nFor simplicity, JAX has removed its internal frames from the traceback\n"
    for text in (f"{head}{stack}OSError: full\n", f"{head}{stack}{note}OSError: full\nmore"):
        assert texts.first_line(text) == f"{head}OSError: full"
    assert texts.first_line("a\nb") == "a"
    assert texts.first_line(f"{head}Traceback (most recent call last):") == head
    assert texts.first_line("") == ""
