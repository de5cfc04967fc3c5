"""Calls of JAX's client, each of which is made on another thread."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

import pytest

from lockstep._jax_compat import lost_service
from processes import captured
from support import wait_until


def test_a_call_returns_or_raises_what_the_method_does() -> None:
    assert lost_service.ending(int, "11", base=2) == 3
    with pytest.raises(ValueError, match="invalid literal"):
        lost_service.ending(int, "x")


def test_a_second_call_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts none while the exit handlers run."""
    lost_service.ending(int, "1")

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert lost_service.ending(int, "2") == 2
    assert lost_service.ending(int, "3") == 3


def test_a_call_that_takes_long_holds_up_no_other_one() -> None:
    """A call does not return after the service is lost."""
    go_on = threading.Event()
    made: list[Any] = []
    first = threading.Thread(target=lambda: made.append(lost_service.ending(go_on.wait, 60)))
    first.start()
    assert lost_service.ending(int, "4") == 4
    assert made == []
    go_on.set()
    first.join(60)
    assert made == [True]


def test_a_bounded_call_is_given_up_and_no_other_is_made_before_it_is_answered() -> None:
    bounded = lost_service.Bounded(0.1)
    assert bounded(int, "5") == 5
    go_on = threading.Event()
    with pytest.raises(TimeoutError, match="does not answer"):
        bounded(go_on.wait, 60)
    with pytest.raises(TimeoutError, match="does not answer"):
        bounded(pytest.fail, "it was called beside one without an answer")
    go_on.set()

    def is_answered() -> bool:
        with contextlib.suppress(TimeoutError):
            return bounded(int, "6") == 6
        return False

    wait_until(is_answered, "an answer", 60)


FORKED = """
import os
from lockstep._jax_compat import lost_service
assert lost_service.ending(int, "1") == 1
child = os.fork()
if child == 0:
    os._exit(lost_service.ending(int, "7"))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_has_no_thread_of_its_parent() -> None:
    ended = captured([sys.executable, "-c", FORKED])
    assert ended.stdout == "7\n", ended.stderr
