"""How long the main thread stands still, at looks whose times are given."""

from __future__ import annotations

import hashlib
import threading
import time

import pytest

from lockstep.watchdog import main_thread
from lockstep.watchdog.still_thread import StillThread


@pytest.fixture
def thread() -> StillThread:
    thread = StillThread(0.0)
    thread.look(0.0, "")
    return thread


def test_it_stands_still_until_something_is_done(thread: StillThread) -> None:
    assert thread.still(10.0) == 10.0
    thread.look(10.0, "a launch")
    assert thread.still(10.0) == 0.0


def test_seconds_that_are_left_out_are_no_wait(thread: StillThread) -> None:
    thread.leave_out(600.0)
    assert (thread.still(601.0), thread.waited(601.0)) == (1.0, 1.0)


@pytest.mark.parametrize("works", [True, False])
def test_a_thread_that_a_busy_machine_lets_run_little_works(
    works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main_thread, "frame", lambda: None)  # the same at each look
    monkeypatch.setattr(main_thread, "inside", lambda frame: "backend_compile")
    monkeypatch.setattr(time, "process_time", lambda: 0.0)  # it has run next to nothing
    over = threading.Event()

    def work() -> None:
        while works and not over.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 14)  # without Python's lock
        over.wait()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        begun = time.monotonic()
        thread = StillThread(begun)
        thread.look(begun, "")
        time.sleep(1)
        thread.look(now := time.monotonic(), "")
    finally:
        over.set()
        worker.join()
    assert (thread.waited(now) == 0.0) is works
