"""What a process notes of its end, without a job."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from lockstep.job import current_job
from lockstep.watchdog import shutdown_hook


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not built yet")


@pytest.fixture
def ending() -> Iterator[shutdown_hook._ProgramEnd]:
    current_job.end()
    part = current_job.part(shutdown_hook._ProgramEnd)
    part.owner = os.getpid()
    yield part
    current_job.end()


@pytest.mark.parametrize(
    ("error", "is_noted"),
    [
        (ValueError("INTERNAL: Gloo all-reduce failed: Connection closed by peer"), True),
        (ConnectionResetError("Connection reset by peer"), False),
        (NoText(), False),
        (SystemExit(1), False),
    ],
)
def test_an_error_that_ends_a_thread_is_shown(
    ending: shutdown_hook._ProgramEnd, error: BaseException, is_noted: bool
) -> None:
    shown: list[threading.ExceptHookArgs] = []
    thread = threading.Thread(name="evaluation")
    args = threading.ExceptHookArgs((type(error), error, None, thread))
    shutdown_hook._on_exception_of_thread(shown.append, args)
    assert shown == [args]
    assert ending.in_thread == (("evaluation", error) if is_noted else None)
