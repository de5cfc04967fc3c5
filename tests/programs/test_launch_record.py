"""What the launch record has while a call runs, fails, is interrupted or wraps."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lockstep.flight_recorder.format import State
from lockstep.programs import launches
from lockstep.programs.launches import Record
from programs.launch_records import (
    Executable,
    entries,
    fast,
    function,
    in_thread,
    slow,
)
from programs.launch_records import own as own
from programs.launch_records import programs as programs


def test_a_guess_is_withdrawn_when_the_thread_is_elsewhere(own: Record) -> None:
    step = function(own, b"step")
    fast(own, step)
    own.look([step], in_flight=False)
    own.look((), in_flight=False)
    assert [(n, s) for n, _, s in entries(own)] == [(0, State.DONE)]
    own.look([step], in_flight=False, written=5)  # there were more launches by then
    assert [(n, s) for n, _, s in entries(own)] == [(0, State.DONE)]


def test_what_is_in_flight_is_marked_until_the_next_launch(own: Record) -> None:
    step = function(own, b"step")
    fast(own, step)
    own.look((), in_flight=True)
    assert [state for *_, state in entries(own)] == [State.ENTERED]
    fast(own, step)
    assert [state for *_, state in entries(own)] == [State.DONE, State.DONE]
    own.look((), in_flight=False)
    assert [state for *_, state in entries(own)] == [State.DONE, State.DONE]


def test_a_call_that_does_not_return_is_a_launch(own: Record) -> None:
    step, other = function(own, b"step"), function(own, b"other")
    fast(own, step)
    own.look([step], in_flight=False)
    own.look([step], in_flight=False)
    assert [(n, s) for n, _, s in entries(own)] == [(0, State.DONE), (1, State.ENTERED)]
    fast(own, step)  # the call has returned
    assert [(n, s) for n, _, s in entries(own)] == [(0, State.DONE), (1, State.DONE)]
    own.look([step], in_flight=False)
    fast(own, other)  # it was in another call
    assert [n for n, *_ in entries(own)] == [0, 1, 2]
    assert entries(own)[2][1] != entries(own)[1][1]


def test_a_call_that_raises_is_no_launch(own: Record) -> None:
    slow(own, b"step", ValueError("a deleted array"))
    slow(own, b"step")
    assert [(n, s) for n, _, s in entries(own)] == [(0, State.DONE)]


def test_a_call_whose_collective_fails_is_a_launch_that_raised(own: Record) -> None:
    slow(own, b"step")
    slow(own, b"other", RuntimeError("UNKNOWN: Gloo all-reduce failed: closed"))
    assert [(n, s) for n, _, s in entries(own)] == [(0, State.DONE), (1, State.RAISED)]


def test_a_launch_that_has_failed_stays_so(own: Record) -> None:
    step = function(own, b"step")
    fast(own, step)
    own.failed()
    own.look((), in_flight=False)
    assert [state for *_, state in entries(own)] == [State.RAISED]


def test_a_launch_that_jax_raised_in_is_one_more(own: Record) -> None:
    """JAX's fast path raises a ValueError where the call was to return, so no launch is noted."""
    step = function(own, b"step")
    fast(own, step)
    own.failed(is_new=True)
    assert [(n, s) for n, _, s in entries(own)] == [(0, State.DONE), (1, State.RAISED)]
    own.failed(is_new=True)  # the program calls it again, and gets the error again
    assert len(entries(own)) == 2


def test_one_of_several_functions_is_in_flight_without_saying_which(own: Record) -> None:
    functions = [function(own, b"step"), function(own, b"other")]
    for one in functions:
        fast(own, one)
    own.look([len, *functions], in_flight=False)
    assert own.read().rings[0].entries[-1].run_id == 0
    assert [state for *_, state in entries(own)] == [State.DONE, State.DONE, State.ENTERED]


def test_old_launches_are_overwritten(own: Record) -> None:
    step = function(own, b"step")
    for _ in range(1500):
        fast(own, step)
    found = entries(own)
    assert [found[0][0], found[-1][0], len(found)] == [476, 1499, 1024]


@pytest.mark.parametrize("is_taken", [True, False])
def test_an_interrupt_leaves_no_lock_behind(own: Record, is_taken: bool) -> None:
    """Python runs a signal handler within the call that takes the lock, or right after it."""
    step = function(own, b"step")
    acquire = own._acquire

    def interrupted() -> bool:
        if is_taken:
            acquire()
        raise KeyboardInterrupt

    own._acquire = interrupted
    with pytest.raises(KeyboardInterrupt):
        fast(own, step)
    own._acquire = acquire
    other = threading.Thread(target=fast, args=(own, step), daemon=True)
    other.start()
    other.join(10)
    assert [number for number, *_ in entries(own)] == [0]


def test_a_signal_handler_launches_while_a_launch_is_written(
    own: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, other = function(own, b"step"), function(own, b"other")

    def handled() -> int:
        monkeypatch.setattr(launches, "_now", lambda: 7)
        fast(own, other)
        return 7

    monkeypatch.setattr(launches, "_now", handled)
    fast(own, step)
    assert [number for number, *_ in entries(own)] == [0, 1]


def test_the_number_of_a_launch_wraps(own: Record) -> None:
    """Sequences have 32 bits: 2^32 launches of 50 us take 60 hours."""
    slow(own, b"step")
    [clique] = own._sequences
    own._sequences[clique] = 2**32 - 2
    for _ in range(4):
        slow(own, b"step")
    assert [sequence for sequence, _, _ in entries(own)] == [0, 2**32 - 2, 2**32 - 1, 0, 1]


def assert_ended(own: Any, *names: str) -> None:
    assert [own.programs()[run_id].name for _, run_id, _ in entries(own)] == list(names)
    expected = [(n, State.DONE) for n in range(len(names))]
    assert [(n, s) for n, _, s in entries(own)] == expected


@pytest.mark.parametrize("is_inside", [True, False])
def test_what_a_callback_has_launched_on_another_thread_comes_after_it(
    own: Record, is_inside: bool
) -> None:
    """The launch that the callback is in may return after that of the thread."""
    other = function(own, b"other")
    begun = own.begin(Executable(b"step"))
    if not is_inside:
        own.end(begun, None)
    in_thread(fast, own, other)
    if is_inside:
        own.end(begun, None)
    slow(own, b"step")
    assert_ended(own, "jit_step", "jit_other", "jit_step")


@pytest.mark.parametrize("by", [fast, slow])
def test_what_a_callback_of_any_thread_has_launched_comes_after_it(own: Record, by: Any) -> None:
    other = function(own, b"other")

    def launch() -> None:
        begun = own.begin(Executable(b"step"))
        in_thread(by, own, other if by is fast else b"other")
        own.end(begun, None)

    in_thread(launch)
    slow(own, b"step")
    assert_ended(own, "jit_step", "jit_other", "jit_step")


def test_what_a_callback_has_launched_on_its_own_thread_comes_after_it(own: Record) -> None:
    """XLA may run a program, and so its callbacks, on the thread that launches it."""
    begun = own.begin(Executable(b"step"))
    slow(own, b"other")
    own.end(begun, None)
    assert_ended(own, "jit_step", "jit_other")


def test_a_call_of_a_thread_is_in_flight_until_it_returns_or_raises(own: Record) -> None:
    begun = []
    in_thread(lambda: begun.append(own.begin(Executable(b"step"))))
    own.look((), in_flight=False)
    assert [(n, s) for n, _, s in entries(own)] == [(0, State.ENTERED)]
    in_thread(own.end, begun[0], ValueError("a deleted array"))
    assert entries(own) == []
    slow(own, b"other")
    assert_ended(own, "jit_other")
